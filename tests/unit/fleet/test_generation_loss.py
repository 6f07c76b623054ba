"""How generations form when members die, hang or fall silent."""

from __future__ import annotations

import pytest

from bftrainer.fleet.generations.generation import READY_TIMEOUT_S
from bftrainer.fleet.generations.members import (
    LEAVER_PATIENCE_S,
    Announced,
    Parked,
    Rescaled,
    WorkerFailed,
)
from bftrainer.fleet.generations.state import INTERRUPTED_PATIENCE_S, LEAVE_PATIENCE_S
from bftrainer.ground import protocol
from tests.support.generations import Driver

# ---- loss ---------------------------------------------------------------------------------


def test_a_dead_member_is_left_behind_at_once() -> None:
    d = Driver()
    d.form("n1", "n2", "n3")
    d.target("n1", "n2")
    d.ready()
    d.enter()
    d.exit(d.on("n2"), -9, "out of memory")
    (failed,) = d.wanted(WorkerFailed)
    assert (failed.node, failed.cause) == ("n2", "out of memory")
    assert set(d.told(protocol.Prepare)) == {d.on("n1")}
    d.ready()
    assert d.commit().abandon
    (done,) = d.wanted(Rescaled, d.enter(step=5))
    assert (done.size_before, done.size, done.reason) == (2, 1, "a member was lost")


def test_a_lost_agent_takes_its_worker_along_and_is_nobodys_failure() -> None:
    d = Driver()
    d.form("n1", "n2")
    d.lose_agent("n1")
    assert not d.wanted(WorkerFailed)
    d.ready()
    d.enter()
    assert d.nodes() == ["n2"]
    assert not d.started()


def test_the_loss_of_all_members_parks_without_a_save() -> None:
    d = Driver(n_min=1)
    d.form("n1")
    d.lose_agent("n1")
    assert d.wanted(Parked) == [
        Parked(generation=1, size_before=1, is_saved=False, reason="all members were lost")
    ]


def test_a_loss_below_n_min_parks_the_rest_without_waiting() -> None:
    d = Driver(n_min=2)
    d.form("n1", "n2")
    d.lose_agent("n2")
    commit = d.told(protocol.Commit)[d.on("n1")]
    assert (commit.members, commit.abandon) == ((), True)


def test_warm_joiners_take_the_place_of_the_lost_without_a_window() -> None:
    d = Driver(join_window_s=10.0)
    d.form("n1", "n2")
    d.target("n1", "n2", "n3", "n4")
    d.warm("n3")
    assert d.machine.forming is None
    d.lose_agent("n2")
    assert set(d.told(protocol.Prepare)) == {d.on("n1"), d.on("n3")}


def test_a_death_before_commit_is_another_attempt() -> None:
    d = Driver()
    d.form("n1", "n2", "n3")
    d.target("n1", "n2", "n3", "n4")
    d.warm("n4")
    d.ready(skip=["n2"])
    d.lose_agent("n2")
    assert not d.wanted(Announced)  # the number is in use already
    prepare = d.told(protocol.Prepare)
    assert {p.attempt for p in prepare.values()} == {2}
    assert set(prepare) == {d.on("n1"), d.on("n3"), d.on("n4")}
    stale = protocol.Ready(generation=2, attempt=1, store_port=4001)
    assert not d.say(d.on("n1"), stale)
    d.ready()
    commit = d.commit()
    assert (commit.generation, commit.attempt, commit.store_port) == (2, 2, 4002)
    assert commit.abandon  # a member died: no boundary will come
    d.enter()
    assert d.nodes() == ["n1", "n3", "n4"]


def test_a_joiner_that_dies_before_commit_does_not_break_the_members() -> None:
    d = Driver()
    d.form("n1")
    d.target("n1", "n2")
    d.warm("n2")
    d.exit(d.on("n2"), -9)
    assert d.machine.forming is not None
    assert d.machine.forming.attempt == 2
    d.ready()
    assert not d.commit().abandon


def test_a_death_after_commit_is_another_generation() -> None:
    d = Driver()
    d.form("n1", "n2")
    d.target("n1", "n2", "n3")
    d.warm("n3")
    d.ready()
    d.exit(d.on("n1"), -9)
    assert d.wanted(Announced) == [Announced(generation=3)]
    forming = d.machine.forming
    assert forming is not None
    assert forming.roster == (d.on("n2"), d.on("n3"))  # each once
    d.ready()
    assert d.commit().abandon
    d.enter()
    assert d.nodes() == ["n2", "n3"]


def test_a_joiner_that_dies_after_commit_leaves_the_members_together() -> None:
    d = Driver()
    d.form("n1", "n2")
    d.target("n1", "n2", "n3")
    d.warm("n3")
    d.ready()
    d.enter(skip=["n3", "n2"])
    d.lose_agent("n3")
    d.ready()
    assert d.commit().abandon
    (done,) = d.wanted(Rescaled, d.enter())
    assert (done.generation, done.nodes) == (3, ("n1", "n2"))


def test_a_leaver_that_dies_after_commit_changes_nothing() -> None:
    d = Driver()
    d.form("n1", "n2")
    d.target("n1")
    d.ready()
    assert d.lose_agent("n2") == []
    d.enter()
    assert (d.nodes(), d.machine.numbers.generation) == (["n1"], 2)


def test_members_that_wait_in_vain_for_a_lost_leaver_abandon_it() -> None:
    d = Driver()
    d.form("n1", "n2", "n3")
    d.target("n1", "n2")
    d.ready()
    d.lose_agent("n3")  # it was committed to leave at a boundary it never reaches
    d.wait(LEAVER_PATIENCE_S / 2)
    assert d.machine.forming is not None
    assert d.machine.forming.generation == 2
    d.wait(LEAVER_PATIENCE_S)
    d.ready()
    assert d.commit().abandon
    d.enter()
    assert (sorted(d.nodes()), d.machine.numbers.generation) == (["n1", "n2"], 3)


