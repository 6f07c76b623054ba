"""Rescales as data: what a log records, and what repeating it shows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.cli.main import main
from bftrainer.fleet.generations import stimuli
from bftrainer.fleet.generations.members import Instruction
from bftrainer.fleet.generations.rescale_log import (
    KIND,
    MIN_QUIET,
    RescaleLog,
    RescaleRecord,
    RescaleStep,
    repeat,
    timeline,
)
from bftrainer.ground import protocol
from bftrainer.journal.journal import Journal
from bftrainer.model.canonical import encode
from tests.support.generations import Driver


class LoggedDriver(Driver):
    """The driver with a log between it and the machine."""

    def __init__(self, *, most_steps: int = 1000) -> None:
        super().__init__()
        self.records: list[RescaleRecord] = []
        self.rescale_log = RescaleLog(self.machine, self.records.append, most_steps)

    def _handle(self, stimulus: stimuli.Stimulus) -> list[Instruction]:
        self.new = self.rescale_log.handle(stimulus, self.now_s)
        self.log += self.new
        return self.new


def test_times_of_another_policy_are_repeated() -> None:
    d = LoggedDriver()
    d.target("n1")
    slow = d.on("n1")
    d._handle(stimuli.LimitsSet(join_window_s=0.0, start_timeout_s=5.0, no_progress_s=7.0))
    assert (d.machine.patience.join_window_s, d.machine.stall.lease_s) == (0.0, 7.0)
    d.wait(5.1)  # 60 s before
    assert d.killed() == {slow: "too slow to start"}
    d.wait(1.0)  # the back-off
    d.form("n1")
    assert d.records
    for record in d.records:
        steps = list(repeat(record))
        assert all(step.is_equal for step in steps)
        assert timeline(steps)


def test_a_start_and_a_grow_are_a_record_each() -> None:
    d = LoggedDriver()
    d.form("n1")
    assert len(d.records) == 1
    for step in range(1, 6):
        d.progress("n1", step)
        d.wait(0.2)
    assert len(d.records) == 1
    d.form("n1", "n2")
    start, grow = d.records
    assert start.machine.crew.workers == {}
    assert len(grow.machine.crew.members) == 1
    for record in d.records:
        again = list(repeat(record))
        assert all(one.is_equal for one in again)
        assert [one.step for one in again] == list(record.steps)
    assert isinstance(grow.steps[-1].stimulus, stimuli.WorkerMessage)
    assert isinstance(grow.steps[-1].stimulus.message, protocol.Entered)


def test_no_secret_is_recorded() -> None:
    d = LoggedDriver()
    d.form("n1", "n2")
    token = d.commit().token
    assert d.machine.identity.commit_key
    written = encode(d.records[0]).decode()
    assert d.records[0].machine.identity.commit_key == ""
    assert token not in written
    assert token not in "\n".join(timeline(list(repeat(d.records[0]))))


def test_quiet_times_fill_no_memory() -> None:
    d = LoggedDriver()
    d.form("n1")
    for _ in range(5 * MIN_QUIET):
        d.wait(0.2)
    d.target("n1", "n2")
    d.warm("n2")
    d.ready()
    d.enter()
    assert len(d.records) == 2
    assert len(d.records[1].steps) < MIN_QUIET + 20


def test_a_change_that_does_not_end_is_recorded_in_parts() -> None:
    d = LoggedDriver(most_steps=10)
    d.target("n1")
    for _ in range(25):
        d.wait(0.1)
    assert [len(r.steps) for r in d.records] == [10]  # the others had no consequence yet
    d.warm("n1")
    d.ready()
    d.enter()
    assert all(one.is_equal for record in d.records for one in repeat(record))


def test_a_machine_that_fails_leaves_a_record() -> None:
    d = LoggedDriver()
    d.target("n1")
    with pytest.raises(KeyError):
        d._handle(stimuli.WorkerMissing(worker_id="nobody"))
    (record,) = d.records
    assert record.steps[-1].stimulus == stimuli.WorkerMissing(worker_id="nobody")
    *before, last = repeat(record)
    assert all(one.is_equal for one in (*before, last))
    assert last.answer == "raised KeyError"
    assert "raised KeyError" in timeline([*before, last])[-1]


def test_the_verb_names_the_step_that_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    d = LoggedDriver()
    d.form("n1", "n2")
    (record,) = d.records
    at = next(i for i, s in enumerate(record.steps) if s.answer)
    steps = list(record.steps)
    steps[at] = RescaleStep(at_s=steps[at].at_s, stimulus=steps[at].stimulus, answer="other")
    path = tmp_path / "journal.db"
    with Journal.open(path, clock=lambda: 5.0) as journal:
        journal.begin_incarnation()
        good = journal.append(KIND, record)
    assert main(["replay", str(path)]) == 0
    assert "1 of 1 rescale is equal" in capsys.readouterr().out
    with Journal.open(path, clock=lambda: 5.0) as journal:
        bad = journal.append(KIND, replace(record, steps=tuple(steps)))
        journal.append(KIND, {"trainer_id": "t1", "form": "of another release"})
    assert main(["replay", str(path), "--json"]) == 8
    answer = json.loads(capsys.readouterr().out)
    assert (answer["rescales"], answer["rescales_equal"]) == (2, 1)
    assert answer["rescales_of_another_release"] == 1
    assert answer["rescales_differing"] == [{"seq": bad, "trainer_id": "t1", "step": at + 1}]
    assert main(["replay", str(path), "--rescale", str(good)]) == 0
    shown = capsys.readouterr().out
    assert "Prepare" in shown
    assert "DIFFERS" not in shown
    assert main(["replay", str(path), "--rescale", "99"]) == 2
    assert "BFT-1042" in capsys.readouterr().err
