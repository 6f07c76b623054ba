"""What decisions make of nodes that cannot reach each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from bftrainer.decide.eligible import HOLD_S, why_unused
from bftrainer.fleet.trainers.creation import SETTLE_S
from bftrainer.ground import protocol
from bftrainer.journal.journal import Journal
from bftrainer.model.canonical import decode, encode
from bftrainer.model.decision import DecisionInput, Memory, Settings
from tests.support.snapshots import T0, Fold, held, idle_nodes, pilot, record, snapshot
from tests.unit.fleet.test_trainer_book import Site

NODES = ("n1", "n2", "n3")
APART = {"t1": {"n3": T0}}


def test_the_node_left_out_goes_to_another_trainer() -> None:
    fold = Fold()
    training = dict.fromkeys(NODES, "t1")
    fold.memory = Memory(assignment=training)
    seen, trainers = snapshot(idle_nodes(3)), [record("t1"), record("t2")]
    plan = fold.decide(seen, held(*NODES), trainers, training=training, apart=APART)
    assert plan.assignment["n3"] == "t2"
    assert "t1" in plan.assignment.values()
    assert not plan.releases
    for second in range(1, 10):  # and stays there, whatever their curves say
        at_s, training = T0 + second, dict(plan.assignment)
        plan = fold.decide(seen, held(*NODES), trainers, at_s=at_s, training=training, apart=APART)
        assert plan.assignment["n3"] == "t2"


def test_without_another_trainer_it_is_kept_for_a_while_and_given_again_when_it_is_reached() -> (
    None
):
    fold, trainers, seen = Fold(), [record("t1")], snapshot(idle_nodes(3))
    fold.memory, training = Memory(assignment=dict.fromkeys(NODES, "t1")), {"n1": "t1", "n2": "t1"}
    for after_s in (0.0, 30.0, HOLD_S - 1.0):
        plan = fold.decide(
            seen, held(*NODES), trainers, at_s=T0 + after_s, training=training, apart=APART
        )
        assert (plan.assignment, plan.releases) == (training, ())
    kept = fold.memory
    plan = fold.decide(seen, held(*NODES), trainers, training=training)
    assert plan.assignment == dict.fromkeys(NODES, "t1")

    fold.memory = kept
    plan = fold.decide(
        seen, held(*NODES), trainers, at_s=T0 + HOLD_S + 1.0, training=training, apart=APART
    )
    assert [release.node for release in plan.releases] == ["n3"]
    assert "BFT-1340" in plan.releases[0].reason
    plan = fold.decide(
        seen, held("n1", "n2"), trainers, at_s=T0 + HOLD_S + 60.0, training=training, apart=APART
    )
    assert not plan.claims, "it would be of no use"


@pytest.mark.parametrize(("n_min", "expected"), [(2, {"n1": "t1", "n2": "t1"}), (3, {})])
def test_one_that_has_no_nodes_is_not_given_both(n_min: int, expected: dict[str, str]) -> None:
    fold = Fold()
    trainers, seen = [record("t1", n_min=n_min)], snapshot(idle_nodes(3))
    for second in range(3):
        at_s = T0 + second
        plan = fold.decide(seen, held(*NODES), trainers, at_s=at_s, apart=APART)
        assert plan.assignment == expected


def test_an_input_of_an_earlier_release_reads_as_one_without_cuts() -> None:
    given = DecisionInput(
        now_s=T0, snapshot=snapshot(idle_nodes(1)), is_new_snapshot=True, pilots=(pilot("n1"),),
        trainers=(), settings=Settings(), memory=Memory(),
    )  # fmt: skip
    assert b"apart" not in encode(given)
    assert decode(encode(given), DecisionInput).apart == {}
    assert why_unused(given, "n1") == ""


def test_a_report_reaches_decisions_the_log_and_the_workers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Journal.open(tmp_path / "journal.db", clock=lambda: 100.0) as journal:
        site = Site(tmp_path, journal)
        site.target("n1", "n2")
        site.enter()
        first, second = site.machine.crew.members
        site.say(second, protocol.Unreachable(nodes=("n1",)))
        site.steady_s += SETTLE_S
        site.book.tick()
        assert site.book.occupancy().apart.keys() == {"t1"}
        assert site.book.occupancy().apart["t1"].keys() == {"n2"}
        assert site.book.occupancy(()).apart == {}
        assert "trainer t1: BFT-1340: n1 and n2 cannot reach each other" in caplog.text
        said = len(caplog.records)
        site.book.tick()
        assert len(caplog.records) == said, "once"
        site.say(first, protocol.Unreachable(nodes=()))
        assert site.book.occupancy().apart == {}