def test_a_union_larger_than_n_max_is_cut() -> None:
    d = Driver(n_max=2)
    d.form("n1", "n2")
    d.target("n1", "n3")
    d.ready()
    d.enter()
    d.warm("n3")
    d.ready()
    d.enter(skip=["n3"])
    d.interrupted("n1", 3)
    d.wait(INTERRUPTED_PATIENCE_S + 0.1)
    forming = d.machine.forming
    assert forming is not None
    assert forming.roster == (d.on("n1"), d.on("n3"))


# ---- broken without a death ------------------------------------------------------------------


def test_an_interruption_waits_for_its_cause() -> None:
    d = Driver()
    d.form("n1", "n2")
    assert not d.interrupted("n1", 1)
    assert not d.wait(INTERRUPTED_PATIENCE_S)
    d.wait(0.1)
    assert len(d.told(protocol.Prepare)) == 2
    d.ready()
    assert d.commit().abandon
    d.enter()
    assert not d.wait(INTERRUPTED_PATIENCE_S + 1)


def test_an_interruption_whose_cause_shows_up_is_over_with_it() -> None:
    d = Driver()
    d.form("n1", "n2")
    d.interrupted("n1", 1)
    d.lose_agent("n2")
    d.ready()
    d.wait(INTERRUPTED_PATIENCE_S + 5)  # a long entry is no second interruption
    d.enter()
    assert d.machine.numbers.generation == 2


def test_an_interruption_before_commit_makes_the_switch_immediate() -> None:
    d = Driver()
    d.form("n1", "n2")
    d.target("n1", "n2", "n3")
    d.warm("n3")
    d.interrupted("n1", 1)
    d.ready()
    assert d.commit().abandon
    d.wait(INTERRUPTED_PATIENCE_S + 5)
    d.enter()
    assert d.machine.numbers.generation == 2


def test_what_is_said_of_an_older_generation_is_history() -> None:
    d = Driver()
    d.form("n1", "n2")
    d.target("n1", "n2", "n3")
    d.warm("n3")
    d.ready()
    d.interrupted("n1", 1)
    assert not d.wait(INTERRUPTED_PATIENCE_S + 1)
    d.enter()
    d.interrupted("n1", 1)
    assert not d.wait(INTERRUPTED_PATIENCE_S + 1)


def test_a_committed_generation_that_cannot_form_is_replaced() -> None:
    d = Driver()
    d.form("n1")
    d.target("n1", "n2")
    d.warm("n2")
    d.ready()
    d.interrupted("n1", 2)
    d.wait(INTERRUPTED_PATIENCE_S + 0.1)
    assert d.announced() == [1, 2, 3]


def test_an_interruption_dies_with_its_generation() -> None:
    d = Driver(join_window_s=5.0)
    d.form("n1")
    d.interrupted("n1", 1)
    d.lose_agent("n1")
    d.target("n2", "n3")
    d.now_s += 60.0
    d.warm("n2")
    assert d.machine.forming is None  # the window of a fresh start
    d.warm("n3")
    d.ready()
    assert not d.commit().abandon


def test_a_silent_worker_is_killed() -> None:
    d = Driver()
    d.form("n1", "n2")
    silent = d.on("n2")
    d.target("n1", "n2", "n3")
    d.warm("n3")
    d.ready(skip=["n2"])
    assert not d.wait(READY_TIMEOUT_S)
    d.wait(0.1)
    assert d.killed() == {silent: "does not answer"}
    d.wait(0.1)
    assert set(d.told(protocol.Prepare)) == {d.on("n1"), d.on("n3")}
    d.ready()
    assert d.commit().abandon
    assert not d.exit(silent, -9)


def test_a_first_rank_without_a_store_is_killed() -> None:
    d = Driver()
    d.target("n1", "n2")
    d.warm("n1", "n2")
    first = d.on("n1")
    for worker_id in (first, d.on("n2")):
        d.say(worker_id, protocol.Ready(generation=1, attempt=1, store_port=0))
    d.wait(READY_TIMEOUT_S + 0.1)
    assert d.killed() == {first: "does not answer"}
    d.wait(0.1)
    assert d.told(protocol.Prepare)[d.on("n2")].open_store


@pytest.mark.parametrize("has_left", [True, False])
def test_a_leaver_that_hangs_is_killed(*, has_left: bool) -> None:
    d = Driver()
    d.form("n1", "n2")
    leaver = d.on("n2")
    d.target("n1")
    d.ready()
    if has_left:
        d.say(leaver, protocol.Left(generation=2, step=1))
    member = d.commit().members[0]
    d.say(
        member.worker_id,
        protocol.Entered(
            generation=2, attempt=1, rank=0, size=1, step=1, epoch=0, samples=1, pause_s=0.0,
            transfer_s=0.0,
        ),
    )  # fmt: skip
    assert d.nodes() == ["n1"]
    assert not d.wait(LEAVE_PATIENCE_S)
    assert d.killed(d.wait(0.1)) == {leaver: "stays on"}
    d.target("n1", "n2")
    assert d.started() == ["n2"]


def test_a_member_that_hangs_while_parking_is_killed() -> None:
    d = Driver()
    d.form("n1")
    hanging = d.on("n1")
    d.target()
    d.wait(1.0)
    d.wait(LEAVE_PATIENCE_S + 0.1)
    assert d.killed() == {hanging: "stays on"}
    assert d.wanted(Parked)
