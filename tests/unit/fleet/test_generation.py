"""How generations form as planned: start, grow, shrink, park, resume."""

from __future__ import annotations

import pytest

from bftrainer.fleet.generations.members import (
    Announced,
    Parked,
    Rescaled,
    StartWorkerOn,
    WorkerFailed,
)
from bftrainer.ground import protocol
from tests.support.generations import Driver

# ---- start -----------------------------------------------------------------------------


def test_a_start_from_offer_to_entered() -> None:
    d = Driver(last_generation=6, incarnation=3)
    d.target("n1")
    assert d.new == [
        StartWorkerOn(pilot_id="p-n1", worker_id="t1-3-1", node="n1", address="addr-n1")
    ]
    d.warm("n1")
    assert d.new[0] == Announced(generation=7)  # durable before anybody hears of it
    prepare = d.told(protocol.Prepare)
    assert prepare == {"t1-3-1": protocol.Prepare(generation=7, attempt=1, open_store=True)}
    d.ready()
    commit = d.told(protocol.Commit)["t1-3-1"]
    assert len(commit.token) == 32
    assert commit == protocol.Commit(
        generation=7,
        attempt=1,
        token=commit.token,
        members=(
            protocol.Member(
                worker_id="t1-3-1",
                rank=0,
                node="n1",
                address="addr-n1",
                agent_endpoint="tcp://n1",
                agent_public_key="key-n1",
            ),
        ),
        store_host="addr-n1",
        store_port=4001,
        abandon=False,
        incarnation=3,
    )
    d.now_s += 2.0
    (done,) = d.wanted(Rescaled, d.enter(step=40, pause_s=0.0, resumed="/ck/40"))
    assert (done.generation, done.attempt, done.reason) == (7, 1, "start")
    assert (done.size_before, done.size, done.nodes) == (0, 1, ("n1",))
    assert (done.step, done.samples, done.resumed_from) == (40, 400, "/ck/40")
    assert done.formation_s == 2.0
    assert d.machine.forming is None
    assert d.nodes() == ["n1"]


def test_fewer_than_n_min_do_not_start() -> None:
    d = Driver(n_min=2)
    d.target("n1", "n2")
    d.warm("n1")
    assert not d.wait(30.0)
    d.warm("n2")
    assert set(d.told(protocol.Prepare)) == {d.on("n1"), d.on("n2")}


def test_the_first_warm_joiner_waits_for_the_others_but_not_long() -> None:
    d = Driver(join_window_s=1.0)
    d.target("n1", "n2", "n3")
    d.warm("n1", "n2")
    assert not d.wait(0.9)
    d.wait(0.1)
    assert len(d.told(protocol.Prepare)) == 2


def test_nobody_is_waited_for_when_all_are_warm() -> None:
    d = Driver()
    d.target("n1", "n2")
    assert d.told(protocol.Prepare, d.warm("n1", "n2"))


def test_n_max_is_never_exceeded() -> None:
    d = Driver(n_max=2)
    d.target("n1", "n2", "n3", "n4")
    assert d.started() == ["n1", "n2"]
    d.warm("n1", "n2")
    d.ready()
    d.enter()
    assert d.nodes() == ["n1", "n2"]
    assert not d.wait(1.0)


def test_a_joiner_that_is_too_slow_is_replaced() -> None:
    d = Driver(start_timeout_s=60.0)
    d.target("n1")
    slow = d.on("n1")
    assert not d.wait(60.0)
    d.wait(0.1)
    assert d.killed() == {slow: "too slow to start"}
    assert not d.started(), "it failed: the next one comes after the back-off"
    assert not d.exit(slow, -9)  # known
    d.wait(1.0)
    assert d.started() == ["n1"]
    second = d.on("n1")
    d.wait(119.0)
    assert second not in d.killed(), "it has twice as long"
    d.wait(2.0)
    assert d.killed()[second] == "too slow to start"


def test_a_joiner_that_is_no_longer_planned_is_killed() -> None:
    d = Driver()
    d.form("n1")
    d.target("n1", "n2")
    joiner = d.on("n2")
    d.target("n1")
    assert d.killed() == {joiner: "no longer planned"}
    assert d.nodes() == ["n1"]


