"""Decisions of a journal, taken again."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.batch.traces.generator import GeneratorParameters, generate
from bftrainer.cli.main import main
from bftrainer.daemon import journal_replay
from bftrainer.daemon.journal_replay import KIND, Again, take_again
from bftrainer.decide.policies.base import AllocationPolicy, load_policy
from bftrainer.ground.collector import OBJECTS_BETWEEN_RUNS
from bftrainer.journal.journal import Journal
from bftrainer.lab.simulator.physical import costs_from_mapping
from bftrainer.lab.simulator.session import Choices, play
from bftrainer.lab.workloads import by_name
from bftrainer.model.decision import DecisionInput, DecisionRecord, Plan

SHORT = GeneratorParameters(n_nodes=128, hours=1.0, seed=3)
COSTS = costs_from_mapping({"claim_s": 5.0, "warm_up_s": [8.0, 12.0], "pause_up_s": 0.2}, "test")


@pytest.fixture(scope="module", params=["milp", "equal-share"])
def records(request: pytest.FixtureRequest) -> list[DecisionRecord]:
    """what a daemon would have written down."""
    found: list[DecisionRecord] = []

    def note(given: DecisionInput, plan: Plan) -> None:
        found.append(
            DecisionRecord(event=None, input=given, policy_hash="x", plan=plan, took_ms=1.0)
        )

    choices = Choices(policy=request.param, p_jmax=4, costs=COSTS)
    play(generate(SHORT), by_name("hpo-shufflenet", n_trainers=8), choices, on_plan=note)
    assert len(found) > 20
    return found


Retake = Callable[[list[DecisionRecord]], list[Again]]


@pytest.fixture
def retake(tmp_path: Path) -> Retake:
    """Through a journal on disk and back."""

    def run(records: list[DecisionRecord]) -> list[Again]:
        with Journal.open(tmp_path / "journal.db", clock=lambda: 5.0) as journal:
            journal.begin_incarnation()
            for record in records:
                journal.append(KIND, record)
                journal.append("remark", {"text": "not a decision"})
            return list(take_again(journal.entries()))

    return run


def test_every_plan_is_equal(records: list[DecisionRecord], retake: Retake) -> None:
    again = retake(records)
    assert len(again) == len(records)
    assert [a for a in again if not a.is_equal] == []
    assert [a.at_s for a in again] == [r.input.now_s for r in records]


def test_a_plan_that_was_another_is_named(records: list[DecisionRecord], retake: Retake) -> None:
    at = next(i for i, r in enumerate(records) if r.plan.assignment)
    other = replace(records[at].plan, assignment={}, trouble="It was otherwise.")
    changed = [*records[:at], replace(records[at], plan=other), *records[at + 1 :]]
    again = retake(changed)
    assert [i for i, a in enumerate(again) if not a.is_equal] == [at]
    assert again[at].differing == ("assignment", "trouble")
    assert again[at].sha256 != again[at].recorded_sha256


def test_the_verb_tells_of_both(
    records: list[DecisionRecord],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_for: list[str] = []

    def counted(policy: str) -> AllocationPolicy:
        looked_for.append(policy)
        return load_policy(policy)

    monkeypatch.setattr(journal_replay, "load_policy", counted)
    path = tmp_path / "journal.db"
    with Journal.open(path, clock=lambda: 5.0) as journal:
        journal.begin_incarnation()
        for record in records:
            journal.append(KIND, record)
    objects_before_collection, *_ = gc.get_threshold()
    try:
        assert main(["replay", str(path)]) == 0
        assert gc.get_threshold()[0] == OBJECTS_BETWEEN_RUNS
    finally:
        gc.set_threshold(objects_before_collection)
    assert f"{len(records)} of {len(records)} plans" in capsys.readouterr().out
    assert len(looked_for) == 1  # each search reads the metadata of all installed packages
    other = replace(records[-1], plan=replace(records[-1].plan, trouble="It was otherwise."))
    with Journal.open(path, clock=lambda: 6.0) as journal:
        journal.append(KIND, other)
    assert main(["replay", str(path), "--json"]) == 8
    answer = json.loads(capsys.readouterr().out)
    assert (answer["decisions"], answer["equal"]) == (len(records) + 1, len(records))
    assert answer["differing"][0]["differing"] == ["trouble"]
