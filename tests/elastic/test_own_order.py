"""An order that the script gives itself: any indices, the same on all workers, whatever happens."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, RandomSampler, TensorDataset, WeightedRandomSampler

from bftrainer.elastic import ElasticError, Sharded
from bftrainer.elastic.data.loader import Loader, OwnOrder, View
from bftrainer.elastic.script.batch import Cutting
from bftrainer.ground.protocol import Interrupted
from tests.elastic import journal
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess
from tests.elastic.test_data import Shards

TRAIN = SCRIPTS / "train_ids.py"
SAMPLES = 40


def _view(epoch: int, size: int, rank: int) -> View:
    return View(seed=7, epoch=epoch, generation=1, attempt=1, rank=rank, size=size)


@given(
    orders=st.lists(
        st.lists(st.integers(0, SAMPLES - 1), min_size=1, max_size=60), min_size=1, max_size=3
    ),
    sizes=st.lists(st.integers(1, 4), min_size=1),
    batch=st.integers(1, 12),
    drop_last=st.booleans(),
)
def test_each_place_of_the_order_is_served_once_at_any_sizes(
    orders: list[list[int]], sizes: list[int], batch: int, drop_last: bool
) -> None:
    data = DataLoader(TensorDataset(torch.arange(SAMPLES)), batch_size=batch, drop_last=drop_last)
    loader = Loader(data, Cutting(), indices=lambda epoch: orders[epoch])
    for epoch, order in enumerate(orders):
        served: list[int] = []
        while count := loader.batch_at(_view(epoch, 1, 0), len(served), None):
            size, at = sizes[len(served) % len(sizes)], len(served)
            for rank in range(min(size, count)):
                (part,) = loader.fetch(_view(epoch, size, rank), at, count, None)
                assert part.tolist() == loader.handed
                served += part.tolist()
        kept = len(order) - len(order) % batch if drop_last else len(order)
        assert served == order[:kept]


@pytest.mark.parametrize(
    "indices",
    [
        lambda _: range(5, 9),
        lambda _: torch.tensor([3, 3, 1], dtype=torch.int32),
        lambda _: iter([1, 2]),
        lambda _: WeightedRandomSampler([1.0] * SAMPLES, 25),
        lambda _: RandomSampler(range(SAMPLES)),
        lambda epoch: random.sample(range(SAMPLES), 10 + epoch),
    ],
    ids=["range", "tensor", "iterator", "weighted", "random", "of random"],
)
def test_what_draws_from_the_seeded_streams_is_an_order(
    indices: Callable[[int], Iterable[int]],
) -> None:
    torch.manual_seed(1)
    random.seed(1)
    expected = torch.rand(1).item(), random.random()  # noqa: S311
    torch.manual_seed(1)
    random.seed(1)
    one, other = OwnOrder(indices, SAMPLES), OwnOrder(indices, SAMPLES)
    torch.rand(3)  # the streams of members are not at the same place
    for epoch in range(3):
        assert one.order(5, epoch).tolist() == other.order(5, epoch).tolist()
    assert one.order_id == other.order_id
    torch.manual_seed(1)
    random.seed(1)
    one.order(6, 9)
    assert (torch.rand(1).item(), random.random()) == expected, "as if nothing was drawn"  # noqa: S311


def test_orders_of_two_epochs_differ_though_they_are_drawn_alike() -> None:
    own = OwnOrder(lambda _: RandomSampler(range(SAMPLES)), SAMPLES)
    assert own.order(5, 0).tolist() != own.order(5, 1).tolist()
    assert own.order(5, 0).tolist() != own.order(6, 0).tolist()


@pytest.mark.parametrize(
    ("given_back", "said"),
    [
        ([], "no index"),
        ([0, SAMPLES], f"the index {SAMPLES} of a dataset of {SAMPLES} samples"),
        ([-1], "the index -1"),
        ([0.5], "float"),
        ([True], "bool"),
        ([[1], [2]], "2 dimensions"),
        (["a"], "no sequence of integers"),
    ],
)
def test_what_is_no_order_is_refused(given_back: Any, said: str) -> None:
    with pytest.raises(ElasticError, match=said) as refused:
        OwnOrder(lambda _: given_back, SAMPLES)
    assert refused.value.code == "BFT-1425"


def test_an_order_that_is_another_at_each_call_is_refused() -> None:
    stream = torch.Generator()
    with pytest.raises(ElasticError, match="asked again") as refused:
        OwnOrder(lambda _: torch.randperm(SAMPLES, generator=stream), SAMPLES)
    assert refused.value.code == "BFT-1426"


def test_an_order_differs_in_its_hash_by_place_value_and_length() -> None:
    ids = {
        OwnOrder(lambda _, order=order: order, SAMPLES).order_id  # type: ignore[misc]
        for order in ([1, 2, 3], [2, 1, 3], [1, 2, 4], [1, 2, 3, 3], [1, 2], [0, 1, 2, 3])
    }
    assert len(ids) == 6


def test_a_stream_has_its_own_order() -> None:
    with pytest.raises(ElasticError, match="shards"):
        Loader(DataLoader(Sharded(Shards([5])), batch_size=2), indices=lambda _: [1])


def _settings(**more: object) -> list[str]:
    return [json.dumps({"weighted": True, "epochs": 3, "optimizer": "sgd", **more})]


@pytest.mark.parametrize("loader_workers", [pytest.param(0, marks=pytest.mark.long), 1])
def test_workers_that_come_and_die_use_the_order_of_one_that_nothing_happens_to(
    tmp_path: Path, template: TemplateProcess, loader_workers: int
) -> None:
    calm, wild = tmp_path / "calm", tmp_path / "wild"
    calm.mkdir()
    wild.mkdir()
    with Controller(calm, template) as c:
        ids = c.begin(TRAIN, _settings())
        c.finished()
    with Controller(wild, template) as c:
        holds = [[4, 2], [12, 3], [18, 4]]  # of 10 steps in each epoch
        ids = c.start(TRAIN, _settings(loader_workers=loader_workers, holds=holds), count=3)
        c.form(ids[:1], new=ids)
        c.trained_to(3)
        c.form(ids[:2])
        c.trained_to(11)
        c.kill(ids[0])
        c.until(lambda: c.workers[ids[0]].returncode is not None, "death noticed")
        c.form(ids[1:2], abandon=True)
        c.trained_to(17)
        c.form(ids[1:])
        c.finished()
    counts = journal.committed_ids(calm)
    assert [sum(counts[epoch].values()) for epoch in range(3)] == [150, 157, 164]
    assert max(counts[0].values()) > 1, "drawn with replacement"
    assert journal.committed_ids(wild) == counts
    assert journal.disagreements(wild, "hash") == []


def test_a_joiner_with_another_order_in_this_epoch_ends_and_the_others_train_on(
    tmp_path: Path, template: TemplateProcess
) -> None:
    with Controller(tmp_path, template) as c:
        (first,) = c.start(TRAIN, _settings(epochs=1_000_000, delay_s=0.01))
        (odd,) = c.start(TRAIN, _settings(epochs=1_000_000, shift=5))
        c.form([first], new=[first, odd])
        c.trained_to(12)
        c.commit_only([first, odd])
        said = c.failed(odd)
        assert said.code == "BFT-1426"
        assert "the workers that began this epoch" in said.cause
        c.until(lambda: c.workers[first].all(Interrupted), "the other one noticed")
        [entered] = c.form([first], abandon=True)
        c.trained_to(entered.step + 3)
        c.park()


def test_workers_with_different_orders_are_told(tmp_path: Path, template: TemplateProcess) -> None:
    with Controller(tmp_path, template) as c:
        ids = [*c.start(TRAIN, _settings()), *c.start(TRAIN, [json.dumps({"epochs": 3})])]
        c.warm(ids)
        c.commit_only(ids)
        assert {c.failed(i).code for i in ids} == {"BFT-1421"}


def test_the_state_of_an_order_is_what_the_release_before_reads() -> None:
    """As a checkpoint has it: empty before the first epoch, then seed, epoch and hash."""
    order = OwnOrder(lambda epoch: [epoch, 2, 0], 4)
    assert order.state_dict() == {}
    order.order(5, 1)
    state = order.state_dict()
    assert list(state) == ["seed", "epoch", "hash"]
    assert (state["seed"], state["epoch"]) == (5, 1)
    other = OwnOrder(lambda epoch: [epoch, 0, 2], 4)
    other.load_state_dict(state)
    with pytest.raises(ElasticError, match="than the workers that began this epoch got"):
        other.order(5, 1)
    other.load_state_dict({})  # of a run that has not begun
    assert other.order(5, 1).tolist() == [1, 0, 2]
    other.load_state_dict({**state, "epoch": 0})
    assert other.order(5, 1).tolist() == [1, 0, 2]  # of an epoch that nobody has begun
