"""Trainers that never ran are kept short; who asks for them sees no other trainer than before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from bftrainer.fleet.trainers.remainder import CLEARED_AFTER_S, CLEARED_AT_ONCE
from bftrainer.journal import Journal, journal, projection
from bftrainer.model.errors import BftError
from bftrainer.model.trainer import TrainerState
from tests.support.incompressible import incompressible
from tests.support.waiting import wait_for
from tests.unit.api.test_volume import RANDOM, Site, peer

LARGE = incompressible(4_000, RANDOM)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, limit_mb=10.0)
    yield made
    made.journal.close()


def cancelled(site: Site) -> str:
    trainer_id = site.submit(environment=LARGE, args=("--lr", "1"), account="physics")
    site.service.cancel(trainer_id, peer("ann"))
    return trainer_id


def after_a_while(site: Site) -> None:
    site.book.tick()  # lets go of what has ended
    site.now_s += CLEARED_AFTER_S
    site.book.clear()


def test_of_a_trainer_that_never_ran_all_stays_but_what_workers_need(site: Site) -> None:
    trainer_id = cancelled(site)
    before = site.book.records[trainer_id]
    site.book.clear()
    assert site.book.records[trainer_id] is before, "it may still be submitted again"
    after_a_while(site)
    spec = replace(before.spec, environment=(), args=())
    kept = replace(before, spec=spec, cleared_s=site.now_s)
    assert site.book.records[trainer_id] == kept
    assert site.journal.trainers() == (kept,)
    assert site.journal.verify() == 4  # its start, submission, end and this
    site.book.clear()
    assert site.journal.verify() == 4, "once"
    with pytest.raises(BftError) as caught:
        site.service.requeue(trainer_id, peer("ann"))
    assert caught.value.code == "BFT-1087"


def test_who_runs_has_run_or_waits_is_whole(site: Site) -> None:
    waiting = site.submit(environment=LARGE)
    ran, short = cancelled(site), site.submit()
    site.service.cancel(short, peer("ann"))
    site.book.records[ran] = replace(site.book.records[ran], started_s=1.0)
    after_a_while(site)
    for trainer_id in (waiting, ran, short):
        assert site.book.records[trainer_id].cleared_s is None
    assert site.book.records[waiting].state is TrainerState.QUEUED
    site.service.requeue(ran, peer("ann"))


def test_many_are_shortened_in_turns(site: Site) -> None:
    for _ in range(CLEARED_AT_ONCE + 3):
        cancelled(site)
    after_a_while(site)
    counted = [r for r in site.book.records.values() if r.cleared_s is not None]
    assert len(counted) == CLEARED_AT_ONCE
    site.book.clear()
    assert all(record.cleared_s is not None for record in site.book.records.values())
    [first, second] = site.journal.entries("cleared")
    assert (len(first.trainers), len(second.trainers)) == (CLEARED_AT_ONCE, 3)


def test_a_daemon_removes_their_texts_while_it_runs(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled(site)
    monkeypatch.setattr(journal, "SWEPT_EVERY_S", 0.0)
    after_a_while(site)
    site.journal.write_beside()
    engine = sa.create_engine(f"sqlite:///{site.path}")

    def is_gone() -> bool:
        with engine.connect() as connection:
            return not connection.execute(sa.select(projection.texts)).all()

    wait_for(is_gone, what="the environment is removed")
    engine.dispose()
    site.journal.close()
    with Journal.open(site.path, clock=lambda: 0.0) as again:
        assert again.verify() == 4
    site.journal = Journal.open(site.path, clock=lambda: 0.0)
