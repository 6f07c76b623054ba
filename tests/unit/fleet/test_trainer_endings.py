"""How the book of trainers ends one: cancelled, given up, complete; and what it remembers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.elastic.worker import SPENT_LOGS, remove_spent_logs
from bftrainer.fleet.generations.members import Ended
from bftrainer.fleet.trainers.log_files import KEPT_TRIES, FailedTries
from bftrainer.fleet.trainers.record_updates import SAVE_GRACE_S, complete, save_grace_s
from bftrainer.fleet.wire.messages import DaemonMessage, KillWorker, WorkerReport
from bftrainer.ground import protocol
from bftrainer.journal.journal import Journal
from bftrainer.model.trainer import CheckpointContract, TrainerState
from tests.support.generations import offer
from tests.support.journals import journal_at
from tests.support.snapshots import record
from tests.unit.fleet.test_trainer_book import Site


class EndingSite(Site):
    """A book that remembers which workers were killed."""

    def _send(self, pilot_id: str, message: DaemonMessage, /) -> bool:
        self.killed = getattr(self, "killed", [])
        self.killed += [message.worker_id] if isinstance(message, KillWorker) else []
        return super()._send(pilot_id, message)

    @property
    def state(self) -> TrainerState:
        return self.book.records[self.trainer_id].state

    @property
    def reason(self) -> str:
        return self.book.records[self.trainer_id].reason

    def cancel(self, *, now: bool = False) -> None:
        self.book.cancel(self.trainer_id, now=now)

    def leave(self, worker_id: str, *, saved: bool = True) -> None:
        """A member does what a park wants."""
        machine = self.book.trainers[self.trainer_id].machine
        generation = machine.numbers.generation
        if saved:
            self.say(
                worker_id,
                protocol.Saved(generation=generation, step=10, samples=10, path="/c", wall_s=0.1),
            )
        self.say(worker_id, protocol.Left(generation=generation, step=10))
        self.book.on_exit(machine.crew.workers[worker_id].pilot_id, worker_id, 0, "")
        self.book.tick()

    def wait(self, for_s: float) -> None:
        """Let time pass on both clocks."""
        self.now_s += for_s
        self.steady_s += for_s


journal = journal_at(100.0)


def _training(tmp_path: Path, journal: Journal) -> EndingSite:
    site = EndingSite(tmp_path, journal)
    site.target("n1", "n2")
    site.enter()
    return site


def test_a_cancelled_trainer_saves_and_leaves(tmp_path: Path, journal: Journal) -> None:
    site = _training(tmp_path, journal)
    machine = site.machine
    members = machine.crew.members
    site.cancel()
    assert site.commit is not None
    assert site.commit.members == ()
    assert site.commit.saver == members[0]
    assert not site.state.is_final
    assert site.reason.startswith("Cancelling")
    assert set(site.book.occupancy().settled_until_s) == {site.trainer_id}
    site.target("n1", "n2", "n3")  # whatever decisions say
    site.leave(members[0])
    site.leave(members[1], saved=False)
    assert site.state is TrainerState.CANCELLED
    assert site.reason == "Cancelled by its user. Its state after step 10 is in its checkpoint."
    assert not site.killed
    assert not machine.crew.workers.keys() - set(members)


def test_one_that_does_not_save_in_time_is_killed(tmp_path: Path, journal: Journal) -> None:
    site = _training(tmp_path, journal)
    members = site.book.trainers[site.trainer_id].machine.crew.members
    site.cancel()
    site.wait(SAVE_GRACE_S - 1)
    site.book.tick()
    site.cancel()  # once more: no more time
    assert not site.state.is_final
    site.wait(1)
    site.book.tick()
    assert site.state is TrainerState.CANCELLED
    assert "It wrote no checkpoint when it was asked to" in site.reason
    assert set(members) <= set(site.killed)


def test_cancel_now_kills_also_one_that_is_saving(tmp_path: Path, journal: Journal) -> None:
    site = _training(tmp_path, journal)
    site.cancel()
    site.cancel(now=True)
    assert site.state is TrainerState.CANCELLED


def test_without_members_a_cancel_is_immediate(tmp_path: Path, journal: Journal) -> None:
    site = EndingSite(tmp_path, journal)
    site.target("n1")  # its worker starts
    site.cancel()
    assert (site.state, site.reason) == (TrainerState.CANCELLED, "Cancelled by its user.")


def test_members_that_are_lost_while_it_is_cancelled_end_it(
    tmp_path: Path, journal: Journal
) -> None:
    site = _training(tmp_path, journal)
    site.cancel()
    for node in ("n1", "n2"):
        site.book.on_agent_lost(f"p-{node}")
    site.book.tick()
    assert site.state is TrainerState.CANCELLED
    assert "the last one stays" in site.reason


def test_the_next_daemon_goes_on_cancelling(tmp_path: Path, journal: Journal) -> None:
    site = _training(tmp_path, journal)
    commit = site.commit
    assert commit is not None
    site.cancel()
    heir = EndingSite(tmp_path, journal)
    for member in commit.members:
        said = protocol.Entered(
            generation=commit.generation, attempt=1, rank=member.rank, size=2, step=10, epoch=0,
            samples=10, pause_s=0.0, transfer_s=0.0,
        )  # fmt: skip
        report = WorkerReport(
            worker_id=member.worker_id,
            trainer_id=site.trainer_id,
            pid=1,
            commit=protocol.to_body(commit),
            latest=[protocol.to_body(said)],
        )
        heir.book.reports.keep(f"p-{member.node}", [report])
    heir.book.adopt_all({f"p-{n}": offer(n) for n in ("n1", "n2")})
    heir.target("n1", "n2")
    heir.book.tick()
    assert heir.commit is not None
    assert heir.commit.members == ()
    assert not heir.state.is_final
    for member in commit.members:
        heir.leave(member.worker_id)
    assert heir.state is TrainerState.CANCELLED


def test_a_cancelled_trainer_without_workers_ends_under_the_next_daemon(
    tmp_path: Path, journal: Journal
) -> None:
    _training(tmp_path, journal).cancel()
    heir = EndingSite(tmp_path, journal)
    heir.book.adopt_all({})
    heir.book.tick()
    assert heir.state is TrainerState.CANCELLED


def test_what_counts_against_the_budget_outlives_the_daemon(
    tmp_path: Path, journal: Journal
) -> None:
    site = _training(tmp_path, journal)
    for number in range(1, 6):
        for node in ("n1", "n2"):
            site.book.on_agent_lost(f"p-{node}")  # nobody's failure
        site.wait(60.0)
        site.target("n1", "n2")
        site.enter(step=10)
        site.lose_worker("n1")
        if number == 5:
            break
        row = site.book.records[site.trainer_id].failing
        assert (row.count, row.best.step, row.node) == (number, 10, "n1")
        before, site = site, EndingSite(tmp_path, journal)
        site.now_s, site.steady_s = before.now_s, before.steady_s
        site.book.adopt_all({})
        assert site.book.records[site.trainer_id].failing == row
    assert site.state is TrainerState.FAILED
    assert "failure 5 in a row without getting beyond step 10 (failure_budget)" in site.reason
    assert "the last on n1. Read its log: " in site.reason


def test_a_program_has_said_itself_how_long_a_checkpoint_takes() -> None:
    assert save_grace_s(None) == SAVE_GRACE_S
    assert save_grace_s(CheckpointContract(grace_s=120.0)) == 120.0


@pytest.mark.parametrize(
    ("runtime", "epochs", "samples", "words"),
    [
        ("torch", 4, None, "Its script ended after 2 of 4 epochs (--epochs)"),
        ("torch", None, 900, "Its script ended after 200 of 900 samples (--samples)"),
        ("torch", 2, None, "Its training is complete."),
        ("torch", None, None, "Its training is complete."),
        ("command", 4, None, "Its training is complete."),
    ],
)
def test_work_that_was_not_done_is_not_called_complete(
    runtime: str, epochs: int | None, samples: int | None, words: str
) -> None:
    spec = replace(record().spec, runtime=runtime, epochs=epochs, samples=samples)
    assert complete(spec, Ended(step=20, epoch=2, samples=200)).startswith(words)


# ---- logs of failed tries ------------------------------------------------------------------


def test_the_first_and_the_last_logs_of_failed_tries_are_kept(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    tries, others = FailedTries(), [logs / "t1-2-1.log", logs / "t11-1-3.log", logs / "x.txt"]
    for path in others:
        path.touch()
    for number in range(1, 101):
        path = logs / f"t1-1-{number}.log"
        config = protocol.WorkerConfig(
            trainer_id="t1", worker_id=path.stem, node="n1", script="/s.py", log_path=str(path)
        )
        told = dict(tries.removed_by(config).environment)
        remove_spent_logs(str(path), told.get(SPENT_LOGS, ""))
        path.touch()
        path.with_stem(f"{path.stem}-1").touch()  # of the second worker of the node
        tries.add(str(path))
    left = {p.name for p in logs.glob("t1-1-*.log")}
    numbers = {1, *range(100 - KEPT_TRIES, 101)}
    assert left == {f"t1-1-{n}{s}.log" for n in numbers for s in ("", "-1")}
    assert all(path.exists() for path in others)


def test_nothing_beside_the_own_logs_is_removed(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    precious = tmp_path / "precious.log"
    precious.touch()
    (logs / "a.log").touch()
    remove_spent_logs(str(logs / "t1-1-9.log"), "../precious.log:*.log:[a].log:a:.")
    assert precious.exists()
    assert not (logs / "a.log").exists()  # named without its ending
    remove_spent_logs("", "")
    remove_spent_logs(str(tmp_path / "nowhere" / "t1.log"), "a.log")
