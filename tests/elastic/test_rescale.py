"""Rescales of a real run: same samples, same parameters as if nothing had happened."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from bftrainer.ground.protocol import Entered, Left, Progress
from tests.elastic import journal
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess

TRAIN = SCRIPTS / "train_ids.py"
SAMPLES = 203
FOREVER = 1_000_000


@dataclass(frozen=True)
class Record:
    """One long run, rescaled all the time, and what it left behind."""

    directory: Path
    entered: list[Entered]
    workers: dict[str, list[object]]
    epochs: int
    rescales: int


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory, template: TemplateProcess) -> Iterator[Record]:
    directory = tmp_path_factory.mktemp("rescaled")
    settings = json.dumps({"optimizer": "sgd", "delay_s": 0.002})
    with Controller(directory, template) as c:
        for member in c.start(TRAIN, [settings], epochs=FOREVER):
            c.form([member], new=[member])
        rng = random.Random(5)  # noqa: S311 - a test's schedule
        sizes = [2, 4, 3, 1, 3, 2, 4, 2]
        rescales = 1
        for size in sizes:
            _rescale(c, settings, size, rng)
            rescales += 1
        # The leader alone goes.
        c.form(c.members[1:] + _joiners(c, settings, 1))
        # One dies without notice.
        victim = c.members[1]
        c.kill(victim)
        c.until(lambda: c.workers[victim].returncode is not None, "death noticed")
        c.form([m for m in c.members if m != victim], abandon=True)
        c.park()
        epoch = max(e["epoch"] for e in journal.entries(directory, "try"))
        last = c.start(TRAIN, [settings], count=3, epochs=epoch + 2)
        resumed = c.form(last, new=last)
        assert resumed[0].resumed_from.endswith(".bft")
        assert resumed[0].step > 0
        finished = c.finished()
        assert {f.samples for f in finished} == {SAMPLES * (epoch + 2)}
        yield Record(
            directory=directory,
            entered=[e for w in c.workers.values() for e in w.all(Entered)],
            workers={k: list(w.said) for k, w in c.workers.items()},
            epochs=epoch + 2,
            rescales=rescales + 3,
        )


def _joiners(c: Controller, settings: str, count: int) -> list[str]:
    if count <= 0:
        return []
    ids = c.start(TRAIN, [settings], count=count, epochs=FOREVER)
    c.warm(ids)
    return ids


def _rescale(c: Controller, settings: str, size: int, rng: random.Random) -> None:
    keep = c.members[:]
    while len(keep) > size:
        keep.remove(rng.choice(keep))
    c.form(keep + _joiners(c, settings, size - len(keep)))
    steps = c.workers[c.members[0]].all(Entered)[-1].step
    c.until(
        lambda: any(e["step"] > steps + 3 for e in journal.entries(c.directory, "commit")),
        "a few steps at this size",
    )


def test_each_sample_is_in_exactly_one_committed_update_per_epoch(record: Record) -> None:
    counts = journal.committed_ids(record.directory)
    assert sorted(counts) == list(range(record.epochs))
    for count in counts.values():
        assert sorted(count) == list(range(SAMPLES))
        assert set(count.values()) == {1}


def test_the_run_was_rescaled_often_and_at_all_sizes(record: Record) -> None:
    assert record.rescales >= 10
    assert {e.size for e in record.entered} == {1, 2, 3, 4}


def test_all_members_agree_at_the_end_of_every_generation(record: Record) -> None:
    ends = journal.entries(record.directory, "end")
    assert len({e["generation"] for e in ends}) >= record.rescales
    assert journal.disagreements(record.directory, "hash") == []


def test_parameters_are_those_of_a_run_at_fixed_size(
    record: Record, tmp_path_factory: pytest.TempPathFactory, template: TemplateProcess
) -> None:
    directory = tmp_path_factory.mktemp("fixed")
    with Controller(directory, template) as c:
        alone = c.begin(TRAIN, [json.dumps({"optimizer": "sgd"})], epochs=record.epochs)
        c.finished()
        assert c.workers[alone[0]].all(Progress)
    fixed = journal.result(directory)
    rescaled = journal.result(record.directory)
    for exact in ("lr", "updates", "steps", "samples"):
        assert rescaled[exact] == pytest.approx(fixed[exact], rel=1e-12), exact
    for close in ("parameters", "average"):
        for ours, theirs in zip(rescaled[close], fixed[close], strict=True):
            torch.testing.assert_close(
                torch.tensor(ours), torch.tensor(theirs), rtol=1e-3, atol=1e-4
            )


def test_leavers_say_so_and_exit_with_status_0(record: Record) -> None:
    left = [said for said in record.workers.values() if any(isinstance(m, Left) for m in said)]
    assert len(left) >= 8


def test_survivors_report_their_pause_and_joiners_none(record: Record) -> None:
    for said in record.workers.values():
        mine = [m for m in said if isinstance(m, Entered)]
        assert mine[0].pause_s == 0.0
        assert all(e.pause_s > 0 for e in mine[1:])


def test_everything_registered_travels_to_joiners(
    tmp_path: Path, template: TemplateProcess
) -> None:
    settings = json.dumps(
        {"optimizer": "adam", "norm": True, "dropout": 0.2, "epochs": FOREVER, "delay_s": 0.002}
    )
    with Controller(tmp_path, template) as c:
        first = c.start(TRAIN, [settings])
        others = c.start(TRAIN, [settings], count=2)
        c.form(first, new=[*first, *others])
        c.until(lambda: journal.entries(tmp_path, "commit"), "first steps")
        c.form([*first, *others])
        before = max(e["step"] for e in journal.entries(tmp_path, "commit"))
        c.until(
            lambda: max(e["step"] for e in journal.entries(tmp_path, "commit")) > before + 20,
            "an epoch at size 3",
        )
        c.form(others)
        c.park()
    ends = journal.entries(tmp_path, "end")
    assert {e["size"] for e in ends} == {1, 2, 3}
    # Adam's moments exist for all six parameters although joiners never made them.
    assert {e["moments"] for e in ends} == {6}
    assert journal.disagreements(tmp_path, "hash", "lr", "updates") == []


def test_shares_of_one_sample_are_avoided_for_batch_normalisation(
    tmp_path: Path, template: TemplateProcess
) -> None:
    settings = {"samples": 35, "batch": 16, "epochs": 2, "norm": True}  # remainder 3
    with Controller(tmp_path, template) as c:
        c.begin(TRAIN, [json.dumps(settings)], count=3)
        c.finished()
    counts = journal.committed_ids(tmp_path)
    assert all(sorted(c.elements()) == list(range(35)) for c in counts.values())
    assert journal.disagreements(tmp_path, "hash", "lr", "updates") == []


@pytest.mark.parametrize("loader_workers", [0, 1])
def test_more_workers_than_samples_in_a_batch(
    tmp_path: Path, template: TemplateProcess, loader_workers: int
) -> None:
    settings = {"samples": 23, "batch": 2, "epochs": 3, "loader_workers": loader_workers}
    with Controller(tmp_path, template) as c:
        c.begin(TRAIN, [json.dumps(settings)], count=3)
        c.finished()
    counts = journal.committed_ids(tmp_path)
    assert all(sorted(c.elements()) == list(range(23)) for c in counts.values())
    assert len(counts) == 3
    # Rank 2 never ran the script's body, yet its schedule and average are the others'.
    assert journal.disagreements(tmp_path, "hash", "lr", "updates") == []
    assert {e["updates"] for e in journal.entries(tmp_path, "end")} == {36}


def test_a_finished_run_runs_only_the_code_after_its_loops(
    tmp_path: Path, template: TemplateProcess
) -> None:
    settings = json.dumps({"epochs": 2})
    with Controller(tmp_path, template) as c:
        c.begin(TRAIN, [settings])
        c.finished()
        result = journal.result(tmp_path)
        tried = len(journal.entries(tmp_path, "try"))
        (tmp_path / "result.json").unlink()
        again = c.start(TRAIN, [settings], count=2)
        c.warm(again)
        c.members = []
        c.form(again)
        c.finished()
    assert journal.result(tmp_path) == result
    assert len(journal.entries(tmp_path, "try")) == tried
