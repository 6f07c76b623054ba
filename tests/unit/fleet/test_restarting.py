"""Resizes by restart, one path each: what is asked for, in which order, at what cost."""

from __future__ import annotations

from bftrainer.fleet.generations import stimuli
from bftrainer.fleet.generations.generation import END_PATIENCE_S
from bftrainer.fleet.generations.members import Ended, Parked, Rescaled, WorkerFailed
from bftrainer.fleet.generations.restart import FRESH_START_S, KILL_MARGIN_S, RestartMachine
from bftrainer.fleet.trainers.costs import learn_rescale
from bftrainer.ground import protocol
from bftrainer.model.trainer import MeasuredCosts
from tests.support.generations import Driver, machine_of


class RestartDriver(Driver):
    """The driver with the machine under test."""

    def __init__(self, *, n_min: int = 1, n_max: int = 8) -> None:
        super().__init__(n_min=n_min, n_max=n_max)
        self.machine: RestartMachine = machine_of(
            RestartMachine, n_min=n_min, n_max=n_max, leave_patience_s=20.0 + KILL_MARGIN_S
        )

    def stopped(self, *nodes: str, saved: bool = True, unsaved: str = "") -> None:
        """Let the keepers on these nodes do what the last commit says, and exit."""
        generation = self.machine.numbers.generation - 1
        for worker_id in [self.on(node) for node in nodes]:
            if saved:
                self.say(
                    worker_id,
                    protocol.Saved(
                        generation=generation, step=7, samples=70, path="/c", wall_s=0.4
                    ),
                )
            if unsaved:
                self.say(
                    worker_id,
                    protocol.Interrupted(generation=generation, attempt=1, step=7, reason=unsaved),
                )
            self.leave(worker_id, generation)

    def restart(self, *nodes: str, step: int = 0) -> Rescaled:
        """Let fresh keepers on these nodes form the next generation."""
        self.warm(*nodes)
        self.ready()
        self.enter(step=step)
        (done,) = self.wanted(Rescaled)
        return done


def test_a_grow_collects_joiners_stops_everybody_and_starts_anew() -> None:
    d = RestartDriver()
    d.form("n1", "n2")
    first = d.commit().generation
    old = set(d.machine.crew.members)
    d.target("n1", "n2", "n3")
    d.warm("n3")
    assert not d.told(protocol.Commit)
    d.wait(1.1)  # the window in which others might come
    stop = d.told(protocol.Commit)
    assert set(stop) == old
    assert all(c.members == () and not c.abandon for c in stop.values())
    assert d.machine.numbers.generation == first + 1
    d.wait(0.5)
    d.stopped("n1")
    assert d.started() == ["n1"]  # a keeper, without a program
    d.warm("n1")
    d.wait(0.25)
    assert d.machine.forming is None  # one is still there
    d.stopped("n2")
    assert d.started() == ["n2"]
    d.wait(0.5)
    done = d.restart("n2", step=7)
    assert (done.size_before, done.size, done.reason) == (2, 3, "planned")
    assert (done.pause_s, done.stop_s, done.is_restart) == (1.25, 0.75, True)
    assert not done.unsaved
    assert set(d.machine.crew.members) & old == set()
    assert d.nodes() == ["n1", "n2", "n3"]


def test_the_window_for_others_begins_with_the_first_and_is_not_prolonged() -> None:
    d = RestartDriver()
    d.form("n1")
    d.target("n1", "n2", "n3", "n4")
    d.warm("n2")
    d.wait(0.6)
    d.warm("n3")
    assert not d.told(protocol.Commit)
    d.wait(0.5)
    assert set(d.told(protocol.Commit)) == set(d.machine.crew.members)


def test_a_shrink_is_a_restart_of_those_that_stay() -> None:
    d = RestartDriver()
    d.form("n1", "n2", "n3")
    d.target("n1", "n2")
    assert len(d.told(protocol.Commit)) == 3
    d.stopped("n1", "n2", "n3", saved=False, unsaved="status 3")
    done = d.restart("n1", "n2")
    assert (done.size_before, done.size, done.unsaved) == (3, 2, "status 3")
    assert not d.wanted(WorkerFailed, d.log)


def test_a_loss_ends_the_others_at_once() -> None:
    d = RestartDriver()
    d.form("n1", "n2", "n3")
    d.lose_agent("n2")
    stop = d.told(protocol.Commit)
    assert set(stop) == {d.on("n1"), d.on("n3")}
    assert all(c.abandon for c in stop.values())
    d.stopped("n1", "n3", saved=False)
    done = d.restart("n1", "n3")
    assert (done.size_before, done.size, done.reason) == (3, 2, "a member was lost")
    assert learn_rescale(MeasuredCosts(), done).rescale_down_s is None