# ---- grow and shrink ---------------------------------------------------------------------


def test_survivors_do_not_hear_of_a_joiner_before_it_is_warm() -> None:
    d = Driver()
    d.form("n1", "n2")
    assert d.started() == []
    d.target("n1", "n2", "n3")
    assert [type(i) for i in d.new] == [StartWorkerOn]
    assert not d.wait(20.0)
    d.warm("n3")
    assert len(d.told(protocol.Prepare)) == 3
    d.ready()
    commit = d.commit()
    assert [(m.rank, m.node) for m in commit.members] == [(0, "n1"), (1, "n2"), (2, "n3")]
    assert not commit.abandon
    # One without a GPU does not ask the others why they do not use theirs.
    backends = ("gloo (rank 2: the model is not on a GPU)",) * 2 + ("gloo",)
    (done,) = d.wanted(Rescaled, d.enter(step=7, pause_s=0.1, backends=backends))
    assert done.backend == backends[0]
    assert (done.size_before, done.size, done.reason) == (2, 3, "planned")
    assert done.pause_s == pytest.approx(0.3)  # the worst of all


def test_a_planned_leaver_leaves_at_the_boundary() -> None:
    d = Driver()
    d.form("n1", "n2")
    leaver = d.on("n2")
    d.target("n1")
    assert set(d.told(protocol.Prepare)) == {d.on("n1")}
    d.ready()
    commit = d.told(protocol.Commit)
    assert set(commit) == {d.on("n1"), leaver}
    assert [m.node for m in commit[leaver].members] == ["n1"]
    assert not d.leave(leaver, 2)
    (done,) = d.wanted(Rescaled, d.enter(step=9))
    assert (done.size_before, done.size) == (2, 1)
    assert not d.wanted(WorkerFailed, d.log)


def test_rank_0_may_leave() -> None:
    d = Driver()
    d.form("n1", "n2", "n3")
    d.target("n2", "n3")
    prepare = d.told(protocol.Prepare)
    assert prepare[d.on("n2")].open_store
    assert not prepare[d.on("n3")].open_store
    d.ready()
    assert d.commit().store_host == "addr-n2"
    d.enter()
    assert d.nodes() == ["n2", "n3"]


def test_leave_and_join_in_one_generation() -> None:
    d = Driver()
    d.form("n1", "n2")
    d.target("n2", "n3")
    d.ready()
    d.enter()
    assert d.nodes() == ["n2"]  # the joiner was not warm yet
    d.warm("n3")
    d.ready()
    d.enter()
    assert d.nodes() == ["n2", "n3"]
    assert d.announced() == [1, 2, 3]


def test_a_target_that_comes_back_needs_a_new_worker() -> None:
    d = Driver()
    d.form("n1", "n2")
    old = d.on("n2")
    d.target("n1")
    d.ready()
    d.target("n1", "n2")
    assert not d.started()  # the leaver is still there
    d.enter()
    assert d.on("n2") != old
    d.warm("n2")
    d.ready()
    d.enter()
    assert d.nodes() == ["n1", "n2"]


def test_state_is_never_left_behind_with_joiners_alone() -> None:
    d = Driver()
    d.form("n1", step=30)
    d.target("n1", "n2")
    member = d.on("n1")
    d.target("n2")  # its only node is exchanged: park and resume
    assert d.told(protocol.Commit)[member].members == ()
    d.warm("n2")
    assert d.machine.forming is None
    d.say(member, protocol.Saved(generation=1, step=30, samples=300, path="/ck", wall_s=0.1))
    d.leave(member, 2, step=30)
    (parked,) = d.wanted(Parked)
    assert parked.is_saved
    d.wait(0.0)
    d.ready()
    d.enter(step=30, resumed="/ck")
    assert d.nodes() == ["n2"]


def test_members_park_rather_than_hand_over_to_joiners_alone() -> None:
    d = Driver(join_window_s=5.0)
    d.form("n1", step=30)
    d.target("n1", "n2", "n3")
    d.warm("n2")  # n3 is still starting
    d.target("n2")
    assert d.told(protocol.Commit)[d.on("n1")].members == ()


