"""Replays small enough to be added up by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.batch.traces.fragments import Fragments, make_fragments
from bftrainer.batch.traces.generator import GeneratorParameters, generate
from bftrainer.decide.decision import decide
from bftrainer.decide.policies.base import load_policy
from bftrainer.lab.simulator.metrics import Metrics
from bftrainer.lab.simulator.physical import (
    PhysicalCosts,
    PhysicalModel,
    constant,
    costs_from_file,
    costs_from_mapping,
)
from bftrainer.lab.simulator.replay import Outcome
from bftrainer.lab.simulator.session import Choices, play
from bftrainer.lab.workloads import Submission
from bftrainer.model.decision import DecisionInput, Plan
from bftrainer.model.errors import UsageError
from milp.problem import Curve

LINE = Curve(sizes=(1, 4), samples_per_s=(10.0, 40.0))


def trace(*spans: tuple[int, float, float], end_s: float = 1000.0) -> Fragments:
    return make_fragments(
        names=("a", "b", "c"),
        node=[n for n, _, _ in spans],
        start_s=[s for _, s, _ in spans],
        end_s=[e for _, _, e in spans],
        span_s=(0.0, end_s),
    )


def trial(
    name: str, samples: float = 1e6, *, submit_s: float = 0.0, n_min: int = 1, gres: str = ""
) -> Submission:
    return Submission(
        submit_s=submit_s,
        name=name,
        n_min=n_min,
        n_max=4,
        samples=samples,
        curve=LINE,
        rescale_up_s=18.0,
        rescale_down_s=12.0,
        gres=gres,
    )


def run(
    given: Fragments,
    *submissions: Submission,
    costs: PhysicalCosts | None = None,
    p_jmax: int = 2,
    poll_s: float | None = None,
) -> tuple[Outcome, Metrics]:
    return play(given, submissions, Choices(costs=costs, p_jmax=p_jmax, poll_s=poll_s))


@pytest.mark.parametrize("costs", [None, PhysicalCosts(claim=constant(5.0))])
def test_trainers_get_nodes_of_the_types_that_a_trace_names(costs: PhysicalCosts | None) -> None:
    spans = trace((0, 0, 1000), (1, 0, 1000), (2, 0, 1000))
    typed = replace(spans, node_types=("gpu:a100:4", "cpu", "cpu"))
    plans: list[Plan] = []
    trials = (trial("any"), trial("a100", gres="gpu:a100:2"), trial("v100", gres="gpu:v100:1"))
    choices = Choices(costs=costs, p_jmax=3)
    outcome, _ = play(typed, trials, choices, on_plan=lambda _, plan: plans.append(plan))
    assert dict(plans[0].assignment) == {"a": "t2", "b": "t1", "c": "t1"}
    assert [bool(t.done) for t in outcome.trainers] == [True, True, False]


class TestPaper:
    def test_progress_is_the_integral_less_the_fines(self) -> None:
        # One node from 0, a second from 100 to 400: grow at 100, preempted at 400.
        outcome, found = run(trace((0, 0, 1000), (1, 100, 400)), trial("t"))
        (t,) = outcome.trainers
        assert t.done == pytest.approx(100 * 10 - 18 * 10 + 300 * 20 - 12 * 20 + 600 * 10)
        assert (t.rescales, t.preemptions) == (2, 1)
        assert found.n_eq == pytest.approx(1.3)
        assert found.a_s == pytest.approx(1000 * 2 * 6.5)
        assert found.utilization == pytest.approx(t.done / found.a_s)
        assert (found.events, found.decisions) == (3, 3)

    def test_one_fine_per_trainer_and_event_however_many_nodes_leave(self) -> None:
        outcome, _ = run(trace((0, 0, 1000), (1, 0, 500), (2, 0, 500)), trial("t"))
        (t,) = outcome.trainers
        assert t.done == pytest.approx(500 * 30 - 12 * 30 + 500 * 10)
        assert t.preemptions == 1

    def test_completion_is_seen_at_the_next_event_and_the_excess_does_not_count(self) -> None:
        given = trace((0, 0, 1000), (1, 300, 1000))
        outcome, found = run(given, trial("t", 1000.0), trial("u"), p_jmax=1)
        first, second = outcome.trainers
        assert first.finished_s == 300.0
        assert second.started_s == 300.0
        assert found.a_e == pytest.approx(1000.0 + 700 * 20)
        assert found.completed == 1

    def test_a_trainer_waits_for_its_submission(self) -> None:
        outcome, _ = run(trace((0, 0, 1000), (1, 200, 300)), trial("t", submit_s=100.0))
        assert outcome.trainers[0].started_s == 200.0  # the first event after it


class TestStatic:
    def test_slow_trainers_take_more_of_the_static_nodes_time(self) -> None:
        # One node, one place: 10 samples per second, or 5. Equal work, a third and two thirds.
        quick = replace(trial("q"), n_max=1)
        slow = replace(quick, name="s", curve=Curve(sizes=(1,), samples_per_s=(5.0,)))
        _, found = run(trace((0, 0, 1000), (1, 0, 1000)), quick, slow, p_jmax=2)
        assert found.n_eq == pytest.approx(2.0)
        assert found.a_s == pytest.approx(2 * 1000 * 2 / (1 / 10 + 1 / 5))


class TestPhysical:
    def test_a_warm_joiner_waits_for_others_without_holding_up_the_clock(self) -> None:
        given = trace((0, 0, 1000), (1, 53, 1000))
        costs = PhysicalCosts(claim=constant(5.0), warm_up=constant(10.0))
        small, pair = trial("s", 400.0), trial("u", n_min=2)
        outcome, _ = run(given, small, pair, costs=costs)
        first, second = outcome.trainers
        assert first.finished_s == pytest.approx(15.0 + 400.0 / 10.0)
        assert second.started_s is not None
        assert second.started_s >= 53 + 5 + 10

    def test_claim_and_warm_up_delay_only_the_new_node(self) -> None:
        costs = PhysicalCosts(claim=constant(5.0), warm_up=constant(3.0), pause_up=constant(1.0))
        outcome, found = run(trace((0, 0, 1000), (1, 100, 1000)), trial("t"), costs=costs)
        (t,) = outcome.trainers
        assert t.started_s == pytest.approx(8.0)
        # Alone from 8 to 108, a pause of 1 s of one node's rate, then two.
        assert t.done == pytest.approx(100 * 10 + (1000 - 109) * 20)
        assert found.cost_rescale * found.a_s == pytest.approx(20.0)
        assert found.node_share_held == pytest.approx((995 + 895) / 1900)

    def test_completion_is_an_event_of_its_own(self) -> None:
        outcome, _ = run(
            trace((0, 0, 1000)), trial("t", 1000.0), trial("u"), p_jmax=1, costs=PhysicalCosts()
        )
        first, second = outcome.trainers
        assert first.finished_s == pytest.approx(100.0)
        assert second.started_s == pytest.approx(100.0)
        assert second.done == pytest.approx(9000.0)

    def test_an_arrival_is_an_event_of_its_own(self) -> None:
        outcome, _ = run(trace((0, 0, 1000)), trial("t", submit_s=100.0), costs=PhysicalCosts())
        assert outcome.trainers[0].done == pytest.approx(9000.0)

    def test_losing_some_nodes_costs_a_pause(self) -> None:
        costs = PhysicalCosts(pause_loss=constant(2.0))
        outcome, _ = run(trace((0, 0, 1000), (1, 0, 500)), trial("t"), costs=costs)
        assert outcome.trainers[0].done == pytest.approx(500 * 20 + 498 * 10)

    def test_losing_all_nodes_costs_what_is_not_on_disk(self) -> None:
        costs = PhysicalCosts(checkpoint_interval=constant(60.0), resume=constant(4.0))
        outcome, found = run(trace((0, 0, 100), (1, 200, 1000)), trial("t"), costs=costs)
        (t,) = outcome.trainers
        assert t.done == pytest.approx(60 * 10 + 796 * 10)
        assert found.cost_preemption * found.a_s == pytest.approx(400.0)

    def test_a_poll_shows_what_has_changed_since_the_last(self) -> None:
        costs = PhysicalCosts(detection=constant(3.0), claim=constant(5.0), warm_up=constant(3.0))
        given = trace((0, 1, 200), (1, 59, 200))
        outcome, found = run(given, trial("t"), costs=costs, poll_s=20.0)
        (t,) = outcome.trainers
        assert t.started_s == pytest.approx(20.0 + 8.0)
        assert t.done == pytest.approx((200 - 28) * 10 + (200 - 68) * 10)
        assert found.pilots_per_first_step == 1.0

    def test_a_pilot_that_is_lost_before_its_first_step_is_told_apart(self) -> None:
        costs = PhysicalCosts(claim=constant(5.0), warm_up=constant(60.0))
        given = trace((0, 0, 50), (0, 100, 400), (1, 0, 400))
        for poll_s in (None, 1.0):
            _, found = run(given, trial("t"), costs=costs, poll_s=poll_s)
            assert found.pilots_per_first_step == 3 / 2

    def test_a_checkpoint_within_a_pause_has_what_was_trained_before_it(self) -> None:
        costs = PhysicalCosts(checkpoint_interval=constant(35.0), pause_up=constant(10.0))
        given = trace((0, 0, 120), (1, 100, 120))
        outcome, found = run(given, trial("t"), costs=costs)
        assert outcome.trainers[0].done == pytest.approx(1000.0)  # of 1200; at 105 s
        assert found.cost_preemption * found.a_s == pytest.approx(200.0)

    def test_checkpoints_are_no_events(self, monkeypatch: pytest.MonkeyPatch) -> None:
        steps, step = [0], PhysicalModel.step

        def counted(model: PhysicalModel) -> bool:
            steps[-1] += 1
            return step(model)

        monkeypatch.setattr(PhysicalModel, "step", counted)
        run(trace((0, 0, 1000)), trial("t"), costs=PhysicalCosts())
        steps.append(0)
        often = PhysicalCosts(checkpoint_interval=constant(0.5))
        run(trace((0, 0, 1000)), trial("t"), costs=often)
        assert steps[0] == steps[1] > 0

    def test_a_change_is_decided_on_when_it_is_seen(self) -> None:
        costs = PhysicalCosts(detection=constant(10.0))
        outcome, found = run(trace((0, 0, 1000)), trial("t"), costs=costs)
        assert outcome.trainers[0].started_s == pytest.approx(10.0)
        assert found.events == 1

    def test_below_n_min_it_waits_for_enough_nodes(self) -> None:
        given = trace((0, 0, 1000), (1, 300, 600))
        outcome, _ = run(given, trial("t", n_min=2), costs=PhysicalCosts())
        (t,) = outcome.trainers
        assert t.started_s == pytest.approx(300.0)
        assert t.done == pytest.approx(300 * 20)

    def test_pilots_nobody_wants_are_given_back(self) -> None:
        outcome, found = run(
            trace((0, 0, 1000)), trial("t", 1000.0), costs=PhysicalCosts(), p_jmax=1
        )
        assert outcome.tally.node_s_held == pytest.approx(105.0, abs=0.1)  # hold_idle_s is 5
        assert found.completed == 1


def test_the_same_seed_gives_the_same_replay_and_every_plan_again() -> None:
    given = generate(GeneratorParameters(n_nodes=32, hours=6.0, seed=3))
    workload = [trial(f"t{i}", 2e5, submit_s=300.0 * i) for i in range(8)]
    costs = PhysicalCosts(
        claim=costs_from_mapping({"claim_s": [2.0, 5.0, 20.0]}, "here").claim,
        warm_up=constant(3.0),
    )
    kept: list[tuple[DecisionInput, Plan]] = []
    _, first = play(
        given, workload, Choices(costs=costs, p_jmax=4),
        on_plan=lambda one, plan: kept.append((one, plan)),
    )  # fmt: skip
    _, second = play(given, workload, Choices(costs=costs, p_jmax=4))
    assert _timeless(first) == _timeless(second)
    _, other = play(given, workload, Choices(costs=costs, p_jmax=4, seed=2))
    assert _timeless(first) != _timeless(other)
    policy = load_policy("milp")
    assert kept
    for one, plan in kept:
        assert decide(one, policy) == plan
        assert not plan.trouble


def _timeless(found: Metrics) -> dict[str, object]:
    names = [name for name in Metrics.__slots__ if not name.startswith("decision_ms")]
    return {name: getattr(found, name) for name in names}


class TestCosts:
    def test_the_rescale_benchmark_s_file_is_read(self, tmp_path: Path) -> None:
        path = tmp_path / "measured.json"
        pauses = [
            {"kind": "1->2", "pause_s": 0.1},
            {"kind": "4->2", "pause_s": -0.01},
            {"kind": "SIGKILL", "pause_s": 0.3},
        ]
        path.write_text(json.dumps({"benchmark": "rescale", "models": {"big": {"pauses": pauses}}}))
        costs = costs_from_file(path)
        assert costs.pause_up.values_s == (0.1,)
        assert costs.pause_down.values_s == (0.0,)
        assert costs.pause_loss.mean_s == 0.3

    @pytest.mark.parametrize(
        ("data", "code"),
        [
            ({"coffee_s": 1}, "BFT-4101"),
            ({"claim_s": -1}, "BFT-4102"),
            ({"claim_s": []}, "BFT-4102"),
            ({"claim_s": "soon"}, "BFT-4102"),
            ({"claim_s": [1, True]}, "BFT-4102"),
        ],
    )
    def test_what_is_no_cost_is_refused(self, data: dict[str, object], code: str) -> None:
        with pytest.raises(UsageError) as caught:
            costs_from_mapping(data, "here")
        assert caught.value.code == code

    def test_a_file_that_is_none(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError) as caught:
            costs_from_file(tmp_path / "missing.json")
        assert caught.value.code == "BFT-4103"