def test_too_few_left_means_parked_and_nodes_mean_resumed() -> None:
    d = RestartDriver(n_min=2)
    d.form("n1", "n2")
    d.target()
    d.stopped("n1", "n2")
    (parked,) = d.wanted(Parked, d.log)
    assert (parked.is_saved, parked.size_before, parked.reason) == (True, 2, "planned")
    d.target("n3")
    assert d.started() == ["n3"]
    d.target("n3", "n4")
    d.warm("n3", "n4")
    d.ready()
    d.enter(resumed="/c/generation-3")
    (done,) = d.wanted(Rescaled)
    assert (done.size_before, done.size, done.reason) == (0, 2, "start")
    assert done.resumed_from == "/c/generation-3"


def test_nodes_that_leave_while_it_stops_park_it_afterwards() -> None:
    d = RestartDriver(n_min=2)
    d.form("n1", "n2")
    d.target("n1", "n2", "n3")
    d.warm("n3")
    d.wait(1.1)
    d.stopped("n1", "n2")
    d.lose_agent("n1")
    assert not d.wanted(Parked, d.log)
    d.lose_agent("n2")
    assert len(d.wanted(Parked, d.log)) == 1


def test_a_fresh_worker_that_does_not_come_is_not_waited_for_for_ever() -> None:
    d = RestartDriver()
    d.form("n1", "n2")
    d.target("n1", "n2", "n3")
    d.warm("n3")
    d.wait(1.1)
    d.stopped("n1", "n2")
    d.warm("n1")
    assert not d.told(protocol.Prepare)
    d.wait(FRESH_START_S)
    assert len(d.told(protocol.Prepare)) == 2


def test_a_failure_stops_the_others_and_waits_before_the_next_try() -> None:
    d = RestartDriver()
    d.form("n1", "n2")
    d.exit(d.on("n2"), 1)
    assert len(d.wanted(WorkerFailed, d.log)) == 1
    assert all(c.abandon for c in d.told(protocol.Commit, d.log).values() if not c.members)
    d.stopped("n1", saved=False)
    assert d.started() == []  # backs off
    d.wait(0.6)
    assert d.started() == ["n1", "n2"]


def test_a_member_that_hangs_is_killed_after_its_grace() -> None:
    d = RestartDriver()
    d.form("n1", "n2")
    d.target("n1")
    d.wait(0.1)
    assert not d.wait(20.0 + KILL_MARGIN_S - 0.2)
    d.wait(0.3)
    assert len(d.killed()) == 2


def test_after_the_end_other_ranks_have_their_time() -> None:
    d = RestartDriver()
    d.form("n1", "n2")
    d.finish("n1")
    d.exit(d.on("n1"), 0)
    assert d.wanted(Ended, d.log)
    assert not d.killed(d.log)
    d.wait(END_PATIENCE_S + 0.1)
    assert list(d.killed(d.log).values()) == ["ended"]


def test_a_program_that_does_not_say_where_it_is_keeps_its_place() -> None:
    d = RestartDriver()
    d.form("n1", step=5)
    d.progress("n1", 40)
    d.target("n1", "n2")
    d.warm("n2")
    d.wait(1.1)
    d.stopped("n1")
    assert d.restart("n1").step == 40


def test_what_restarts_cost_is_learnt_for_both_directions() -> None:
    def rescaled(**changes: object) -> Rescaled:
        fields: dict[str, object] = {
            "generation": 2, "attempt": 1, "size_before": 2, "size": 3, "reason": "planned",
            "pause_s": 5.0, "formation_s": 2.5, "step": 0, "epoch": 0, "samples": 0,
            "nodes": (), "resumed_from": "", "is_restart": True, "stop_s": 2.0,
        }  # fmt: skip
        return Rescaled(**{**fields, **changes})  # type: ignore[arg-type]  # test values

    costs = learn_rescale(MeasuredCosts(), rescaled(size_before=0, reason="start"))
    assert costs.rescale_up_s == costs.rescale_down_s == 2.5
    costs = learn_rescale(costs, rescaled())
    assert costs.restart is not None
    assert (costs.restart.stop_s, costs.restart.start_s) == (2.0, 2.5)  # 3.0 is within the noise
    assert costs.rescale_up_s == costs.rescale_down_s == 4.5
    costs = learn_rescale(costs, rescaled(stop_s=6.0, pause_s=16.0, unsaved="status 3"))
    assert costs.restart is not None
    assert (costs.restart.stop_s, costs.restart.start_s) == (4.0, 6.25)
    assert (costs.restart.unsaved, costs.restart.unsaved_reason) == (1, "status 3")
    assert costs.rescale_down_s == 10.25


def test_cancelled_programs_write_their_checkpoint_and_nobody_starts_again() -> None:
    d = RestartDriver()
    d.form("n1", "n2")
    d.machine.handle(stimuli.WindUp(grace_s=20.0), d.now_s)
    assert d.machine.has_members
    d.target("n1", "n2", "n3")
    assert not d.started()
    d.stopped("n1", "n2")
    (parked,) = d.wanted(Parked)
    assert parked.is_saved
    assert not d.target("n1", "n2", "n3")
    assert d.machine.has_wound_up(d.now_s)
