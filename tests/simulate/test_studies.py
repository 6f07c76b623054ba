"""Studies in the simulator, against hand-made sums and against the virtual clock of ``playing``."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from _bench.rule_replay import Curve as PlayedCurve
from _bench.rule_replay import play
from _bench.studies.curves import LearningCurves, drawn
from _bench.studies.session import StudyRun, play_study
from _bench.studies.trials import SimStudy

from bftrainer.batch.traces.fragments import Fragments, make_fragments
from bftrainer.lab.simulator.physical import PhysicalCosts, constant
from bftrainer.lab.simulator.session import Choices
from bftrainer.lab.workloads import Submission
from bftrainer.model.decision import DecisionInput, Plan
from bftrainer.study.rungs import rule_of
from bftrainer.study.trials import Start, StudyRule, TrialStage, Verdicts
from milp.problem import Curve

MOST = 9  # epochs
EPOCH_S = 10.0  # on one node
CURVE = Curve(sizes=(1, 8), samples_per_s=(10.0, 80.0))


def trace(*spans: tuple[int, float, float], end_s: float = 100_000.0) -> Fragments:
    """Return a trace of the nodes 0, 1, ...; without spans two nodes are always there."""
    given = spans or ((0, 0.0, end_s), (1, 0.0, end_s))
    return make_fragments(
        names=[f"n{i}" for i in range(1 + max(node for node, _, _ in given))],
        node=[node for node, _, _ in given],
        start_s=[start_s for _, start_s, _ in given],
        end_s=[stop_s for _, _, stop_s in given],
        span_s=(0.0, end_s),
    )


def always(nodes: int) -> Fragments:
    """Return a trace of nodes that are always there."""
    return trace(*((node, 0.0, 100_000.0) for node in range(nodes)))


def study(
    name: str = "sha",
    *,
    trials: int = 9,
    parallel: int = 2,
    n_max: int = 1,
    cost_s: float = 0.0,
    rule: StudyRule | None = None,
    reports: tuple[int, ...] = (1, 3),
) -> SimStudy:
    """Return a study of trials of up to nine epochs, ten seconds each on one node."""
    settings: dict[str, Any] = {"name": name, "trials": trials, "most": MOST}
    return SimStudy(
        rule=rule or rule_of(settings),
        curves=drawn(trials, most=MOST, seed=3),
        trial=Submission(
            submit_s=0.0,
            name="trial",
            n_min=1,
            n_max=n_max,
            samples=1.0,
            curve=CURVE,
            rescale_up_s=cost_s,
            rescale_down_s=cost_s,
        ),
        unit_samples=10.0 * EPOCH_S,
        parallel=parallel,
        reports=reports,
    )


def played(given: SimStudy, on: Fragments, **choices: Any) -> StudyRun:
    """Play a study; as many trials may run as are active."""
    return play_study(on, given, Choices(p_jmax=given.parallel, **choices))


# With more workers the other rules judge those who report at one instant one by one on the virtual
# clock, together here.
@pytest.mark.parametrize(
    ("name", "workers"),
    [
        *((name, 1) for name in ("none", "median", "stopping", "hyperband", "sha", "asha")),
        *((name, 3) for name in ("none", "hyperband", "sha")),
    ],
)
def test_constant_nodes_give_what_the_virtual_clock_gives(name: str, workers: int) -> None:
    given = study(name, trials=20, parallel=workers)

    def curve(number: int, _parent: object) -> PlayedCurve:
        errors = given.curves.at((1, 3, MOST))[number]
        points = zip((1, 3, MOST), errors.tolist(), strict=True)
        return PlayedCurve(points=tuple(points), unit_s=EPOCH_S)

    clock = play(given.rule, curve, workers)
    run = played(given, always(workers))
    assert run.figures.is_over
    assert run.figures.hours * 3600.0 == pytest.approx(clock.took_s)
    assert run.figures.units * 20 * MOST == pytest.approx(clock.units)
    assert run.figures.utilization == pytest.approx(
        clock.units * EPOCH_S / (workers * clock.took_s)
    )
    assert run.figures.complete == len(clock.complete)
    assert _ends(run) == {trial.number: trial.stage for trial in clock.trials}


def _ends(run: StudyRun) -> dict[int, TrialStage]:
    return {happening.number: happening.stage for happening in run.course}


def test_waiting_trials_have_no_nodes() -> None:
    given, waits = study("asha", trials=30, parallel=4, n_max=8), set[str]()

    def watch(seen: DecisionInput, plan: Plan) -> None:
        assert len(seen.trainers) <= given.parallel
        assert set(plan.assignment.values()) <= {one.trainer_id for one in seen.trainers}
        waits.update(plan.assignment.values())

    run = play_study(always(5), given, Choices(p_jmax=4), on_plan=watch)
    assert run.figures.waiting_most > given.parallel
    assert len(waits) == run.figures.trials == 30


def test_survivors_get_the_nodes_of_those_that_wait() -> None:
    sizes: list[tuple[int, ...]] = []

    def watch(_seen: DecisionInput, plan: Plan) -> None:
        now = tuple(sorted(Counter(plan.assignment.values()).values()))
        if now and now != (sizes[-1] if sizes else ()):
            sizes.append(now)

    given = study(rule=rule_of({"name": "sha", "trials": 8, "most": 4, "eta": 2}), parallel=8)
    bent = Curve(sizes=(1, 2, 4, 8), samples_per_s=(10.0, 19.0, 36.0, 60.0))
    trial = replace(given.trial, n_max=8, curve=bent)
    given = replace(given, trial=trial, curves=drawn(8, most=4, seed=1))
    run = play_study(always(8), given, Choices(p_jmax=8), on_plan=watch)
    assert sizes == [(1,) * 8, (2,) * 4, (4, 4)]
    # One epoch on one node, one on two, two on four.
    assert run.figures.hours * 3600.0 == pytest.approx(100.0 / 10 + 100.0 / 19 + 200.0 / 36)


def test_a_lost_node_costs_what_the_paper_says() -> None:
    given = study("none", trials=1, parallel=1, n_max=2, cost_s=2.0, reports=())
    run = played(given, trace((0, 0.0, 1e5), (1, 0.0, 20.0)))
    # 20 s on two nodes, 2 s of which are lost with one; then what is left on one.
    assert run.figures.hours * 3600.0 == pytest.approx(20.0 + (90.0 - 2 * 18.0))
    assert run.figures.preemptions == 1


def test_a_trial_goes_on_from_its_rung_with_physical_costs() -> None:
    costs = PhysicalCosts(claim=constant(1.0), resume=constant(4.0))
    given = study(rule=rule_of({"name": "asha", "trials": 1, "most": MOST, "eta": 2}), parallel=1)
    given = replace(given, rule=_Promote())
    run = played(given, trace((0, 0.0, 1e5)), costs=costs)
    # Claimed once; at its rung it stops, and it reads its checkpoint again.
    assert run.figures.hours * 3600.0 == pytest.approx(1.0 + 3 * EPOCH_S + 4.0 + 6 * EPOCH_S)
    lost = played(given, trace((0, 0.0, 36.0), (0, 40.0, 1e5)), costs=_checkpointed(costs))
    # Lost 1 s after it has gone on: what it had at its rung is kept.
    assert lost.figures.hours * 3600.0 == pytest.approx(41.0 + 4.0 + 6 * EPOCH_S)


def _checkpointed(costs: PhysicalCosts) -> PhysicalCosts:
    return replace(costs, checkpoint_interval=constant(50.0))


class _Promote:
    """One trial, first to three epochs, then to nine."""

    most = MOST

    def verdicts(self, trials: Any, room: int) -> Verdicts:
        """Start it, and let it grow."""
        if not trials:
            return Verdicts(start=(Start(budget=3),) * min(room, 1))
        waits = trials[0].stage is TrialStage.WAITING
        return Verdicts(grow={0: MOST} if waits else {}, is_over=trials[0].stage.is_over)

    def describe(self) -> dict[str, Any]:
        """Say nothing."""
        return {}


def test_a_stopped_trial_frees_its_nodes_at_once() -> None:
    given = study("stopping", trials=12, parallel=1)
    run = played(given, always(1))
    stopped = [one for one in run.course if one.stage is TrialStage.STOPPED]
    assert stopped
    assert all(one.units < MOST for one in stopped)
    starts = {one.number: one.at_s for one in reversed(run.course)}
    for one in stopped[:-1]:
        if one.number + 1 in starts:
            assert starts[one.number + 1] == one.at_s
    trained = sum(one.done for one in run.outcome.trainers)
    assert run.figures.units * 12 * MOST == pytest.approx(trained / given.unit_samples)


def test_figures_tell_what_was_found() -> None:
    errors = np.array([[0.5, 0.30], [0.4, 0.205], [0.1, 0.2]])
    curves = LearningCurves(units=(1.0, float(MOST)), errors=errors)
    run = played(replace(study("none", trials=3, parallel=1), curves=curves), always(1))
    figures = run.figures
    assert figures.near_h == pytest.approx(180.0 / 3600.0)
    assert figures.best_h == pytest.approx(270.0 / 3600.0)
    assert (figures.regret, figures.complete) == (0.0, 3)
    cut = played(replace(study("none", trials=3, parallel=1), curves=curves), trace(end_s=100.0))
    assert not cut.figures.is_over
    assert (cut.figures.near_h, cut.figures.best_h) == (None, None)
    assert cut.figures.regret == pytest.approx(0.1)


def test_the_same_study_goes_the_same_way() -> None:
    given = study("asha", trials=40, parallel=6, n_max=4, cost_s=1.0)
    on = trace((0, 0.0, 1e5), *((n, 3.0 * n, 3.0 * n + 40.0) for n in range(1, 12)))
    first, second = played(given, on), played(given, on)
    assert first.course == second.course
    assert first.figures.preemptions == second.figures.preemptions > 0


PHYSICAL = PhysicalCosts(warm_up=constant(3.0))


@pytest.mark.parametrize(
    ("name", "costs"),
    [
        *((name, None) for name in ("none", "median", "stopping", "hyperband", "sha", "asha")),
        *((name, PHYSICAL) for name in ("stopping", "asha")),
    ],
)
def test_on_nodes_that_come_and_go_every_study_ends(name: str, costs: PhysicalCosts | None) -> None:
    given = study(name, trials=15, parallel=5, n_max=4, cost_s=1.0)
    spans = [
        (n, 60.0 * k + 5.0 * n, 60.0 * k + 8.0 * n + 20.0) for n in range(5) for k in range(60)
    ]
    run = played(given, trace(*spans), costs=costs)
    assert run.figures.is_over
    assert run.figures.preemptions > 0
    assert {stage.is_over for stage in _ends(run).values()} == {True}
    told = Counter((one.number, one.units) for one in run.course if one.value is not None)
    assert set(told.values()) == {1}  # each report is heard once, whatever was lost
    active = set[int]()
    for one in run.course:
        (active.add if one.stage is TrialStage.ACTIVE else active.discard)(one.number)
        assert len(active) <= given.parallel
    trained = {one.number: one.units for one in run.course if one.value is not None}
    assert run.figures.units * 15 * MOST >= sum(trained.values()) - 1e-6


def test_perturbed_trials_are_refused() -> None:
    with pytest.raises(ValueError, match="perturbed"):
        played(study("none", rule=_Perturb()), always(1))


class _Perturb(_Promote):
    def verdicts(self, trials: Any, room: int) -> Verdicts:
        """Start one from another one's state."""
        del trials, room
        return Verdicts(start=(Start(budget=1, parent=0),))
