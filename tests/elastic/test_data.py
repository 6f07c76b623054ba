"""Each sample exactly once per epoch: any schedule of sizes and losses, any way to read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bftrainer.elastic import ElasticError, GlobalBatch, PerWorkerBatch, Sharded
from bftrainer.elastic.data.loader import Loader, View
from bftrainer.elastic.script.batch import Cutting, DecidedBatch
from tests.elastic import journal
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess

TRAIN = SCRIPTS / "train_ids.py"


@dataclass
class Shards:
    """Samples numbered through all shards; remembers what was opened and read."""

    lengths: list[int]
    opened: int = 0
    read: int = 0

    def shard_lengths(self) -> list[int]:
        return self.lengths

    def read_shard(self, shard: int, skip: int, epoch: int) -> Iterator[int]:
        self.opened += 1
        first = sum(self.lengths[:shard])
        order = torch.randperm(
            self.lengths[shard], generator=torch.Generator().manual_seed(100 * epoch + shard)
        )
        for i in order[skip:].tolist():
            self.read += 1
            yield first + i


@dataclass
class Change:
    """What happens at one step: size and batch it is tried at, and whether somebody dies in it."""

    size: int
    is_lost: bool
    told: int = 0  # where the batch is decided


changes = st.lists(
    st.builds(Change, size=st.integers(1, 6), is_lost=st.booleans(), told=st.integers(0, 40)),
    min_size=1,
)
cuttings = st.sampled_from(
    [
        Cutting(),
        Cutting(least=2),
        Cutting(rule=GlobalBatch(max_per_worker=3)),
        Cutting(rule=PerWorkerBatch()),
        Cutting(rule=DecidedBatch(max_per_worker=3)),
        Cutting(logical=5),
    ]
)


class Trainer:
    """The members of a trainer as far as reading goes: each has a loader of its own."""

    def __init__(self, loader: DataLoader[Any], cutting: Cutting, most: int) -> None:
        self.members = [Loader(loader, cutting) for _ in range(most)]
        self.generation = 0

    def epoch(self, number: int, schedule: list[Change]) -> list[int]:
        """Read one epoch under a schedule; returns the samples of committed steps."""
        served: list[int] = []
        position = step = 0
        size = told = 0
        while True:
            change = schedule[step % len(schedule)]
            if (change.size, change.told) != (size, told) or change.is_lost:
                self.generation += 1
                self.members.insert(0, self.members.pop())  # other ranks than before
            size, told = change.size, change.told
            views = [self.view(number, size, rank, told) for rank in range(size)]
            batch = self.members[0].batch_at(views[0], position, None)
            if batch == 0:
                return served
            tried = [i for view in views for i in self.read(view, position, batch)]
            assert len(tried) == batch
            # One that dies takes its share along; the others redo the step at the next size.
            if not change.is_lost or step % 3:
                served += tried
                position += batch
            step += 1

    def view(self, epoch: int, size: int, rank: int, told: int) -> View:
        at = {"seed": 7, "epoch": epoch, "generation": self.generation, "attempt": 1}
        return View(**at, rank=rank, size=size, told=told)

    def read(self, view: View, position: int, batch: int) -> Iterator[int]:
        member = self.members[view.rank]
        for number in range(len(member.cutting.pieces(batch, view.size, view.rank))):
            data = member.fetch(view, position, batch, None, number)
            yield from (data[0] if isinstance(data, list) else data).tolist()

    def close(self) -> None:
        for member in self.members:
            member.close()


@settings(deadline=None, max_examples=60)
@given(
    schedule=changes,
    cutting=cuttings,
    samples=st.integers(1, 70),
    batch=st.integers(5, 12),
    shards=st.integers(0, 7),
    shuffle=st.booleans(),
    drop=st.integers(0, 9),
)
def test_each_sample_is_served_exactly_once(
    schedule: list[Change],
    cutting: Cutting,
    samples: int,
    batch: int,
    shards: int,
    shuffle: bool,
    drop: int,
) -> None:
    dataset: Any = TensorDataset(torch.arange(samples))
    if shards:
        cuts = [samples * i * i // shards**2 for i in range(shards + 1)]
        lengths = [b - a for a, b in pairwise(cuts)]
        dataset = Sharded(Shards(lengths), drop=drop, most_open=3)
    trainer = Trainer(DataLoader(dataset, batch_size=batch, shuffle=shuffle), cutting, 6)
    orders = [trainer.epoch(number, schedule) for number in range(2)]
    for order in orders:
        assert sorted(order) == list(range(samples))
    # Updates hold the same samples as those of one worker that nothing happens to.
    if not isinstance(cutting.rule, PerWorkerBatch | DecidedBatch):
        alone = Trainer(DataLoader(dataset, batch_size=batch, shuffle=shuffle), cutting, 1)
        calm = [Change(size=1, is_lost=False)]
        assert [alone.epoch(number, calm) for number in range(2)] == orders


@pytest.mark.parametrize("persistent", [False, True], ids=["new", "persistent"])
@pytest.mark.parametrize(
    ("shards", "logical"),
    [
        (0, 0),
        *(pytest.param(*both, marks=pytest.mark.long) for both in [(5, 0), (0, 4), (5, 4)]),
    ],
)
def test_the_same_with_processes_that_read_ahead(
    persistent: bool, shards: int, logical: int
) -> None:
    dataset: Any = TensorDataset(torch.arange(61))
    if shards:
        dataset = Sharded(Shards([20, 5, 0, 30, 6]), drop=1)
    loader = DataLoader(
        dataset,
        batch_size=8,
        shuffle=True,
        num_workers=2,
        prefetch_factor=3,
        persistent_workers=persistent,
    )
    trainer = Trainer(loader, Cutting(logical=logical), 2)
    plan = [(1, False), (1, False), (2, False), (2, True), (1, False), (2, True), (2, False)]
    schedule = [Change(size=size, is_lost=is_lost) for size, is_lost in plan]
    workers: set[int] = set()
    try:
        for number in range(2):
            assert sorted(trainer.epoch(number, schedule)) == list(range(61))
            alive = {w.pid for m in trainer.members for w in _processes(m)}
            assert not persistent or not workers or workers == alive
            workers = alive
    finally:
        trainer.close()


def _processes(member: Loader) -> list[Any]:
    processes: list[Any] = getattr(member._stream, "_workers", [])
    return processes


def test_workers_read_their_own_shards_only() -> None:
    """With as many shards as it divides, nothing is read twice and nothing dropped."""
    sources = [Shards([30] * 8) for _ in range(4)]
    members = [Loader(DataLoader(Sharded(s), batch_size=16)) for s in sources]
    for rank, member in enumerate(members):
        view = View(seed=1, epoch=0, generation=1, attempt=1, rank=rank, size=4)
        for position in range(0, 240, 16):
            member.fetch(view, position, 16, None)
    assert [s.opened for s in sources] == [2] * 4
    assert [s.read for s in sources] == [60] * 4


def test_the_order_of_shards_mixes_them_evenly() -> None:
    lengths = [40, 10, 0, 50]
    ends = list(accumulate(lengths))
    data = Sharded(Shards(lengths))
    plain, shuffled = data.order(None).tolist(), data.order(5).tolist()
    assert sorted(plain) == sorted(shuffled) == list(range(100))
    assert plain != shuffled
    for order in (plain, shuffled):
        tenth = Counter(next(s for s, e in enumerate(ends) if i < e) for i in order[:20])
        assert tenth == {0: 8, 1: 2, 3: 10}
        of_last = [i for i in order if i >= 50]
        assert of_last == sorted(of_last)  # forwards, so that a stream can be read on


def test_shards_without_samples_and_shorter_than_declared_are_refused() -> None:
    for lengths in ([], [0, 0], [-1, 3]):
        with pytest.raises(ElasticError, match="declares no samples") as refused:
            Sharded(Shards(lengths))
        assert refused.value.code == "BFT-1429"
    source = Shards([4, 4])
    data = Sharded(source)
    assert [data[i] for i in (4, 5)] == [data[4], data[5]]
    source.lengths = [4, 1]  # now it gives less than it said
    data = Sharded(source)
    data.lengths, data._ends = [4, 4], [4, 8]
    with pytest.raises(ElasticError, match="Shard 1 ended before sample 1 of the 4 declared"):
        [data[i] for i in (4, 5)]


def test_a_sampler_for_one_process_is_an_ordinary_one() -> None:
    data = TensorDataset(torch.arange(10))
    alone: Any = DistributedSampler(data, num_replicas=1, rank=0)
    assert Loader(DataLoader(data, batch_size=4, sampler=alone)).plan.shuffle
    two: Any = DistributedSampler(data, num_replicas=2, rank=0)
    with pytest.raises(ElasticError, match="DistributedSampler"):
        Loader(DataLoader(data, batch_size=4, sampler=two))


@pytest.mark.parametrize(
    "shards", [0, pytest.param(6, marks=pytest.mark.long)], ids=["indexed", "sharded"]
)
def test_real_workers_that_read_ahead_and_die(
    tmp_path: Path, template: TemplateProcess, shards: int
) -> None:
    setup = json.dumps(
        {
            "loader_workers": 1,
            "persistent": True,
            "shards": shards,
            "holds": [[4, 2], [8, 3], [12, 4], [16, 5]],  # of 65 steps
            "optimizer": "sgd",
            "epochs": 5,
        }
    )
    with Controller(tmp_path, template) as c:
        ids = c.start(TRAIN, [setup], count=4)
        c.warm(ids)
        for members, step in ((ids[:1], 3), (ids[:3], 7), (ids[1:3], 11)):
            c.form(members)
            c.trained_to(step)
        c.kill(ids[1])
        c.until(lambda: c.workers[ids[1]].returncode is not None, "death noticed")
        c.form([ids[2]], abandon=True)
        c.trained_to(15)
        c.form(ids[2:])
        c.finished()
    counts = journal.committed_ids(tmp_path)
    assert sorted(counts) == list(range(5))
    for count in counts.values():
        assert sorted(count.elements()) == list(range(203))
    assert journal.disagreements(tmp_path, "hash") == []
