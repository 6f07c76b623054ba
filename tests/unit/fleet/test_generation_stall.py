"""Workers that answer but do not train: the no-progress lease, and who is to blame."""

from __future__ import annotations

from bftrainer.fleet.generations.failures import Stall
from bftrainer.fleet.generations.members import Kill, WorkerFailed
from bftrainer.ground.protocol import Commit
from tests.support.generations import Driver

LEASE_S = 100.0


def _stalling() -> Driver:
    d = Driver()
    d.machine.stall = Stall(LEASE_S)
    d.form("n1", "n2", "n3")
    return d


def test_a_generation_without_steps_is_formed_anew() -> None:
    d = _stalling()
    d.progress("n1", 1)
    assert not d.wait(LEASE_S)
    d.wait(1.0)
    d.ready()
    assert d.commit().abandon
    assert len(d.commit().members) == 3
    d.enter(step=1)
    assert not d.wait(LEASE_S)  # it has a lease of its own


def test_who_does_not_act_upon_the_commit_is_killed_and_counts_as_a_failure() -> None:
    d = _stalling()
    d.wait(LEASE_S + 1)
    d.ready()
    d.enter(skip=("n2",))
    hung = d.on("n2")
    out = d.wait(LEASE_S + 1)
    assert [k.worker_id for k in d.wanted(Kill, out)] == [hung]
    (failed,) = d.wanted(WorkerFailed, out)
    assert "no_progress_s" in failed.cause
    assert d.machine.failures.row.count == 1
    d.ready()
    assert hung not in [m.worker_id for m in d.commit().members]


def test_a_worker_whose_collective_broke_is_not_to_blame() -> None:
    d = _stalling()
    d.wait(LEASE_S + 1)
    d.ready()
    generation = d.commit().generation
    d.enter(skip=("n1", "n2"))
    d.interrupted("n1", generation)
    hung = d.on("n2")
    out = d.wait(LEASE_S + 1)
    assert [k.worker_id for k in d.wanted(Kill, out)] == [hung]


def test_without_a_lease_nothing_happens() -> None:
    d = Driver()
    d.form("n1", "n2")
    d.log.clear()
    assert not d.wait(1e6)
    assert not d.told(Commit, d.log)


def test_a_planned_change_that_a_hung_member_holds_up_costs_the_others_nothing() -> None:
    d = _stalling()
    d.target("n1", "n2", "n3", "n4")
    d.warm("n4")
    d.ready()
    assert not d.commit().abandon
    out = d.wait(LEASE_S + 1)  # n2 hangs, so nobody gets to the boundary
    assert not d.wanted(Kill, out)
    d.ready()
    assert d.commit().abandon
    hung = d.on("n2")
    d.enter(skip=("n2",))
    out = d.wait(LEASE_S + 1)
    assert [k.worker_id for k in d.wanted(Kill, out)] == [hung]


def test_a_worker_that_hangs_while_it_shall_leave_keeps_nobody() -> None:
    d = _stalling()
    d.target("n1", "n2")
    d.ready()  # n3 hangs and shall leave
    assert not d.wanted(Kill, d.wait(LEASE_S + 1))
    d.ready()
    commit = d.commit()
    assert commit.abandon
    assert [m.node for m in commit.members] == ["n1", "n2"]


def test_a_park_does_not_wait_for_a_hung_member() -> None:
    d = _stalling()
    d.machine.patience.leave_patience_s = 1e6
    d.target()
    assert not d.commit().abandon
    assert not d.wanted(Kill, d.wait(LEASE_S + 1))
    commit = d.commit()
    assert commit.abandon
    assert not commit.members
    for node in ("n1", "n2"):
        d.leave(d.on(node), commit.generation)
    hung = d.on("n3")
    out = d.wait(LEASE_S + 1)
    assert [k.worker_id for k in d.wanted(Kill, out)] == [hung]
    d.exit(hung, -9)
    assert not d.machine.crew.members
    assert not d.machine.course.is_parking
