"""The elastic sampler: each index exactly once per epoch under any schedule of sizes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from bftrainer.elastic import ElasticError
from bftrainer.elastic.data.loader import Loader, View, epoch_order
from bftrainer.elastic.script.batch import EpochPlan, active, share

plans = st.builds(
    EpochPlan,
    samples=st.integers(1, 300),
    batch=st.integers(1, 40),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
)


@given(plan=plans, sizes=st.lists(st.integers(1, 9), min_size=1, max_size=30), seed=st.integers())
def test_every_index_exactly_once_whatever_the_sizes(
    plan: EpochPlan, sizes: list[int], seed: int
) -> None:
    order = epoch_order(plan, seed, epoch=2).tolist()
    assert sorted(order) == list(range(plan.samples))
    served: list[int] = []
    position = step = 0
    while batch := plan.global_batch(position):
        size = sizes[step % len(sizes)]
        for rank in range(size):
            start, stop = share(batch, size, rank)
            served += order[position + start : position + stop]
        position += batch
        step += 1
    assert position == plan.epoch_samples
    assert served == order[: plan.epoch_samples]
    expected = plan.samples - plan.samples % plan.batch if plan.drop_last else plan.samples
    assert len(set(served)) == len(served) == expected


@given(batch=st.integers(0, 1000), size=st.integers(1, 64))
def test_shares_are_contiguous_and_differ_by_one_at_most(batch: int, size: int) -> None:
    shares = [share(batch, size, rank) for rank in range(size)]
    assert shares[0][0] == 0
    assert shares[-1][1] == batch
    assert all(a[1] == b[0] for a, b in pairwise(shares))
    lengths = [stop - start for start, stop in shares]
    assert lengths == sorted(lengths, reverse=True)
    assert max(lengths) - min(lengths) <= 1


@given(batch=st.integers(1, 100), size=st.integers(1, 30), least=st.integers(1, 4))
def test_no_share_is_smaller_than_the_model_can_take(batch: int, size: int, least: int) -> None:
    shares = [share(batch, size, rank, least) for rank in range(size)]
    served = [i for start, stop in shares for i in range(start, stop)]
    assert served == list(range(batch))
    lengths = [stop - start for start, stop in shares if stop > start]
    assert len(lengths) == active(batch, size, least)
    assert min(lengths) >= min(batch, least)


@given(plan=plans, budget=st.integers(0, 500))
def test_a_budget_of_samples_is_met_exactly(plan: EpochPlan, budget: int) -> None:
    used = position = 0
    while batch := plan.global_batch(position, budget - used):
        used += batch
        position += batch
    assert used == min(budget, plan.epoch_samples)


def test_epochs_and_seeds_have_different_orders() -> None:
    plan = EpochPlan(samples=100, batch=10, drop_last=False, shuffle=True)
    orders = {tuple(epoch_order(plan, s, e).tolist()) for s in range(3) for e in range(3)}
    assert len(orders) == 9
    assert torch.equal(epoch_order(plan, 1, 1), epoch_order(plan, 1, 1))


def view(rank: int, size: int) -> View:
    return View(seed=3, epoch=1, generation=1, attempt=1, rank=rank, size=size)


@pytest.mark.parametrize("loader_workers", [0, 2])
def test_shares_of_all_ranks_are_the_batch_of_one(loader_workers: int) -> None:
    dataset = TensorDataset(torch.arange(50), torch.randn(50, 2))

    def new() -> Loader:
        return Loader(DataLoader(dataset, batch_size=8, shuffle=True, num_workers=loader_workers))

    whole, parts = new(), [new() for _ in range(3)]
    position = 0
    while batch := whole.plan.global_batch(position):
        alone = whole.fetch(view(0, 1), position, batch, None)
        shares = [
            p.fetch(view(r, 3), position, batch, None) for r, p in enumerate(parts) if r < batch
        ]
        assert torch.equal(alone[0], torch.cat([s[0] for s in shares]))
        assert torch.equal(alone[1], torch.cat([s[1] for s in shares]))
        position += batch
    for loader in (whole, *parts):
        loader.close()


def test_the_users_collate_function_is_used() -> None:
    loader = Loader(DataLoader(TensorDataset(torch.arange(6)), batch_size=3, collate_fn=len))
    assert loader.fetch(view(0, 2), 0, 3, None) == 2
    assert loader.rehearsal(2) == 2


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(5))


DATA = TensorDataset(torch.arange(6))


@pytest.mark.parametrize(
    ("loader", "cause"),
    [
        (DataLoader(Stream()), "IterableDataset"),
        (DataLoader(DATA, sampler=WeightedRandomSampler([0.5] * 6, 6)), "WeightedRandomSampler"),
        (DataLoader(DATA, batch_size=None), "no batch size"),
        (
            DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 2, False)),  # noqa: FBT003
            "batch_sampler",
        ),
        (DataLoader(DATA, sampler=RandomSampler(DATA, replacement=True)), "replacement"),
        ([1, 2, 3], "not a torch DataLoader"),
    ],
)
def test_loaders_that_cannot_be_split_are_refused(loader: Any, cause: str) -> None:
    with pytest.raises(ElasticError, match=cause) as refused:
        Loader(loader)
    assert refused.value.code == "BFT-1402"
    assert refused.value.next_step


def test_a_loader_that_accelerate_prepared_is_refused_by_name() -> None:
    accelerate = pytest.importorskip("accelerate")
    prepared = accelerate.Accelerator(cpu=True).prepare(DataLoader(DATA, batch_size=2))
    with pytest.raises(ElasticError, match="Accelerate's prepare") as refused:
        Loader(prepared)
    assert refused.value.code == "BFT-1402"
    assert "before" in refused.value.next_step
