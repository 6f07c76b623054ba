"""What the book of trainers keeps of those that have ended, or wait while others train."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.fleet.generations.generation import GenerationMachine
from bftrainer.fleet.generations.state import KEPT_GONE
from bftrainer.ground import protocol
from bftrainer.journal.journal import Journal
from bftrainer.model.trainer import TrainerState
from tests.integration.daemon_scripts import SLOW, trainer_spec
from tests.support.generations import Driver
from tests.unit.fleet.test_trainer_book import Site

MOST_BYTES = 5000  # of a trainer that has ended: its record, and where its workers were
TICKS = 40  # after each end


class LongSite(Site):
    """A book in which one trainer after the other trains."""

    def __init__(self, directory: Path, journal: Journal) -> None:
        super().__init__(directory, journal)
        self._directory = directory

    def submit(self) -> str:
        spec = trainer_spec(self._directory / "t", SLOW, n_max=4)
        self.trainer_id = self.book.submit(replace(spec, runtime="command")).trainer_id
        return self.trainer_id

    def finish(self, *nodes: str) -> None:
        """Train on nodes until rank 0 is done; the others have not ended yet."""
        self.target(*nodes)
        self.enter()
        generation = self.machine.numbers.generation
        done = protocol.Finished(generation=generation, step=11, epoch=1, samples=11)
        for worker_id in self.machine.crew.members:
            self.say(worker_id, done)
        self.exit(self.machine.crew.members[0])

    def exit(self, worker_id: str) -> None:
        self.book.on_exit(self.machine.crew.workers[worker_id].pilot_id, worker_id, 0, "")

    def live(self, lives: int) -> None:
        """Let trainers be submitted, train and end, each with a pilot of its own."""
        for _ in range(lives):
            self.submit()
            self.finish("n1")
            self.book.set_targets({})
            self.book.on_agent_lost("p-n1")
            self.sent.clear()
            for _ in range(TICKS):
                self.steady_s += 0.1
                self.book.tick()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[LongSite]:
    with closing(Journal.open(tmp_path / "journal.db", clock=lambda: 100.0)) as journal:
        yield LongSite(tmp_path, journal)


def test_the_machine_of_a_trainer_goes_with_its_last_worker(site: LongSite) -> None:
    site.finish("n1", "n2")
    ended, (_, last) = site.trainer_id, site.machine.crew.members
    site.book.tick()
    assert site.book.records[ended].state is TrainerState.FINISHED
    assert site.book.busy_pilots() == {"p-n2"}
    site.exit(last)
    waiting = site.submit()
    site.book.tick()
    assert list(site.book.trainers) == [waiting]
    assert not site.book.busy_pilots()
    site.book.on_body("p-n2", last, protocol.to_body(protocol.Warm(warm_up_s=1.0)))  # too late
    assert site.book.cancel(ended).state is TrainerState.FINISHED


def test_users_still_see_where_the_workers_of_an_ended_trainer_were(site: LongSite) -> None:
    site.finish("n1", "n2")
    members = site.machine.crew.members
    logs = Path(site.machine.identity.log_directory)
    logs.mkdir(parents=True)
    for worker_id in members:
        (logs / f"{worker_id}.log").touch()
    site.exit(members[1])
    site.book.tick()
    assert not site.book.trainers
    found = [(f.worker_id, f.node, f.rank) for f in site.book.log_files(site.trainer_id)]
    assert found == [(members[0], "n1", 0), (members[1], "n2", 1)]


def test_only_records_stay_of_those_that_have_ended(site: LongSite) -> None:
    site.live(6)  # fills caches
    few = _kept(lambda: site.live(6))
    many = _kept(lambda: site.live(42))  # many: connections are in it, too
    assert not [i for i in site.book.trainers if site.book.records[i].state.is_final]
    assert many - few < 36 * MOST_BYTES


def test_trainers_that_wait_note_nothing_of_others_pilots(site: LongSite) -> None:
    for _ in range(50):
        site.submit()

    def lose() -> None:
        for number in range(150):
            site.book.on_agent_lost(f"p{number}")
            site.book.on_agent_failed(f"p{number}", "FAILED")

    assert _kept(lose) < 50 * 1000


def test_a_trainer_that_waits_has_one_machine(site: LongSite) -> None:
    """The copy that a record of its changes begins with is made at the first change."""
    before = _machines()
    for _ in range(50):
        site.submit()
    site.book.adopt_all({})
    assert _machines() - before == 50


def test_a_trainer_forgets_workers_that_are_long_gone() -> None:
    driver = Driver()
    for number in range(KEPT_GONE + 50):
        driver.target(f"n{number}")
        driver.target()
    assert driver.machine.numbers.started_workers == KEPT_GONE + 50
    assert len(driver.machine.crew.workers) <= KEPT_GONE + 1


def _machines() -> int:
    gc.collect()
    return sum(issubclass(type(one), GenerationMachine) for one in gc.get_objects())


def _kept(call: Callable[[], None]) -> int:
    """Return how many bytes more are kept after a call."""
    gc.collect()
    tracemalloc.start()
    try:
        call()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
