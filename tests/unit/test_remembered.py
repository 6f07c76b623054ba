"""What a new daemon takes over of what the last one had learnt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.actuate.remembered import remembered
from bftrainer.decide.claims import ClaimCosts, Mean, Warming
from bftrainer.decide.reserve import Demand, SmallJobs
from bftrainer.decide.slow import Replacing, SlowNode
from bftrainer.decide.types import DecisionInput, DecisionRecord, Memory, Settings
from bftrainer.journal.journal import Journal
from tests.support.snapshots import T0, Fold, idle_nodes, record, snapshot

LEARNS = Settings(learns_reserve=True)
SMALL = SmallJobs(at_s=T0, running=frozenset({"7"}), by_type={"default": Demand(needs=(1.0, 2.5))})
COSTS = ClaimCosts(
    claim=Mean(value_s=3.0, count=4),
    warm_up=Mean(value_s=8.0, count=3),
    since_s=T0,
    held=frozenset({"p1"}),
    warming={"p2": Warming(trainer_id="t1", since_s=T0)},
)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path / "journal.db", clock=lambda: T0) as opened:
        opened.begin_incarnation()
        yield opened


def _write(journal: Journal, memory: Memory, settings: Settings | None = None) -> None:
    fold = Fold(memory=memory, settings=settings or Settings(reserve_nodes_per_type=0))
    given = DecisionInput(
        now_s=T0,
        snapshot=snapshot(idle_nodes(2)),
        is_new_snapshot=True,
        pilots=(),
        trainers=(record(),),
        settings=fold.settings,
        memory=memory,
    )
    plan = fold.decide(given.snapshot, (), given.trainers)
    journal.append(
        "decision",
        DecisionRecord(event=None, input=given, policy_hash="x", plan=plan, took_ms=1.0),
    )


def test_a_first_start_knows_nothing(journal: Journal) -> None:
    assert journal.latest("decision") is None
    assert remembered(journal, LEARNS, {"n1": "t1"}) == Memory(assignment={"n1": "t1"})


def test_the_last_decision_tells_what_was_learnt_and_not_what_was_going_on(
    journal: Journal,
) -> None:
    _write(journal, Memory(small_jobs=SmallJobs(at_s=T0 - 9.0)))
    _write(journal, Memory(small_jobs=SMALL, claim_costs=COSTS, held_off={"n1": T0}))
    journal.append("other", {"n": 1})
    known = remembered(journal, LEARNS, {"n1": "t1"})
    assert known == Memory(
        assignment={"n1": "t1"},
        small_jobs=SMALL,
        claim_costs=replace(COSTS, since_s=None, held=frozenset(), warming={}),
    )


def test_where_nothing_is_learnt_nothing_is_taken_over(journal: Journal) -> None:
    _write(journal, Memory(small_jobs=SMALL))
    assert remembered(journal, Settings(), {}) == Memory()


def test_slow_nodes_outlive_a_daemon_and_what_was_under_way_does_not(journal: Journal) -> None:
    settings = Settings(straggler_threshold=0.8)
    slow = {"n2": SlowNode(fraction=0.4, seen_s=T0, trainer_id="t1")}
    pair = Replacing(node="n3", trainer_id="t1", since_s=T0)
    _write(journal, Memory(slow_nodes=slow, replacing={"n2": pair}), settings)
    known = remembered(journal, settings, {"n1": "t1", "n2": "t1"})
    assert known == Memory(assignment={"n1": "t1", "n2": "t1"}, slow_nodes=slow)


def test_a_decision_that_cannot_be_read_is_no_obstacle(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    journal.append("decision", {"of": "another release"})
    assert remembered(journal, LEARNS, {}) == Memory()
    assert "BFT-2220" in caplog.text
