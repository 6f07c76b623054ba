"""The business case: figures that can be added up by hand, choices, documents."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from bftrainer.batch.traces.fragments import Fragments, make_fragments
from bftrainer.batch.traces.generator import GeneratorParameters, generate
from bftrainer.batch.traces.statistics import describe, held_down, uninterrupted
from bftrainer.cli.main import cli
from bftrainer.lab.simulator.physical import PhysicalCosts, constant
from bftrainer.lab.simulator.session import Choices, play
from bftrainer.lab.whatif import Assumptions, advice, as_document, page, replays, study
from bftrainer.lab.whatif import document as words
from bftrainer.lab.whatif.kept import KindOfNodes, gpus_of, idle_over_time, kept_back
from bftrainer.lab.whatif.replays import (
    Replays,
    ReplaySetting,
    Stretch,
    StretchOutcome,
    endless,
    some_nodes,
    stretches,
)
from bftrainer.model.errors import BftError, UsageError

HOUR_S = 3600.0


def trace(*spans: tuple[int, float, float], n_nodes: int = 3, end_s: float = 1000.0) -> Fragments:
    return make_fragments(
        names=[f"n{i}" for i in range(n_nodes)],
        node=[n for n, _, _ in spans],
        start_s=[s for _, s, _ in spans],
        end_s=[e for _, _, e in spans],
        span_s=(0.0, end_s),
    )


def blinking(
    n_cycles: int, *, idle_s: float = 1000.0, busy_s: float = 1000.0, n_nodes: int = 1
) -> Fragments:
    """Nodes that are idle and busy in turns, all at once."""
    period_s = idle_s + busy_s
    return trace(
        *(
            (n, k * period_s, k * period_s + idle_s)
            for n in range(n_nodes)
            for k in range(n_cycles)
        ),
        n_nodes=n_nodes,
        end_s=n_cycles * period_s,
    )


class TestIdleTime:
    def test_figures_of_a_trace_that_can_be_added_up(self) -> None:
        found = describe(trace((0, 0, 50), (0, 100, 300), (1, 0, 400)), n_nodes=5)
        assert (found.n_nodes, found.n_named, found.fragments) == (5, 3, 3)
        assert found.eq_nodes == pytest.approx(0.65)
        assert found.idle_share == pytest.approx(0.13)
        assert found.node_hours_per_day == pytest.approx(0.65 * 24)
        assert found.length_s["p50"] == 200.0
        assert found.length_s["longest"] == 400.0
        under_minute, under_5_min = found.shorter[:2]
        assert under_minute.of_fragments == pytest.approx(1 / 3)
        assert under_minute.of_node_time == pytest.approx(50 / 650)
        assert under_5_min.of_fragments == pytest.approx(2 / 3)
        assert found.unfillable_share is None

    def test_parts_of_one_idle_time_are_one_fragment(self) -> None:
        cut = make_fragments(
            names=["a", "b"],
            node=[0, 0, 0, 1],
            start_s=[0, 100, 300, 300],
            end_s=[100, 200, 400, 500],
            span_s=(0.0, 1000.0),
            is_unfillable=[True, False, True, True],
        )
        whole = uninterrupted(cut)
        assert whole.start_s.tolist() == [0, 300, 300]
        assert whole.end_s.tolist() == [200, 400, 500]
        found = describe(cut)
        assert found.fragments == 3
        assert found.unfillable_share == pytest.approx(400 / 500)

    def test_a_hold_down_time_takes_the_begin_of_each_idle_time(self) -> None:
        cut = trace((0, 0, 30), (0, 30, 100), (0, 200, 240), (1, 0, 41))
        held = held_down(cut, 40.0)
        assert list(zip(held.node.tolist(), held.start_s, held.end_s, strict=True)) == [
            (0, 40, 100),
            (1, 40, 41),
        ]
        assert held_down(cut, 0.0) is cut


class TestSampling:
    def test_stretches_are_spread_and_do_not_overlap(self) -> None:
        given = generate(GeneratorParameters(n_nodes=64, hours=168.0, seed=1, start_s=1e9))
        found = stretches(given, events_each=50, events=400, seed=3)
        assert found == stretches(given, events_each=50, events=400, seed=3)
        assert found != stretches(given, events_each=50, events=400, seed=4)
        assert len(found) >= 6
        begins = [s.start_s for s in found if s.start_s is not None]
        (length_s,) = {s.length_s for s in found if s.length_s is not None}
        assert all(b - a >= length_s for a, b in pairwise(begins))
        assert max(begins) - min(begins) > given.duration_s / 2
        n_events = sum(len(s.of(given).pool_changes()) for s in found)
        assert 200 < n_events < 800
        assert {round(s.of(given).duration_s) for s in found} == {round(length_s)}

    def test_a_short_trace_is_one_stretch(self) -> None:
        given = blinking(3)
        (whole,) = stretches(given, events_each=1, events=10, seed=1)
        assert whole == Stretch()
        assert whole.of(given) is given

    def test_a_large_pool_is_represented_by_neighbours(self) -> None:
        given = trace(*((n, 0, 1000) for n in range(400)), n_nodes=1000)
        part, share = some_nodes(given, seed=2)
        assert 0 < len(part.names) < 1000
        assert share == pytest.approx(part.node_seconds() / given.node_seconds())
        small = trace((0, 0, 1000))
        assert some_nodes(small, seed=2) == (small, 1.0)


class TestEstimates:
    def test_u_is_the_simulator_s(self) -> None:
        given = generate(GeneratorParameters(n_nodes=32, hours=6.0, seed=3))
        assumed = Assumptions()
        setting = ReplaySetting(
            policy="milp", t_fwd_s=120.0, p_jmax=3, hold_down_s=0.0, costs=assumed.costs
        )
        played = Replays(given, [Stretch()], assumed, lambda: None).of(setting)
        choices = Choices(p_jmax=3, t_fwd_s=120.0, costs=assumed.costs, seed=assumed.seed)
        _, found = play(given, endless(given, setting, assumed), choices)
        ours = replays.point(
            lambda sums: replays.utilization(sums, curve=assumed.network.curve, p_jmax=3), played
        )
        assert ours == pytest.approx(found.utilization, rel=1e-9)
        assert found.submitted > found.completed + 3  # the queue never ran dry
        share = replays.point(replays.harvested_share, played)
        assert share == pytest.approx(found.node_share_training)

    def test_the_interval_holds_the_value_and_needs_stretches(self) -> None:
        chance = np.random.Generator(np.random.PCG64(5))
        played = [
            StretchOutcome(seconds=HOUR_S, offered_node_s=1000.0, harvested_node_s=h, samples=1.0)
            for h in chance.uniform(700, 900, size=40)
        ]
        found = replays.estimate(replays.harvested_share, played, seed=1)
        assert found.low is not None
        assert found.high is not None
        assert found.low < found.value < found.high
        # 40 uniform values: the standard error of their mean is 0.0091.
        assert 0.02 < found.high - found.low < 0.05
        assert found == replays.estimate(replays.harvested_share, played, seed=1)
        assert replays.estimate(replays.harvested_share, played[:3], seed=1).low is None


class Given:
    """U by value; differences are known to ``off``."""

    def __init__(self, used: Mapping[Any, float], off: float | None = 0.0) -> None:
        self._used, self._off = used, off

    def used(self, value: float, /) -> replays.Estimate:
        return self._known(self._used[value])

    def gain(self, value: float, over: float, /) -> replays.Estimate:
        return self._known(self._used[value] - self._used[over])

    def _known(self, value: float) -> replays.Estimate:
        if self._off is None:
            return replays.Estimate(value=value)
        return replays.Estimate(value=value, low=value - self._off, high=value + self._off)


class TestAdvice:
    def test_more_trainers_only_if_their_gain_is_no_chance(self) -> None:
        used = {1: 0.966, 2: 0.974, 3: 1.006, 7: 0.979}
        assert advice.sweep(advice.P_JMAX, list(used), Given(used, off=0.05)).chosen == 1
        assert advice.sweep(advice.P_JMAX, list(used), Given(used, off=0.02)).chosen == 3
        few = advice.sweep(advice.P_JMAX, list(used), Given(used, off=None))  # too few stretches
        assert (few.chosen, few.points[0].low, few.is_beyond_chance) == (1, None, False)
        assert few.why.startswith("The trace is too short to tell a difference")
        alike = advice.sweep(advice.P_JMAX, list(used), Given(used, off=0.05))
        assert (alike.chosen, alike.is_beyond_chance) == (1, False)
        assert alike.why.startswith("No difference that chance alone does not make")

    def test_what_may_be_chance_changes_nothing(self) -> None:
        # Known to 0.02: the longest hold-down is no worse than none that could be told.
        used = {0.0: 0.950, 30.0: 0.949, 120.0: 0.945}
        found = advice.sweep(advice.HOLD_DOWN, list(used), Given(used, off=0.02))
        assert (found.chosen, found.is_beyond_chance) == (0.0, False)
        used = {10.0: 0.94, 60.0: 0.95, 300.0: 0.93}  # the usual 120 s is not tried
        found = advice.sweep(advice.T_FWD, list(used), Given(used, off=0.05))
        assert (found.chosen, found.is_beyond_chance) == (60.0, False)

    def test_trainers_at_once_are_compared_by_work_and_not_by_u(self) -> None:
        """U is held against P_jmax trainers with equal shares, and flatters few of them."""
        assumed = Assumptions(t_fwd_s=(120.0,), p_jmax=(1, 4), hold_down_s=(0.0,))
        trace = blinking(24, n_nodes=8)
        found = study(trace, assumed)
        work = {
            n: study(trace, dataclasses.replace(assumed, p_jmax=(n,))).expected[0]
            for n in assumed.p_jmax
        }
        assert work[4].utilization.value < work[1].utilization.value - 0.05
        of_four, of_one = (work[n].reference_node_h_per_day.value for n in (4, 1))
        assert of_four > 1.03 * of_one
        assert found.p_jmax == 4

    def test_the_fewest_trainers_that_do(self) -> None:
        used = {2: 0.90, 5: 0.96, 10: 0.968, 20: 0.969}
        assert advice.sweep(advice.P_JMAX, list(used), Given(used)).chosen == 5

    def test_the_usual_forward_time_unless_another_is_better(self) -> None:
        used = {10.0: 0.9505, 120.0: 0.950, 1200.0: 0.940}
        assert advice.sweep(advice.T_FWD, list(used), Given(used)).chosen == 120.0
        used[1200.0] = 0.96
        assert advice.sweep(advice.T_FWD, list(used), Given(used)).chosen == 1200.0

    def test_the_longest_hold_down_that_costs_nothing(self) -> None:
        used = {0.0: 0.950, 10.0: 0.949, 30.0: 0.940}
        assert advice.sweep(advice.HOLD_DOWN, list(used), Given(used)).chosen == 10.0

    def test_what_is_tried_follows_from_the_pool(self) -> None:
        assert advice.p_jmax_values(Assumptions(), 80.0, 200.0) == (5, 10, 20, 40)
        # Eight trainers of 64 nodes are needed for a pool of 500.
        assert advice.p_jmax_values(Assumptions(), 80.0, 500.0) == (8, 10, 20, 40)
        assert advice.p_jmax_values(Assumptions(), 0.3, 1.0) == (1, 10)  # the policy has 10
        assert advice.p_jmax_values(Assumptions(p_jmax=(7,)), 80.0, 500.0) == (7,)

    def test_the_hold_down_time_in_looks(self) -> None:
        assert advice.idle_confirmations(0.0, 1.0) == 1
        assert advice.idle_confirmations(30.0, 2.0) == 16
        assert advice.idle_confirmations(120.0, 0.5) == 100  # the policy's bound


class TestStudy:
    def test_a_second_costs_what_can_be_counted(self) -> None:
        """One node, idle for 1,000 s of every 2,000 s: a second of claim is lost each time."""
        given = Assumptions(
            t_fwd_s=(120.0,), p_jmax=(1,), hold_down_s=(0.0,),
            costs=PhysicalCosts(claim=constant(20.0), warm_up=constant(5.0)),
        )  # fmt: skip
        found = study(blinking(40), given)
        claim, pause = found.seconds
        per_day = 86400 / 2000
        assert claim.node_hours_per_day.value == pytest.approx(per_day / 3600, rel=1e-3)
        assert claim.share_of_work.value == pytest.approx(1 / 975, rel=1e-3)
        # Alone on its node it never pauses: it is parked and comes back.
        assert pause.node_hours_per_day.value == pytest.approx(0.0, abs=1e-9)
        (expected,) = found.expected
        assert expected.harvested_share.value == pytest.approx(0.975, rel=1e-3)
        assert expected.node_hours_per_day.value == pytest.approx(12 * 0.975, rel=1e-3)

    def test_a_pause_is_lost_on_all_members(self) -> None:
        # Two nodes always there, a third one comes and goes: two pauses per period.
        n, period_s = 40, 2000.0
        given = trace(
            (0, 0, n * period_s), (1, 0, n * period_s),
            *((2, k * period_s + 500, k * period_s + 1500) for k in range(n)), end_s=n * period_s,
        )  # fmt: skip
        found = study(
            given,
            Assumptions(
                t_fwd_s=(120.0,), p_jmax=(1,), hold_down_s=(0.0,), costs=PhysicalCosts(),
            ),
        )  # fmt: skip
        _, pause = found.seconds
        # Joining, three members pause for a second; losing one, two do.
        assert pause.node_hours_per_day.value == pytest.approx(
            5 / 3600 * 86400 / period_s, rel=0.02
        )

    @pytest.mark.long
    def test_the_same_again_and_everything_in_the_document(self) -> None:
        given = generate(GeneratorParameters(n_nodes=4, hours=9.0, seed=4))
        assumed = Assumptions(
            policies=("milp", "equal-share"), t_fwd_s=(120.0,), p_jmax=(1, 2),
            hold_down_s=(0.0, 60.0),
        )  # fmt: skip
        shares: list[float] = []
        found = study(given, assumed, shares.append)
        document = as_document(found, "here")
        side_by_side: list[float] = []
        again = study(given, assumed, side_by_side.append, processes=2)
        assert document == as_document(again, "here")
        assert side_by_side == shares  # as many replays
        json.dumps(document, allow_nan=False)
        assert shares == sorted(shares)
        assert shares[-1] == 1.0
        assert [one["policy"] for one in document["expected"]] == ["milp", "equal-share"]
        for one in document["expected"]:
            assert 0.5 < one["harvested_share"]["value"] <= 1.0
            assert one["utilization"]["low"] <= one["utilization"]["value"]
        assert document["recommended"]["p_jmax"] in (1, 2)
        for point in document["sweeps"][0]["points"]:
            assert point["low"] <= point["utilization"] <= point["high"]
        hold = document["sweeps"][2]["points"]
        assert hold[0]["utilization"] > hold[1]["utilization"]  # a minute of idleness is lost

    def test_nothing_to_harvest_and_too_few_nodes(self) -> None:
        with pytest.raises(UsageError) as caught:
            study(trace(), Assumptions())
        assert caught.value.code == "BFT-4140"
        with pytest.raises(UsageError) as caught:
            study(blinking(2, n_nodes=3), Assumptions(n_nodes=2))
        assert caught.value.code == "BFT-4141"

    def test_the_page_shows_no_tags_of_others(self, tmp_path: Path) -> None:
        assumed = Assumptions(t_fwd_s=(120.0,), p_jmax=(1, 2), hold_down_s=(0.0,))
        found, path = study(blinking(4, n_nodes=2), assumed), tmp_path / "page.html"
        page.write_page(path, found, "<b>x</b>", "bftrainer <i>")
        text = path.read_text()
        assert "<b>x" not in text
        assert "<i>" not in text
        assert text.count("<svg") == 2  # the week, and the sweep with more than one value
        assert "://" not in text
        assert text.index(words.answer(found)) < text.index("<svg") < text.index("<table")

    def test_without_matplotlib_the_page_has_no_pictures(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        assumed = Assumptions(t_fwd_s=(120.0,), p_jmax=(1, 2), hold_down_s=(0.0,))
        found, path = study(blinking(4, n_nodes=2), assumed), tmp_path / "page.html"
        page.write_page(path, found, "x", "bftrainer")
        text = path.read_text()
        assert "<svg" not in text
        assert "Pictures need the package matplotlib" in text
        assert "t_fwd_s" in text


PARTS = make_fragments(
    names=["c1", "c2", "g1"],
    node=[0, 0, 1, 2],
    start_s=[0, 1000, 0, 500],
    end_s=[100, 2000, 600, 1500],
    span_s=(0.0, 2000.0),
    partitions=["cpu", "cpu", "gpu <b>$x$"],
    node_types=["", "", "gpu:a100:4"],
)


class TestSentences:
    def test_only_what_chance_does_not_make_is_recommended(self) -> None:
        assumed = Assumptions(t_fwd_s=(120.0,), p_jmax=(1,), hold_down_s=(0.0,))
        found = study(blinking(2), assumed)

        def advised(**off: float) -> tuple[str, list[str]]:
            """U of P_jmax is best at 2, of T_fwd at 10 s, and each second of hold-down costs."""
            sweeps = tuple(
                advice.sweep(setting, list(used), Given(used, off=off[setting.name]))
                for setting, used in (
                    (advice.P_JMAX, {1: 0.90, 2: 0.95}),
                    (advice.T_FWD, {10.0: 0.96, 120.0: 0.95}),
                    (advice.HOLD_DOWN, {0.0: 0.95, 60.0: 0.93}),
                )
            )
            case = dataclasses.replace(
                found, sweeps=sweeps, p_jmax=int(sweeps[0].chosen), t_fwd_s=sweeps[1].chosen,
                hold_down_s=sweeps[2].chosen,
            )  # fmt: skip
            return words.advice_sentence(case), words.policy_lines(case)

        assert advised(p_jmax=0.01, t_fwd_s=0.001, hold_down_s=0.001) == (
            "Set t_fwd_s and p_jmax. Of idle_confirmations the policy's own value is recommended.",
            ["t_fwd_s: 10", "p_jmax: 2"],
        )
        assert advised(p_jmax=0.06, t_fwd_s=0.02, hold_down_s=0.03) == (
            (
                "Change nothing in the policy. No difference that chance alone does not make was "
                "seen for t_fwd_s, p_jmax and idle_confirmations."
            ),
            [],
        )

    def test_policies_are_told_apart_beyond_chance_alone(self) -> None:
        assumed = Assumptions(t_fwd_s=(120.0,), p_jmax=(1,), hold_down_s=(0.0,))
        found = study(blinking(2), assumed)
        (first,) = found.expected

        def said(value: float, low: float | None, high: float | None) -> list[str]:
            gain = replays.Estimate(value=value, low=low, high=high)
            other = dataclasses.replace(first, policy="fifo", work_against=gain)
            return words.expected_sentences(dataclasses.replace(found, expected=(first, other)))

        assert said(-0.1, -0.12, -0.07) == ["fifo does 10.0% less work than milp (7.0% to 12.0%)."]
        assert said(0.1, 0.05, 0.2) == ["fifo does 10.0% more work than milp (5.0% to 20.0%)."]
        assert said(0.1, -0.01, 0.2) == ["fifo: no difference that chance alone does not make."]
        assert said(0.1, None, None) == ["fifo: the trace is too short to compare it with milp."]


class TestKeptBack:
    """Idle: c1 from 0 to 100 and 1000 to the end, c2 from 0 to 600, g1 from 500 to 1500."""

    def test_what_reserve_and_gap_leave_can_be_counted(self) -> None:
        kept, kinds = kept_back(PARTS, reserve=1, min_gap_s=300.0, gap_margin_s=60.0)
        cpu, gpu = kinds
        assert (cpu.name, cpu.n_nodes, cpu.gpus) == ("cpu", 2, None)
        assert (gpu.name, gpu.n_nodes, gpu.gpus) == ("gpu <b>$x$, gpu:a100:4", 1, 4)
        # cpu: 1,700 node-s in 2,000 s of two nodes.
        assert (cpu.eq_nodes, cpu.idle_share) == pytest.approx((0.85, 0.425))
        assert cpu.node_hours_per_day == pytest.approx(0.85 * 24)
        # Two of cpu are idle from 0 to 100 alone; the single gpu node is the reserve.
        assert cpu.reserve_share == pytest.approx(1600 / 1700)
        assert gpu.reserve_share == 1.0
        assert kept.after_reserve == pytest.approx(100 / 2700)
        # If planned: c1's 100 s are too short, its last gap has no end; c2 and g1 lose 60 s.
        assert cpu.planned_share == pytest.approx(1 - (1000 + 540) / 1700)
        assert gpu.planned_share == pytest.approx(60 / 1000)
        assert kept.after_both == 0.0  # never two of a kind
        kept, _ = kept_back(PARTS, reserve=0, min_gap_s=300.0, gap_margin_s=60.0)
        assert kept.after_reserve == 1.0
        assert kept.after_both == pytest.approx((1000 + 540 + 940) / 2700)

    def test_a_gap_just_long_enough_is_used(self) -> None:
        given = trace((0, 0, 180), (1, 0, 179))
        kept, _ = kept_back(given, reserve=0, min_gap_s=120.0, gap_margin_s=60.0)
        assert kept.after_both == pytest.approx(120 / (180 + 179))

    def test_the_week_of_each_kind(self) -> None:
        over = idle_over_time(PARTS)
        widths_s = np.diff(over.edges_s)
        sums_s = {name: float(widths_s @ nodes) for name, nodes in over.nodes.items()}
        assert sums_s == pytest.approx({"cpu": 1700.0, "gpu <b>$x$, gpu:a100:4": 1000.0})
        assert list(idle_over_time(trace((0, 0, 10))).nodes) == [""]

    @pytest.mark.parametrize(
        ("types", "gpus"),
        [
            (["gpu:a100:4"], 4),
            (["gpu:4"], 4),
            (["cpu", "cpu"], None),
            (["gpu:a100:4", "gpu:v100:8"], None),
            (["x,gpu:a100:2,gpu:t4:1"], 3),
        ],
    )
    def test_gpus_of_a_type(self, types: list[str], gpus: int | None) -> None:
        assert gpus_of(types) == gpus

    def test_the_answer_is_what_the_policy_leaves(self, tmp_path: Path) -> None:
        assumed = Assumptions(
            t_fwd_s=(120.0,), p_jmax=(1,), hold_down_s=(0.0,),
            costs=PhysicalCosts(claim=constant(20.0)), reserve_nodes_per_type=0,
        )  # fmt: skip
        found = study(blinking(40), assumed)
        # One node, idle 1,000 s of 2,000 s: 980 are used, and 940 of 1,000 if jobs are planned.
        # The trace ends busy. 12 h a day are idle: 12 * 0.98 = 11.76, and 0.94 of it are left.
        assert words.with_policy(found) == pytest.approx((11.0544, 11.76), rel=1e-3)
        assert words.answer(found) == (
            "Trainers could have 11.1 to 11.8 node-hours a day of the 12 that are idle: 92% to "
            "98%, like 0.461 to 0.49 nodes that train all day."
        )
        path = tmp_path / "page.html"
        page.write_page(path, dataclasses.replace(found, kinds=kinds_with_names()), "x", "y")
        assert "gpu <b>" not in path.read_text()
        assert "gpu &lt;b&gt;" in path.read_text()


def kinds_with_names() -> tuple[KindOfNodes, ...]:
    return kept_back(PARTS, reserve=1, min_gap_s=0.0, gap_margin_s=0.0)[1]


class TestPoliciesHeldToTheFirst:
    def test_the_same_stretches_are_compared(self) -> None:
        def played(*work: float) -> list[StretchOutcome]:
            return [
                StretchOutcome(
                    seconds=1.0, offered_node_s=1.0, harvested_node_s=1.0, samples=1.0,
                    reference_node_h=one,
                )
                for one in work
            ]  # fmt: skip

        # Stretches differ sixteenfold, yet in each the second policy does 10% less.
        first = played(1, 2, 4, 8, 16)
        less = replays.estimate(
            replays.work_gained, played(0.9, 1.8, 3.6, 7.2, 14.4), first, seed=1
        )
        assert (less.value, less.low, less.high) == pytest.approx((-0.1, -0.1, -0.1))
        assert less.is_beyond_chance
        chance = replays.estimate(replays.work_gained, played(2, 1, 8, 4, 16), first, seed=1)
        assert chance.value == 0.0
        assert not chance.is_beyond_chance
        assert not replays.estimate(
            replays.work_gained, first[:3], first[:3], seed=1
        ).is_beyond_chance


SACCT = """\
JobID|JobName|Submit|Eligible|Start|End|NNodes|NodeList|State|Partition|Timelimit
1|a|0|0|0|100|2|n[1-2]|COMPLETED|batch|00:10:00
2|p000001|100|100|110|4000|1|n1|PREEMPTED|bf|01:00:00
3|b|4000|4000|4000|8000|1|n1|COMPLETED|batch|02:00:00
4|c|8000|8000|8000|8100|2|n[1-2]|COMPLETED|batch|00:10:00
"""


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["whatif", "--processes=1", *arguments])


class TestCommandLine:
    def test_sacct_with_pilots_in_it(self, tmp_path: Path) -> None:
        file = tmp_path / "export.txt"
        file.write_text(SACCT)
        report = tmp_path / "page.html"
        fixed = ["--t-fwd=120", "--p-jmax=1", "--hold-down=0", f"--report={report}"]
        fixed += ["--start=0", "--end=8100"]
        done = call(f"--sacct={file}", "--json", *fixed)
        assert done.exit_code == 0, done.output
        document = json.loads(done.stdout)
        # n1 is idle from 100 to 4000, n2 to 8000: the pilot does not count.
        assert document["idle"]["fragments"] == 2
        assert [kind["name"] for kind in document["kinds"]] == [""]  # batch alone: bf is ignored
        assert document["answer"].startswith("Trainers could have ")
        assert document["idle"]["eq_nodes"] == pytest.approx((3900 + 7900) / 8100)
        assert any("partition bf" in note for note in document["notes"])
        assert document["idle"]["node_time"]["used_h"] * 3600 == 100 + 4000 + 2 * 100 + 100
        assert "<h1>" in report.read_text()
        text = call(f"--sacct={file}", *fixed)
        assert text.exit_code == 0
        assert text.stdout.splitlines()[0] == document["answer"]
        assert "t_fwd_s" in text.stdout
        assert "too short for intervals" in text.stdout

    def test_nodes_that_were_closed_are_told_apart(self, tmp_path: Path) -> None:
        file, events = tmp_path / "export.txt", tmp_path / "events.txt"
        file.write_text(SACCT)
        events.write_text("NodeName|TimeStart|TimeEnd\nn2|1000|3000\n")
        fixed = ("--t-fwd=120", "--p-jmax=1", "--hold-down=0", "--start=0", "--end=8100")
        done = call(f"--sacct={file}", f"--closed={events}", "--json", *fixed)
        assert done.exit_code == 0, done.output
        document = json.loads(done.stdout)
        assert document["idle"]["node_time"]["closed_h"] * 3600 == pytest.approx(2000)
        assert document["idle"]["eq_nodes"] == pytest.approx((3900 + 7900 - 2000) / 8100)

    def test_costs_come_from_defaults_file_and_options(self, tmp_path: Path) -> None:
        file = tmp_path / "export.txt"
        file.write_text(SACCT)
        costs = tmp_path / "costs.json"
        costs.write_text('{"claim_s": 3, "warm_up": [1, 2]}')
        done = call(
            f"--sacct={file}", "--json", f"--costs={costs}", "--cost=claim=4", "--t-fwd=120",
            "--p-jmax=1", "--hold-down=0", "--nodes=7", "--trainer-nodes=1:2",
        )  # fmt: skip
        assert done.exit_code == 0, done.output
        document = json.loads(done.stdout)
        assert document["costs_s"]["claim"] == [4.0]
        assert document["costs_s"]["warm_up"] == [1.0, 2.0]
        assert document["costs_s"]["pause_up"] == [0.3]
        assert document["idle"]["n_nodes"] == 7

    @pytest.mark.parametrize(
        "arguments",
        [
            (),
            ("--trace=a", "--swf=b"),
            ("--trace=sample.npz", "--network=coffee"),
            ("--trace=sample.npz", "--trainer-nodes=4:2"),
        ],
    )
    def test_wrong_options(self, arguments: tuple[str, ...], tmp_path: Path) -> None:
        sample = tmp_path / "sample.csv"
        sample.write_text("node,start_s,end_s\na,0,100\n")
        given = [a.replace("sample.npz", str(sample)) for a in arguments]
        assert call(*given).exit_code == 2

    def test_a_cost_that_is_no_number(self, tmp_path: Path) -> None:
        sample = tmp_path / "sample.csv"
        sample.write_text("node,start_s,end_s\na,0,100\n")
        done = call(f"--trace={sample}", "--cost=claim=soon")
        assert isinstance(done.exception, BftError)
        assert done.exception.code == "BFT-4102"

    def test_a_policy_nobody_has(self, tmp_path: Path) -> None:
        file = tmp_path / "export.txt"
        file.write_text(SACCT)
        done = call(f"--sacct={file}", "--policy=astrology")
        assert isinstance(done.exception, BftError)
        assert done.exception.code == "BFT-3050"

    def test_what_is_left_out_is_said_once_below_the_answer(self, tmp_path: Path) -> None:
        """Of an export in which nothing tells whether sacct cut it; it may have been cut."""
        file, report = tmp_path / "export.txt", tmp_path / "page.html"
        head = "JobID|Submit|Eligible|Start|End|NNodes|NodeList|State|Partition|Timelimit"
        jobs = ((1, 0, 0, 3600), (2, 3600, 4000, 40_000), (3, 50_000, 50_000, 57_200))
        rows = [f"{n}|{e}|{e}|{s}|{t}|2|n[1-2]|COMPLETED|batch|1-0" for n, e, s, t in jobs]
        file.write_text("\n".join([head, *rows]) + "\n")
        fixed = ("--t-fwd=120", "--p-jmax=1", "--hold-down=0")
        done = call(f"--sacct={file}", *fixed, f"--report={report}")
        assert done.exit_code == 0, done.output
        # The first job ended after 3,600 s; the last became eligible 7,200 s before it ended.
        answer, left_out, *others = done.stdout.splitlines()
        assert answer.startswith("Trainers could have ")
        assert left_out.startswith(
            "Of the log, 60 min at the beginning and 2 h at the end are left out: nothing in the "
            "file shows that sacct cut its jobs"
        )
        assert not any("--truncate" in line for line in others)
        assert report.read_text().count("--truncate") == 1
        named = call(f"--sacct={file}", *fixed, "--start=0", "--end=57200")
        assert "--truncate" not in named.stdout
