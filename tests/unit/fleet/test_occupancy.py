"""Which nodes decisions and accounts take for training: those of open trainers, no others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.fleet.trainers.occupancy import Occupancy
from bftrainer.ground import protocol
from bftrainer.journal.journal import Journal
from bftrainer.model.decision import Joining, Memory, Settings
from bftrainer.model.trainer import TrainerChange, TrainerState
from tests.support.snapshots import T0, Fold, held, idle_nodes, pilot, record, snapshot
from tests.unit.fleet.test_trainer_book import Site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with closing(Journal.open(tmp_path / "journal.db", clock=lambda: 100.0)) as journal:
        yield Site(tmp_path, journal)


def _exit(site: Site, *worker_ids: str) -> None:
    """Let members exit that have all come to the end of their training."""
    for worker_id in site.machine.crew.members:
        site.say(worker_id, protocol.Finished(generation=1, step=11, epoch=1, samples=11))
    for worker_id in worker_ids:
        site.book.on_exit(site.machine.crew.workers[worker_id].pilot_id, worker_id, 0, "")


def test_a_node_trains_until_its_trainer_has_ended(site: Site) -> None:
    site.target("n1", "n2")
    site.enter()
    first, second = site.machine.crew.members
    assert site.book.occupancy() == Occupancy(training={"n1": "t1", "n2": "t1"})

    _exit(site, first)
    assert site.book.records["t1"].state is TrainerState.FINISHED
    assert site.book.occupancy() == Occupancy(occupied={"n2": "t1"}), "its script still runs there"
    _exit(site, second)
    assert site.book.occupancy() == Occupancy()


def test_a_later_trainer_is_not_hidden_by_one_that_has_ended(site: Site) -> None:
    """Nodes are listed in the order of submission; the one that ended may be the later one."""
    earlier, spec = site.trainer_id, site.book.records[site.trainer_id].spec
    later = site.book.submit(replace(spec, checkpoint_dir=f"{spec.checkpoint_dir}-2")).trainer_id
    site.trainer_id = later
    site.target("n1")
    site.enter()
    _exit(site, *site.machine.crew.members)
    site.trainer_id = earlier
    site.target("n1")
    site.enter()
    assert site.book.occupancy().training == {"n1": earlier}


def test_a_held_trainer_occupies_its_nodes_until_it_has_saved(site: Site) -> None:
    site.target("n1")
    site.enter()
    site.book.change(site.trainer_id, TrainerChange(is_held=True))
    decided = {r.trainer_id for r in site.book.waiting.eligible()}
    assert site.book.occupancy(decided) == Occupancy(occupied={"n1": "t1"})
    assert site.book.occupancy() == Occupancy(training={"n1": "t1"}), "accounts count it"


def test_what_a_decision_keeps_as_it_is_takes_part_in_it(site: Site) -> None:
    site.target("n1")
    site.enter()
    site.book.cancel(site.trainer_id)
    assert site.book.occupancy({"t1"}).settled_until_s.keys() == {"t1"}
    assert not site.book.occupancy(()).settled_until_s


# ---- what decisions make of it ---------------------------------------------------------------


def test_a_waiting_trainer_keeps_the_node_of_one_that_has_ended() -> None:
    """A free node without an end in sight looks better than one whose pilot ends in four hours."""
    fold = Fold(memory=Memory(idle_seen={"n1": 3, "n2": 3}))
    pilots = [pilot("n1", end_s=T0 + 9000.0)]
    for second in range(60):
        fold.memory = replace(fold.memory, assignment=fold.memory.assignment or {"n1": "t2"})
        at_s = T0 + second
        seen = snapshot(idle_nodes(2), at_s=at_s)
        plan = fold.decide(seen, pilots, [record("t2", n_max=1)], at_s=at_s, occupied={"n1": "t1"})
        assert (plan.assignment, plan.claims, plan.releases) == ({"n1": "t2"}, (), ())


@pytest.mark.parametrize("is_shrinking", [True, False])
def test_a_pilot_stays_while_a_state_is_saved_there(*, is_shrinking: bool) -> None:
    fold = Fold()
    trainers, seen, pilots = [record("t1", n_max=1)], snapshot(idle_nodes(2)), held("n1", "n2")
    since_s = {"n2": T0 - 60.0}
    fold.memory = Memory(assignment={"n1": "t1"}, unused_since=since_s)
    training = {"n1": "t1", "n2": "t1"} if is_shrinking else {"n1": "t1"}
    occupied = {} if is_shrinking else {"n2": "t9"}
    plan = fold.decide(seen, pilots, trainers, training=training, occupied=occupied)
    assert (plan.assignment, plan.releases) == ({"n1": "t1"}, ())
    plan = fold.decide(seen, pilots, trainers, training={"n1": "t1"})
    assert [release.node for release in plan.releases] == ["n2"]


@pytest.mark.parametrize(("starts_on", "expected"), [("", "n1"), ("n2", "n2")])
def test_a_node_that_ends_soon_is_avoided_unless_a_worker_starts_on_it(
    starts_on: str, expected: str
) -> None:
    """Both end within T_fwd, n2 sooner; a node on which a worker starts is its trainer's."""
    settings, ends_s = Settings(reserve_nodes_per_type=0, t_fwd_s=120.0, gap_margin_s=0.0), 115.0
    fold = Fold(settings=settings)
    if starts_on:
        joining = Joining(since_s={starts_on: T0 - 20.0})
        fold.memory = Memory(assignment={starts_on: "t1"}, joining=joining)
    pilots = [pilot("n1", end_s=T0 + ends_s), pilot("n2", end_s=T0 + 90.0)]
    plan = fold.decide(snapshot(idle_nodes(2)), pilots, [record("t1", n_max=1)])
    assert plan.assignment == {expected: "t1"}
