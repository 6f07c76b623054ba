"""How generations form when two members cannot reach each other."""

from __future__ import annotations

import pytest

from bftrainer.fleet.generations.breakage import SILENT_S
from bftrainer.fleet.generations.generation import MOST_IN_VAIN
from bftrainer.fleet.generations.members import Instruction, Parked, Rescaled, WorkerFailed
from bftrainer.fleet.generations.state import INTERRUPTED_PATIENCE_S, STRANGER
from bftrainer.ground import protocol
from tests.support.generations import Driver


def _cannot_reach(d: Driver, node: str, *others: str) -> list[Instruction]:
    return d.say(d.on(node), protocol.Unreachable(nodes=others))


def test_a_generation_is_given_up_at_once_and_formed_without_one_of_the_two() -> None:
    d = Driver()
    d.form("n1", "n2", "n3")
    out = _cannot_reach(d, "n3", "n1")
    assert set(d.told(protocol.Prepare, out)) == {d.on("n1"), d.on("n2")}
    assert not _cannot_reach(d, "n1", "n3"), "it is known"
    d.ready()
    assert d.commit().abandon
    assert set(d.told(protocol.Commit)) == {d.on("n1"), d.on("n2"), d.on("n3")}, "n3 is to leave"
    assert not _cannot_reach(d, "n1", "n3"), "while n3 leaves"
    (done,) = d.wanted(Rescaled, d.enter(step=5))
    assert done.reason.startswith("BFT-1340: n1 and n3 cannot reach each other")
    assert "without n3" in done.reason
    assert d.nodes() == ["n1", "n2"]
    assert not d.wanted(WorkerFailed, d.log)


def test_the_plan_may_go_on_giving_the_node_until_it_is_reached_again() -> None:
    d = Driver()
    d.form("n1", "n2", "n3")
    _cannot_reach(d, "n1", "n3")
    d.ready()
    d.enter()
    d.target("n1", "n2", "n3")
    assert d.started() == []
    _cannot_reach(d, "n1")
    d.target("n1", "n2", "n3")
    assert d.started() == ["n3"]
    d.warm("n3")
    d.ready()
    (done,) = d.wanted(Rescaled, d.enter())
    assert (d.nodes(), done.reason) == (["n1", "n2", "n3"], "planned")


def test_a_joiner_that_cannot_be_reached_does_not_join() -> None:
    d = Driver()
    d.form("n1", "n2")
    d.target("n1", "n2", "n3")
    d.warm("n3")
    d.ready()  # committed: members wait for the joiner
    _cannot_reach(d, "n2", "n3")
    d.ready()
    d.enter()
    assert d.nodes() == ["n1", "n2"]
    assert d.machine.numbers.generation == 3


def test_below_its_minimum_it_parks_and_starts_when_they_reach_each_other() -> None:
    d = Driver(n_min=2)
    d.form("n1", "n2")
    _cannot_reach(d, "n1", "n2")
    commit = d.commit()
    assert (commit.members, commit.abandon) == ((), True)
    for node in ("n1", "n2"):
        d.leave(d.on(node), commit.generation)
    assert d.wanted(Parked, d.log)
    assert "n2" not in [w.node for w in d.machine.crew.workers.values() if w.is_alive]
    d.wait(SILENT_S + 1.0)
    d.target("n1", "n2")
    assert d.started() == ["n2"]
    d.warm("n1", "n2")
    d.ready()
    d.enter()
    assert d.nodes() == ["n1", "n2"]


def test_generations_that_break_again_and_again_without_a_step_are_a_failure() -> None:
    d = Driver()
    d.form("n1", "n2", step=3)
    for time in range(1, 2 * MOST_IN_VAIN + 1):
        d.interrupted("n2", d.machine.numbers.generation)
        out = d.wait(INTERRUPTED_PATIENCE_S + 0.1)
        failed = d.wanted(WorkerFailed, out)
        assert bool(failed) == (time % MOST_IN_VAIN == 0)
        for one in failed:
            assert one.node == "n2"
            assert one.cause.startswith(f"BFT-1341: {time} generations in a row")
        d.ready()
        d.enter(step=3)
    d.progress("n1", 6)
    d.interrupted("n2", d.machine.numbers.generation)
    assert not d.wanted(WorkerFailed, d.wait(INTERRUPTED_PATIENCE_S + 0.1)), "it made a step"


@pytest.mark.parametrize("first", ["n1", "n2"])
def test_generations_that_strangers_break_are_no_failure_of_the_trainer(first: str) -> None:
    """Seen failing before: whoever connected first three times in a row cost it a failure."""
    d = Driver()
    d.form("n1", "n2", step=3)
    words = {
        "n1": "BFT-1344: a stranger connected \x1b[31mto the port of rank 0 in place of rank 1",
        "n2": "connection closed by peer",  # it sees n1 go
    }
    for _ in range(3 * MOST_IN_VAIN):
        for node in sorted(words, key=lambda name: name != first):
            d.interrupted(node, d.machine.numbers.generation, words[node])
        assert not d.wanted(WorkerFailed, d.wait(INTERRUPTED_PATIENCE_S + 0.1))
        d.ready()
        out = d.enter(step=3)
        [rescaled] = d.wanted(Rescaled, out)
        assert rescaled.reason == STRANGER, "no words of a user's process"
    assert d.machine.trouble.in_vain == 0
