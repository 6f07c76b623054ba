"""Trials in the book of trainers: rungs, budgets that grow, reports in the journal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.fleet.wire.messages import KillWorker, StartWorker
from bftrainer.ground import protocol
from bftrainer.ground.protocol import Report, Reported
from bftrainer.journal.journal import Journal
from bftrainer.model.study import TrialTag
from bftrainer.model.trainer import TrainerChange, TrainerState
from tests.support.journals import journal_at
from tests.unit.fleet.test_trainer_book import Site, _entered

journal = journal_at(100.0)


@pytest.fixture
def site(tmp_path: Path, journal: Journal) -> Site:
    site = Site(tmp_path, journal)
    spec = site.book.records[site.trainer_id].spec
    tag = TrialTag(study="s", number=0, most=9)
    trial = replace(spec, epochs=1, checkpoint_dir=str(tmp_path / "trial"), trial=tag)
    site.trainer_id = site.book.submit(trial).trainer_id
    return site


def _end(site: Site, worker_id: str, generation: int) -> None:
    """Let a worker finish the first epoch and exit."""
    site.say(worker_id, protocol.Finished(generation=generation, step=11, epoch=1, samples=11))
    site.book.on_exit(site.machine.crew.workers[worker_id].pilot_id, worker_id, 0, "")


def _started(site: Site) -> list[str]:
    return [m.config["worker_id"] for _, m in site.sent if isinstance(m, StartWorker)]


def test_a_trial_at_its_rung_leaves_its_nodes_and_goes_on_with_new_workers(site: Site) -> None:
    site.target("n1")
    site.enter()
    commit = site.commit
    assert commit is not None
    _end(site, commit.members[0].worker_id, commit.generation)
    record = site.book.records[site.trainer_id]
    assert (record.state, record.rung_s, record.progress.epoch) == (TrainerState.PARKED, 100.0, 1)
    assert site.trainer_id in site.book.waiting.withheld()
    assert site.trainer_id not in site.book.occupancy().training.values()
    site.target("n1")
    assert not site.machine.has_workers, "it may have no nodes"

    site.book.change(site.trainer_id, TrainerChange(budget=3))
    assert site.book.records[site.trainer_id].rung_s is None
    site.target("n1")
    assert len(set(_started(site))) == len(_started(site)) == 2
    later = site.form()
    assert later.generation > commit.generation


def test_others_of_its_workers_may_leave_in_peace(site: Site) -> None:
    site.target("n1", "n2")
    commit = site.form()
    first, slow = commit.members
    site.say(first.worker_id, _entered(first, commit))
    done = protocol.Finished(generation=commit.generation, step=11, epoch=1, samples=11)
    site.say(slow.worker_id, done)
    _end(site, first.worker_id, commit.generation)
    site.say(slow.worker_id, _entered(slow, commit))  # its word comes late
    assert site.book.records[site.trainer_id].state is TrainerState.PARKED
    killed = [m.worker_id for _, m in site.sent if isinstance(m, KillWorker)]

    site.book.change(site.trainer_id, TrainerChange(budget=3))
    site.target("n1", "n2")
    assert len(_started(site)) == 2, "no worker starts beside one that still leaves"
    assert slow.worker_id not in killed
    site.book.on_exit(site.machine.crew.workers[slow.worker_id].pilot_id, slow.worker_id, 0, "")
    changes = site.changes
    site.book.tick()
    assert site.changes > changes, "a decision gives it nodes"
    site.target("n1", "n2")
    assert len(set(_started(site))) == len(_started(site)) == 4


def test_a_flood_of_reports_is_written_now_and_then(site: Site, journal: Journal) -> None:
    site.target("n1")
    site.enter()
    commit = site.commit
    assert commit is not None
    worker_id, reports = commit.members[0].worker_id, list[Report]()
    for step in range(100):
        reports.append(Report(value=float(step), step=step, samples=step))
        said = Reported(generation=commit.generation, reports=tuple(reports[-32:]))
        site.say(worker_id, said)
    assert site.book.records[site.trainer_id].reports[-1].value == 99.0
    assert _written(journal) == 1
    site.steady_s += 5.0
    site.book.tick()
    assert _written(journal) == 2
    site.steady_s += 5.0
    site.book.tick()
    assert _written(journal) == 2
    (record,) = [r for r in journal.trainers() if r.trainer_id == site.trainer_id]
    assert record.reports == site.book.records[site.trainer_id].reports


def _written(journal: Journal) -> int:
    return len(list(journal.entries("reported")))
