"""What a new daemon takes over of what the last one had learnt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.daemon.journal_replay import take_again
from bftrainer.fleet.trainers.takeover import remembered
from bftrainer.journal.journal import Journal
from bftrainer.model.canonical import parse
from bftrainer.model.decision import (
    DecisionInput,
    DecisionRecord,
    Ending,
    Ends,
    Losses,
    Memory,
    Replacing,
    Settings,
    SlowNode,
)
from bftrainer.model.fairness import Usage, Used
from tests.support.journals import journal_at
from tests.support.snapshots import T0, Fold, idle_nodes, record, snapshot

FIXTURES = Path(__file__).parents[2] / "fixtures" / "journal"
LEARNS = Settings(straggler_threshold=0.8)
SLOW = {"n2": SlowNode(fraction=0.4, seen_s=T0, trainer_id="t1")}


journal = journal_at(T0, begins=True)


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
    plan = replace(plan, memory=replace(plan.memory, policy_state=memory.policy_state))
    journal.append(
        "decision",
        DecisionRecord(event=None, input=given, policy_hash="x", plan=plan, took_ms=1.0),
    )


def test_a_first_start_knows_nothing(journal: Journal) -> None:
    assert journal.latest("decision") is None
    assert remembered(journal, LEARNS, {"n1": "t1"}) == Memory(assignment={"n1": "t1"})


def test_where_nothing_is_learnt_nothing_is_taken_over(journal: Journal) -> None:
    _write(journal, Memory(slow_nodes=SLOW))
    assert remembered(journal, Settings(), {}) == Memory()


def test_what_ends_and_starts_cost_outlives_a_daemon(journal: Journal) -> None:
    under_way = {"n1": Ending(pilot_id="p1", asked_s=T0)}
    known = Ends(ending=under_way, took_s=(20.0, 21.0), joining={"p2": None}, joined_s=(7.0,))
    _write(journal, Memory(ends=known))
    ends = Ends(took_s=(20.0, 21.0), joined_s=(7.0,))
    assert remembered(journal, Settings(), {}) == Memory(ends=ends)


def test_slow_nodes_outlive_a_daemon_and_what_was_under_way_does_not(journal: Journal) -> None:
    pair = Replacing(node="n3", trainer_id="t1")
    _write(journal, Memory(), LEARNS)
    _write(journal, Memory(slow_nodes=SLOW, replacing={"n2": pair}, held_off={"n1": T0}), LEARNS)
    journal.append("other", {"n": 1})
    known = remembered(journal, LEARNS, {"n1": "t1", "n2": "t1"})
    assert known == Memory(assignment={"n1": "t1", "n2": "t1"}, slow_nodes=SLOW)


def test_the_policy_s_state_outlives_a_daemon_of_the_same_policy_with_the_same_options(
    journal: Journal,
) -> None:
    _write(journal, Memory(policy_state={"n": [3]}), Settings())
    assert remembered(journal, Settings(), {}) == Memory(policy_state={"n": [3]})
    for other in ({"policy": "equal-share"}, {"policy_options": {"period_s": 5.0}}):
        assert remembered(journal, replace(Settings(), **other), {}) == Memory()


def test_how_often_trainers_lose_nodes_outlives_a_daemon(journal: Journal) -> None:
    expects = Settings(reserve_nodes_per_type=0, expects_losses=True)
    learnt = Losses(run_node_s=50.0, life_node_s=400.0, count=9)
    trained = replace(learnt, training={"n2": "t1"}, at_s=T0)
    _write(journal, Memory(losses=trained), expects)
    known = remembered(journal, expects, {}).losses
    # The decision saw n2 lost after 50 node-seconds: 400 + (50 - 400) / 10.
    assert (known.life_node_s, known.count, known.training) == (365.0, 10, {})
    assert remembered(journal, Settings(), {}) == Memory()


def test_what_users_used_outlives_a_daemon_with_fair_share(journal: Journal) -> None:
    fair = Settings(reserve_nodes_per_type=0, fair_share_half_life_s=3600.0)
    used = Used(amount=500.0, at_s=T0)
    usage = Usage(at_s=T0, node_s={"": {"bob": used}}, busy_s=used)
    _write(journal, Memory(usage=usage), fair)
    known = remembered(journal, fair, {}).usage
    assert known.node_s == usage.node_s
    assert known.waits[""]["bob"].since_s == T0  # without nodes
    assert remembered(journal, Settings(), {}) == Memory()


def test_a_decision_of_a_release_with_more_rules_is_read(journal: Journal) -> None:
    """What those rules remembered, and their settings, are left out."""
    journal.append("decision", parse((FIXTURES / "decision_before_adr_15.json").read_text()))
    known = remembered(journal, LEARNS, {"n1": "t1"})
    assert known == Memory(assignment={"n1": "t1"}, slow_nodes=SLOW)
    [again] = take_again(journal.entries("decision"))
    assert again.seq


def test_a_decision_that_cannot_be_read_is_no_obstacle(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    journal.append("decision", {"of": "another release"})
    assert remembered(journal, LEARNS, {}) == Memory()
    assert "BFT-2220" in caplog.text
