"""What is learnt from fragments is what they were, and says what is likely to come."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from _bench import forward_time as rules
from _bench.joins import HALF_LIFE_S, USUAL_GAP_S, Joins, look, until_next_join_s
from _bench.lengths import AGES_S, N_AGES, Lengths, class_of, observe
from _bench.survival import PRIOR_S, fit

from bftrainer.canonical import decode, encode
from bftrainer.simulate.session import Choices, play
from bftrainer.simulate.traces import SAMPLE, read_trace
from bftrainer.simulate.traces.fragments import Fragments
from bftrainer.simulate.workloads import by_name
from milp.problem import Problem
from milp.solve import solve

FAR_S = 1e9


def watch(lengths_s: list[float], *, until_s: float = math.inf, apart_s: float = 7.0) -> Lengths:
    """What is seen of fragments that come one after the other, up to an instant."""
    changes: dict[float, list[str]] = {}
    for i, length_s in enumerate(lengths_s):
        for at_s in (i * apart_s, i * apart_s + length_s):
            changes.setdefault(at_s, []).append(f"n{i}")
    seen, present = Lengths(), set[str]()
    for at_s in sorted(t for t in changes if t <= until_s):
        present ^= set(changes[at_s])  # comes, then leaves
        seen = observe(seen, present, at_s)
    return seen


def kaplan_meier(lengths_s: list[float], is_end: list[bool], age_s: float) -> float:
    """Chance to last longer than an age, from single fragments, some of them cut short."""
    stays = 1.0
    for end_s in sorted({s for s, ended in zip(lengths_s, is_end, strict=True) if ended}):
        if end_s > age_s:
            break
        at_risk = sum(s >= end_s for s in lengths_s)
        ended = sum(s == end_s and e for s, e in zip(lengths_s, is_end, strict=True))
        stays *= 1 - ended / at_risk
    return stays


class TestJoins:
    def test_without_any_history_it_is_the_usual_time(self) -> None:
        assert until_next_join_s(Joins()) == USUAL_GAP_S
        assert until_next_join_s(look(Joins(), {"a", "b"}, 5e8)) == USUAL_GAP_S

    def test_it_learns_how_often_nodes_join_and_not_how_many(self) -> None:
        seen = Joins()
        for k in range(2000):
            seen = look(seen, {f"n{k}", f"m{k}"}, 30.0 * k)
        assert until_next_join_s(seen) == pytest.approx(30.0, rel=0.02)

    def test_nodes_that_leave_are_no_join(self) -> None:
        before = look(Joins(), {"a", "b"}, 0.0)
        assert look(before, {"a"}, 0.0).joins == before.joins
        assert look(before, {"a", "c"}, 0.0).joins == before.joins + 1

    def test_a_node_that_comes_back_joins(self) -> None:
        seen = look(look(Joins(), {"a", "b"}, 0.0), {"a"}, 0.0)
        assert look(seen, {"a", "b"}, 0.0).joins == seen.joins + 1

    def test_looks_in_between_change_nothing(self) -> None:
        begun = look(Joins(), {"a"}, 0.0)
        often = begun
        for now_s in range(7, 4000, 7):
            often = look(often, {"a"}, float(now_s))
        seldom, often = look(begun, {"a", "b"}, 4000.0), look(often, {"a", "b"}, 4000.0)
        assert often.time_s == pytest.approx(seldom.time_s)
        assert often.joins == pytest.approx(seldom.joins)

    def test_it_follows_a_machine_that_changes(self) -> None:
        seen, now_s = Joins(), 0.0
        found = {}
        for gap_s in (20.0, 400.0):
            end_s = now_s + 5 * HALF_LIFE_S
            while now_s < end_s:
                now_s += gap_s
                seen = look(seen, {str(now_s)}, now_s)
            found[gap_s] = until_next_join_s(seen)
        assert found[20.0] == pytest.approx(20.0, rel=0.03)
        # A thirty-second of the weight is still on the twenty times as many joins before.
        assert 200.0 < found[400.0] < 400.0

    def test_a_quiet_machine_has_a_limit(self) -> None:
        seen = look(look(Joins(), {"a"}, 0.0), {"a"}, 30 * 86400.0)
        assert until_next_join_s(seen) == 3600.0

    def test_a_clock_that_goes_back_does_no_harm(self) -> None:
        seen = look(look(Joins(), {"a"}, 100.0), {"a"}, 50.0)
        assert until_next_join_s(seen) == USUAL_GAP_S

    def test_the_journal_can_keep_it(self) -> None:
        seen = look(look(Joins(), {"b", "a"}, 1.5), {"c"}, 99.25)
        assert decode(encode(seen), Joins) == seen


TRIALS = tuple(by_name("hpo-shufflenet", n_trainers=4))
CHOICES = Choices(p_jmax=3)


@pytest.fixture(scope="module")
def hours() -> Fragments:
    return read_trace(SAMPLE).restrict(hours=4.0)


class TestRules:
    @pytest.mark.parametrize(
        "rule",
        [rules.next_join, rules.life, rules.first_loss, rules.rhythm],
        ids=lambda r: r.__name__,
    )
    def test_what_comes_later_changes_nothing_before(
        self, hours: Fragments, rule: rules.Rule
    ) -> None:
        _, whole = rules.replay_with(rule, hours, TRIALS, CHOICES)
        _, half = rules.replay_with(rule, hours.restrict(hours=2.0), TRIALS, CHOICES)
        assert 20 < len(half.t_fwd_s) < len(whole.t_fwd_s)
        assert whole.t_fwd_s[: len(half.t_fwd_s)] == half.t_fwd_s
        assert len(set(whole.t_fwd_s)) > 10

    def test_the_oracle_knows_when_a_node_leaves(self, hours: Fragments) -> None:
        truth = rules.Truth(hours)
        row = len(hours) // 2
        name = hours.names[int(hours.node[row])]
        start_s, end_s = float(hours.start_s[row]), float(hours.end_s[row])
        assert truth.stays_s(name, start_s) == end_s - start_s
        assert truth.stays_s(name, end_s - 1.0) == 1.0

    def test_a_fixed_rule_is_the_policy_with_that_time(self, hours: Fragments) -> None:
        by_rule, _ = rules.replay_with(rules.fixed(60.0), hours, TRIALS, CHOICES)
        plain, _ = play(hours, TRIALS, replace(CHOICES, t_fwd_s=60.0))
        assert [t.done for t in by_rule.trainers] == [t.done for t in plain.trainers]

    def test_ends_of_nodes_change_who_gets_them_and_not_how_many(self, hours: Fragments) -> None:
        first: list[Problem] = []

        def keep(problem: Problem, view: rules.View) -> Problem:
            put = rules.with_ends(rules.fixed(120.0))(problem, view)
            ends_s = {n.expected_remaining_s for n in put.nodes}
            assert None not in ends_s
            plain, by_end = solve(replace(put, nodes=problem.nodes)), solve(put)
            assert plain.sizes() == by_end.sizes()
            first.append(put)
            return put

        rules.replay_with(keep, hours.restrict(hours=1.0), TRIALS, CHOICES)
        assert first


class TestLengths:
    def test_ends_and_time_at_risk_add_up_by_hand(self) -> None:
        seen = observe(Lengths(), {"a", "b"}, 1000.0)
        seen = observe(seen, {"b", "c"}, 1012.0)  # a lasted 12 s
        assert dict(seen.since_s) == {"b": 1000.0, "c": 1012.0}
        assert seen.ended[class_of(12.0)] == 1.0
        assert sum(seen.ended) == 1.0
        assert seen.lasted_s[:3] == pytest.approx((10.0, 2.0, 0.0))

    def test_looks_at_which_nothing_changes_change_nothing(self) -> None:
        once = observe(Lengths(), {"a"}, 0.0)
        assert observe(once, {"a"}, 500.0) is once
        assert observe(observe(once, {"a"}, 30.0), set(), 40.0) == observe(once, set(), 40.0)

    def test_a_node_that_comes_back_begins_anew(self) -> None:
        seen = observe(observe(Lengths(), {"a"}, 0.0), set(), 100.0)
        assert observe(seen, {"a"}, 130.0).since_s == {"a": 130.0}

    def test_what_ended_long_ago_fades_by_half_in_a_week(self) -> None:
        seen = watch([12.0])
        later = observe(observe(seen, {"b"}, seen.at_s), set(), seen.at_s + 7 * 86400.0)
        assert later.ended[class_of(12.0)] == pytest.approx(0.5)

    def test_a_clock_set_back_makes_no_negative_time(self) -> None:
        seen = observe(observe(Lengths(), {"a"}, 100.0), set(), 90.0)
        assert seen.ended[0] == 1.0
        assert min(seen.lasted_s) == 0.0

    def test_it_is_data_the_journal_can_keep(self) -> None:
        seen = watch([12.0, 700.0, 90.0], until_s=95.0)
        assert decode(encode(seen), Lengths) == seen

    def test_classes_of_age_cover_every_age(self) -> None:
        assert [class_of(a) for a in AGES_S] == list(range(N_AGES))
        assert all(class_of(b - 0.01) == k for k, (_, b) in enumerate(pairwise(AGES_S)))
        assert class_of(1e12) == N_AGES - 1


class TestSurvival:
    def test_without_any_history_a_node_stays_as_long_again(self) -> None:
        found = fit(Lengths(), 0.0)
        for age_s in (0.0, 300.0, 5000.0):
            stays = found.chance_to_stay(age_s, PRIOR_S + age_s)
            assert stays == pytest.approx(0.5, abs=0.01)

    def test_fragments_of_constant_risk_do_not_age(self) -> None:
        chance = random.Random(1)  # noqa: S311
        found = fit(watch([chance.expovariate(1 / 400.0) for _ in range(4000)]), 1e5)
        assert found.expected_s(0.0, FAR_S) == pytest.approx(400.0, rel=0.05)
        assert found.expected_s(900.0, FAR_S) == pytest.approx(400.0, rel=0.15)
        assert found.chance_to_stay(50.0, 277.26) == pytest.approx(0.5, abs=0.02)

    def test_where_most_are_short_what_has_lasted_stays(self) -> None:
        chance = random.Random(2)  # noqa: S311
        found = fit(watch([chance.weibullvariate(683.0, 0.56) for _ in range(3000)]), 1e6)
        expected_s = [found.expected_s(a, 3600.0) for a in (0.0, 100.0, 600.0, 3000.0)]
        assert expected_s == sorted(expected_s)
        assert expected_s[-1] > 1.5 * expected_s[0]

    def test_it_agrees_with_kaplan_and_meier_on_cut_fragments(self) -> None:
        chance = random.Random(3)  # noqa: S311
        lengths_s = [chance.weibullvariate(500.0, 0.7) for _ in range(800)]
        until_s = 3000.0  # many still run then
        starts_s = [i * 7.0 for i in range(len(lengths_s))]
        seen_s = [
            (min(x, until_s - s), s + x <= until_s)
            for s, x in zip(starts_s, lengths_s, strict=True)
            if s <= until_s
        ]
        cut, is_end = [s for s, _ in seen_s], [e for _, e in seen_s]
        assert 0.1 < 1 - sum(is_end) / len(is_end) < 0.6
        found = fit(watch(lengths_s, until_s=until_s), until_s)
        for age_s in (20.0, 100.0, 400.0, 1200.0):
            assert found.chance_to_stay(0.0, age_s) == pytest.approx(
                kaplan_meier(cut, is_end, age_s), abs=0.03
            )

    def test_leaving_out_those_that_run_would_make_fragments_too_short(self) -> None:
        seen = watch([100.0, 100.0, 100.0, 5000.0, 5000.0, 5000.0], until_s=1500.0)
        blind = replace(seen, since_s={})
        assert fit(seen, 1500.0).expected_s(0.0, FAR_S) > 1.5 * fit(blind, 1500.0).expected_s(
            0.0, FAR_S
        )

    def test_the_expected_time_is_the_integral_of_the_chance(self) -> None:
        found = fit(watch([60.0, 80.0, 300.0, 1000.0, 4000.0]), 5000.0)
        for age_s, within_s in ((0.0, 300.0), (95.0, 1200.0), (2000.0, 90000.0)):
            step_s = within_s / 20000
            sums = math.fsum(
                found.chance_to_stay(age_s, (i + 0.5) * step_s) * step_s for i in range(20000)
            )
            assert found.expected_s(age_s, within_s) == pytest.approx(sums, rel=1e-4)

    def test_it_rises_with_the_time_looked_ahead_and_never_beyond(self) -> None:
        found = fit(watch([60.0, 80.0, 300.0, 1000.0, 4000.0]), 5000.0)
        ahead = [found.expected_s(70.0, w) for w in (0.0, 1.0, 60.0, 600.0, 6000.0)]
        assert ahead == sorted(ahead)
        assert ahead[0] == 0.0
        assert ahead[1] <= 1.0

    def test_ends_all_at_one_age_are_no_trouble(self) -> None:
        found = fit(watch([60.0] * 500), 1e4)
        just_before, after = AGES_S[class_of(60.0)], AGES_S[class_of(60.0) + 1]
        assert found.chance_to_stay(0.0, just_before) > 0.99
        assert found.chance_to_stay(0.0, after) < 0.35  # spread over the class of age
        assert math.isfinite(found.expected_s(70.0, 1e6))