# ---- park and resume -----------------------------------------------------------------------


def test_parking_saves_first() -> None:
    d = Driver(n_min=2)
    d.form("n1", "n2")
    first, second = d.on("n1"), d.on("n2")
    d.target("n1")  # below n_min
    assert d.new[0] == Announced(generation=2)
    commits = d.told(protocol.Commit)
    assert set(commits) == {first, second}
    assert all(c.members == () and not c.abandon for c in commits.values())
    d.leave(second, 2)
    assert not d.wanted(Parked)
    d.say(first, protocol.Saved(generation=1, step=9, samples=90, path="/ck", wall_s=0.1))
    d.leave(first, 2)
    assert d.wanted(Parked) == [
        Parked(generation=2, size_before=2, is_saved=True, reason="planned")
    ]
    assert d.machine.crew.members == ()
    assert not d.wanted(WorkerFailed, d.log)


def test_a_resume_is_a_start() -> None:
    d = Driver()
    d.form("n1")
    d.target()
    d.leave(d.on("n1"), 2)
    assert [p.is_saved for p in d.wanted(Parked)] == [False]
    d.target("n2")
    d.warm("n2")
    d.ready()
    (done,) = d.wanted(Rescaled, d.enter(step=9, resumed="/ck/9"))
    assert (done.generation, done.reason, done.size_before) == (3, "start", 0)


def test_nothing_forms_while_members_park() -> None:
    d = Driver()
    d.form("n1")
    old = d.on("n1")
    d.target()
    d.target("n1", "n2")
    assert d.started() == ["n2"]
    d.warm("n2")
    assert not d.wait(5.0)
    d.leave(old, 2)
    assert d.wanted(Parked)
    assert set(d.told(protocol.Prepare)) == {d.on("n2")}
    assert d.started() == ["n1"]


def test_a_member_lost_while_parking_is_no_failure() -> None:
    d = Driver()
    d.form("n1", "n2")
    d.target()
    d.exit(d.on("n2"), -9)
    assert not d.wanted(WorkerFailed, d.log)
    d.lose_agent("n1")
    assert [(p.is_saved, p.reason) for p in d.wanted(Parked)] == [(False, "planned")]


# ---- a straggler is replaced -------------------------------------------------------------


def test_a_straggler_leaves_when_its_replacement_joins_and_not_before() -> None:
    driver = Driver(n_max=3)
    driver.form("n1", "n2", "n3")
    driver.target("n1", "n3", "n4", staying={"n2": "n4"})
    assert driver.started() == ["n4"]
    driver.wait(30.0)
    assert driver.nodes() == ["n1", "n2", "n3"]
    assert driver.machine.forming is None
    driver.warm("n4")
    driver.ready()
    driver.enter(step=9)
    assert driver.nodes() == ["n1", "n3", "n4"]
    sizes = [r.size for r in driver.wanted(Rescaled, driver.log)]
    assert sizes == [3, 3]


def test_a_replacement_that_dies_while_it_joins_leaves_the_straggler_in_its_place() -> None:
    driver = Driver(n_max=3)
    driver.form("n1", "n2", "n3")
    driver.target("n1", "n3", "n4", staying={"n2": "n4"})
    driver.warm("n4")
    assert driver.told(protocol.Prepare)
    driver.exit(driver.on("n4"), 1)
    assert driver.machine.forming is None
    assert driver.nodes() == ["n1", "n2", "n3"]


def test_a_replacement_that_is_called_off_changes_nothing() -> None:
    driver = Driver(n_max=3)
    driver.form("n1", "n2", "n3")
    driver.target("n1", "n3", "n4", staying={"n2": "n4"})
    joiner = driver.on("n4")
    driver.target("n1", "n2", "n3")
    assert driver.killed() == {joiner: "no longer planned"}
    assert driver.nodes() == ["n1", "n2", "n3"]


def test_a_full_trainer_that_moves_starts_one_worker_for_each_that_will_leave() -> None:
    d = Driver(n_max=3)
    d.form("n1", "n2", "n3")
    d.target("n1", "n2", "n4", "n5")
    assert d.started() == ["n4"]
