"""Policies side by side: a frame that remembers decides the same, and arenas play what they say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bftrainer.batch.traces.generator import GeneratorParameters, generate
from bftrainer.decide import policy_answer
from bftrainer.lab.compare import Score, Site, cells, completions, rows_of
from bftrainer.lab.simulator.session import Choices, play
from bftrainer.lab.simulator.trainers import SimTrainer, make_trainer
from bftrainer.lab.workloads import by_name
from bftrainer.model.trainer import MeasuredCosts

WORKLOAD = by_name("diverse", seed=1)
TINY = Site(name="site", about="", workload=WORKLOAD, n_trainers=3, p_jmax=3, n_nodes=32, hours=0.7)


def _trainer() -> SimTrainer:
    return make_trainer(next(iter(WORKLOAD)), 1, 100.0, MeasuredCosts())


def test_the_record_of_a_trainer_is_the_same_object_until_it_has_moved() -> None:
    trainer = _trainer()
    first = trainer.as_decided()
    assert trainer.as_decided() is first
    for name, value in (("done", 7.5), ("node_s", 3.0), ("nodes", {"a"})):
        setattr(trainer, name, value)
        found = trainer.as_decided()
        assert found is not first
        first = found
    progress = first.progress
    assert (progress.samples, progress.node_s, progress.size) == (7, 3.0, 1)


def test_the_standing_of_a_trainer_follows_its_record() -> None:
    trainer = _trainer()
    before = policy_answer._standing(trainer.as_decided())
    assert policy_answer._standing(trainer.as_decided()) is before
    trainer.done = 7.5
    after = policy_answer._standing(trainer.as_decided())
    assert (before.done_samples, after.done_samples) == (0, 7)
    # Another trainer of the same name, as in the next replay of a process.
    other = replace(_trainer().record, submitted_s=5.0)
    assert policy_answer._standing(other).submitted_s == 5.0


@pytest.mark.parametrize("policy", ["srtf", "themis", "ibm-dp"])
def test_what_is_remembered_changes_no_decision(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def played() -> list[Any]:
        trace = generate(GeneratorParameters(n_nodes=12, machine_nodes=12, hours=0.5, seed=3))
        plans: list[Any] = []
        submissions = [replace(one, submit_s=0.0) for one in list(WORKLOAD)[:40]]
        play(
            trace,
            submissions,
            Choices(policy=policy, p_jmax=4),
            on_plan=lambda _, plan: plans.append((dict(plan.assignment), plan.order)),
        )
        return plans

    found = played()
    monkeypatch.setattr(policy_answer, "_standing", policy_answer._make_standing)
    as_decided = SimTrainer.as_decided
    monkeypatch.setattr(
        SimTrainer, "as_decided", lambda trainer: replace(as_decided(trainer), rescales=0)
    )
    assert played() == found
    assert len(found) > 3


def test_who_has_not_ended_counts_until_the_end() -> None:
    ended, runs, later = _trainer(), _trainer(), _trainer()
    ended.finished_s = 300.0
    later.record = replace(later.record, submitted_s=1100.0)
    assert completions([ended, runs, later], 100.0, 1100.0) == (600.0, 960.0, None)
    assert completions([ended, later], 100.0, 1100.0) == (200.0, 200.0, 200.0)


def test_a_site_is_played_and_its_ordinary_jobs_are_looked_at() -> None:
    found = {policy: TINY.play(policy, 2) for policy in ("milp", "srtf")}
    for score in found.values():
        assert score.submitted == 3
        assert score.node_h > 0.0
        assert 0.0 < (score.utilization or 0.0) < 1.5
        assert score.job_wait_s is not None
        assert abs(score.job_wait_added or 0.0) < 0.5
    assert replace(TINY.play("milp", 2), decision_ms=0.0) == replace(found["milp"], decision_ms=0.0)


def test_the_table_shows_what_jobs_notice() -> None:
    score = Score(
        jct_mean_s=3600.0,
        jct_p95_s=7200.0,
        makespan_s=None,
        utilization=0.5,
        node_h=2.0,
        fairness=0.9,
        rescales=3,
        decision_ms=1.0,
        completed=2,
        submitted=3,
        job_wait_s=300.0,
    )
    plays = {("a", "milp", seed): replace(score, job_wait_added=0.01 * seed) for seed in (1, 2, 3)}
    (row,) = rows_of(plays, "a", ["milp"], [1, 2, 3])
    assert cells(row)[-2:] == ("2 of 3", "300 s, +2.00 ±2.48%")
    plays = {key: replace(one, job_wait_s=None, job_wait_added=None) for key, one in plays.items()}
    (row,) = rows_of(plays, "a", ["milp"], [1, 2, 3])
    assert cells(row)[-1] == "-"
