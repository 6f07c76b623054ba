"""Trainers that wait cost a tick nothing, and whatever happens to one is seen in the next."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.fleet.generations.generation import GenerationMachine
from bftrainer.journal.journal import Journal
from bftrainer.model.trainer import TrainerChange, TrainerState
from tests.integration.daemon_scripts import SLOW, trainer_spec
from tests.support.journals import journal_at
from tests.unit.fleet.test_trainer_book import Site

journal = journal_at(100.0, begins=True)
N_WAITING = 40


@pytest.fixture
def site(tmp_path: Path, journal: Journal) -> Site:
    return Site(tmp_path, journal)


def is_resting(site: Site) -> bool:
    return site.book.trainers[site.trainer_id].is_resting


def test_a_tick_asks_no_waiting_trainer_twice(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = trainer_spec(tmp_path / "more", SLOW, n_max=4)
    for number in range(N_WAITING):
        site.book.submit(replace(spec, name=f"w{number}"))
    looks: list[GenerationMachine] = []
    has_workers = vars(GenerationMachine)["has_workers"].fget

    def counted(machine: GenerationMachine) -> bool:
        looks.append(machine)
        return bool(has_workers(machine))

    monkeypatch.setattr(GenerationMachine, "has_workers", property(counted))
    site.book.tick()
    assert len(looks) >= N_WAITING
    looks.clear()
    site.book.tick()
    site.book.set_targets({})
    assert looks == []
    site.target("n1")
    site.book.tick()
    assert {machine.identity.trainer_id for machine in looks} <= {site.trainer_id}


def test_what_happens_to_a_trainer_ends_its_rest(site: Site) -> None:
    site.book.tick()
    assert is_resting(site)
    site.target("n1")
    assert not is_resting(site)
    site.book.tick()
    assert not is_resting(site), "it has a node"
    site.enter()
    site.target()
    site.book.tick()
    assert not is_resting(site), "it is about to save and leave"


def test_a_new_record_ends_its_rest(site: Site) -> None:
    site.book.tick()
    site.book.change(site.trainer_id, TrainerChange(is_held=True))
    assert not is_resting(site)
    site.book.tick()
    assert is_resting(site)


def test_a_new_machine_ends_its_rest(site: Site) -> None:
    """The count of its stimuli begins anew, and may come to what it was."""
    site.book.tick()
    trainer = site.book.trainers[site.trainer_id]
    assert is_resting(site)
    n_stimuli = trainer.log.n_stimuli
    site.book._reopen(trainer)
    trainer.log.n_stimuli = n_stimuli
    assert not is_resting(site)


def test_a_trainer_with_a_time_limit_never_rests(site: Site) -> None:
    trainer = site.book.trainers[site.trainer_id]
    spec = replace(trainer.record.spec, time_limit_s=50.0)
    site.book._replace(trainer, spec=spec, started_s=site.now_s, state=TrainerState.PARKED)
    site.book.tick()
    assert not is_resting(site)
    site.now_s += 51.0
    site.book.tick()
    assert site.book.records[site.trainer_id].overtime_s == site.now_s
