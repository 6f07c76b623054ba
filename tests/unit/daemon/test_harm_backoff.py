"""Back-off: levels up and down, and what decisions make of them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from bftrainer.daemon.harm.backoff import (
    MAX_LEVEL,
    PATIENCE,
    BackOff,
    applied,
    forgiven,
    max_held_nodes,
    record_hand_overs,
    rested,
    sentence,
)
from bftrainer.daemon.harm.ledger import HandOver, How, Rule, Vain, Why
from bftrainer.model import canonical
from bftrainer.model.cluster import NodeState
from bftrainer.model.decision import Settings
from tests.support.snapshots import (
    T0,
    Fold,
    claimed,
    held,
    idle_nodes,
    pending,
    pilot,
    record,
    released,
    snapshot,
    with_state,
)

RULE = Rule(limit_s=1.0, share=0.95, quiet_s=600.0)
LIMITED = Settings(reserve_nodes_per_type=0, max_held_nodes=2)


def done(delay_s: float | None, at_s: float = T0) -> HandOver:
    return HandOver(
        job_id="7",
        n_nodes=1,
        node="n1",
        pilot_id="p000001",
        how=How.GIVEN_BACK,
        asked_s=None if delay_s is None else at_s,
        freed_s=at_s + (delay_s or 0.0),
        precision_s=0.0,
    )


def play(state: BackOff, *delays: float | None, at_s: float = T0, held_nodes: int = 8) -> BackOff:
    """Let so many decisions settle one hand-over each."""
    for delay_s in delays:
        state = record_hand_overs(state, [done(delay_s)], RULE, held_nodes=held_nodes, now_s=at_s)
    return state


def settled(state: BackOff, *outcomes: HandOver | Vain, rule: Rule = RULE) -> BackOff:
    """Let one decision settle all of them."""
    return record_hand_overs(state, outcomes, rule, held_nodes=8, now_s=T0)


def test_parts_count_as_nodes_do_and_are_called_so() -> None:
    """Three parts that jobs got late are three bad hand-overs; of whole nodes nothing is new."""
    of_nodes = play(BackOff(), 2.0, 2.0, 2.0)
    state = BackOff()
    for number in range(3):
        part = replace(done(2.0), node=f"n1/{number}", gpus=2, gpu_type="gpu:a100")
        state = settled(state, part)
    assert replace(state, has_parts=False) == of_nodes
    assert max_held_nodes(state) == max_held_nodes(of_nodes) == 4
    assert "it holds 4 parts of nodes at most" in sentence(state)
    assert "because parts of nodes were handed over too late" in sentence(state)
    assert "it holds 4 nodes at most" in sentence(of_nodes)
    in_vain = settled(BackOff(), replace(vain("7"), gpus=2, gpu_type="gpu:a100"))
    assert in_vain.has_parts
    written = canonical.to_plain(of_nodes)
    assert isinstance(written, dict)
    assert "has_parts" not in written
    assert canonical.decode(canonical.encode(state), BackOff) == state


# ---- the rule ---------------------------------------------------------------------------


def test_three_late_hand_overs_are_one_level() -> None:
    state = play(BackOff(), 2.0, 2.0)
    assert state.level == 0
    state = play(state, 2.0, at_s=T0 + 5)
    assert (state.level, state.base_nodes, state.changed_s) == (1, 8, T0 + 5)
    assert (state.tally, state.most_held) == (0.0, 0)  # the next level needs new evidence


def test_what_the_clock_may_have_added_is_no_reason() -> None:
    def without_farewell(delay_s: float, precision_s: float) -> BackOff:
        state = BackOff()
        for _ in range(3):
            state = settled(state, replace(done(delay_s), precision_s=precision_s))
        return state

    assert without_farewell(1.8, 1.8).level == 0
    assert without_farewell(3.1, 3.1).level == 0  # free at once, and then Slurm's tick came
    assert without_farewell(5.1, 5.1).level == 1
    assert without_farewell(1.8, 0.2).level == 1
    state = BackOff()
    for _ in range(3):  # a farewell is exact
        state = settled(state, replace(done(1.8), precision_s=1.8, agent_s=1.7))
    assert state.level == 1


def test_it_begins_with_the_most_held_at_one_of_the_late_hand_overs() -> None:
    state = play(BackOff(), 5.0, held_nodes=15)
    state = play(state, 5.0, 5.0, held_nodes=1)  # a large job has got most of them
    assert (state.level, state.base_nodes, max_held_nodes(state)) == (1, 15, 7)
    assert state.most_held == 0


def test_the_base_is_the_most_held_since_the_tally_was_zero() -> None:
    state = play(BackOff(), 0.1, held_nodes=100)
    state = play(state, 5.0, *[0.1] * 10, held_nodes=50)
    assert (state.tally, state.most_held) == (0.0, 0)
    assert play(state, 5.0, 5.0, 5.0, held_nodes=8).base_nodes == 8


def test_good_hand_overs_make_up_for_a_late_one() -> None:
    """Of 95% promised, a good one takes off 2 * 5/95: nine leave a twentieth, ten leave nothing."""
    state = play(BackOff(), 2.0, *[0.1] * 9)
    assert state.tally == pytest.approx(1.0 / 19.0)
    assert play(state, 0.1).tally == 0.0
    assert play(BackOff(), 2.0, 2.0, 0.1, 2.0).level == 0
    assert play(BackOff(), 2.0, 2.0, 0.1, 2.0, 2.0).level == 1


@pytest.mark.parametrize(
    ("share", "taken_off"), [(0.95, 2.0 / 19.0), (0.8, 0.5), (0.5, 2.0), (0.99, 0.05), (1.0, 0.05)]
)
def test_the_promise_says_how_much_a_good_hand_over_forgives(
    share: float, taken_off: float
) -> None:
    assert forgiven(Rule(share=share)) == pytest.approx(taken_off)
    state = BackOff()
    for _ in range(3):  # whatever is promised, three bad ones without a good one break it
        state = settled(state, done(5.0), rule=Rule(share=share))
    assert state.level == 1


def until_a_level(bad_share: float, seed: int, at_most: int) -> int:
    """Return after how many hand-overs, each bad with that chance, the level rises."""
    chance = random.Random(seed)  # noqa: S311
    state = BackOff()
    for count in range(1, at_most + 1):
        delay_s = 0.1
        if chance.random() < bad_share:
            delay_s = 5.0
        state = play(state, delay_s)
        if state.level:
            return count
    return at_most


def test_a_rate_within_the_promise_is_told_from_a_broken_one() -> None:
    """Page's test, drawn at random: 1% for a day on a large site, beside 20% and half of them."""
    assert until_a_level(0.01, seed=1, at_most=8000) == 8000
    after = [until_a_level(0.2, seed, at_most=1000) for seed in range(20)]
    assert sum(after) / len(after) < 40
    after = [until_a_level(0.5, seed, at_most=1000) for seed in range(20)]
    assert sum(after) / len(after) < 12


def test_what_one_decision_settled_adds_one_at_most() -> None:
    """A job of 64 nodes that all came late is one bad one, as is a forecast that moved 3 jobs."""
    state = settled(BackOff(), *[done(5.0)] * 64)
    assert (state.level, state.tally) == (0, 1.0)
    state = settled(BackOff(), vain("7"), vain("8"), vain("9"))
    assert (state.level, state.tally) == (0, 1.0)
    state = settled(settled(state, vain("10")), vain("11"))
    assert state.level == 1
    half_of_them = settled(BackOff(tally=1.0), *[done(5.0)] * 32, *[done(0.1)] * 32, done(None))
    assert half_of_them.tally == 2.0


def test_each_good_one_of_a_decision_counts() -> None:
    """A cycle of a large machine starts jobs on 60 nodes at once, and vain releases come singly."""
    state = settled(BackOff(tally=2.5), *[done(0.1)] * 10)
    assert state.tally == pytest.approx(2.5 - 20.0 / 19.0)
    kept = settled(BackOff(tally=2.5), done(5.0), *[done(0.1)] * 19)  # 95% in time
    assert kept.tally == pytest.approx(1.5)
    state = BackOff()
    for cycle in range(100):  # 1.6% are bad, all alone
        state = settled(settled(state, *[done(0.1)] * 60), vain(f"{cycle}"))
    assert (state.level, state.tally) == (0, 1.0)


def test_what_could_not_be_measured_changes_nothing() -> None:
    assert play(BackOff(), None, None, None, None) == BackOff()


@pytest.mark.parametrize(
    ("start_s", "level"),
    [(45.0, 1), (5.5, 1), (4.5, 0), (None, 0)],  # a tick of the main scheduler is no loss
)
def test_a_preempted_pilot_counts_where_its_job_lost_a_cycle(
    start_s: float | None, level: int
) -> None:
    state = BackOff()
    for _ in range(3):
        taken = done(0.05)
        if start_s is not None:
            taken = replace(taken, start_s=T0 + start_s)
        state = settled(state, replace(taken, how=How.PREEMPTED))
    assert state.level == level


def vain(job_id: str, why: Why = Why.DID_NOT_START) -> Vain:
    family = job_id.partition("_")[0] if "_" in job_id else ""
    return Vain(
        job_id=job_id,
        family=family,
        node="n1",
        pilot_id="p1",
        asked_s=T0,
        settled_s=T0 + 60,
        why=why,
    )


@pytest.mark.parametrize(
    ("released_for", "level"),
    [
        ([vain("7"), vain("8"), vain("9")], 1),
        ([vain("7_1"), vain("7_2"), vain("7_3"), vain("8")], 0),  # an array is one job
        ([vain(str(n), Why.STARTED_ELSEWHERE) for n in range(9)], 0),
        ([vain(str(n), Why.LEFT_THE_QUEUE) for n in range(9)], 0),
    ],
    ids=["three jobs", "two jobs", "elsewhere", "left"],
)
def test_releases_in_vain_count_once_for_each_job(released_for: list[Vain], level: int) -> None:
    state = BackOff()
    for release in released_for:
        state = settled(state, release)
    assert state.level == level


def test_levels_up_and_down_again() -> None:
    """A simulated sequence: a bad hour, a better one, quiet."""
    state, levels = BackOff(), [0]
    now_s = T0
    for _ in range(3 * (MAX_LEVEL + 2)):
        now_s += 10.0
        state = play(rested(state, RULE, now_s=now_s), 5.0, at_s=now_s, held_nodes=64)
        levels.append(state.level)
    assert levels == sorted(levels)
    assert state.level == MAX_LEVEL
    assert [max_held_nodes(replace(state, level=k)) for k in range(1, 6)] == [32, 16, 8, 4, 2]
    late_s = now_s
    while state.level:
        now_s += 60.0
        state = play(rested(state, RULE, now_s=now_s), 0.1, at_s=now_s)
    assert now_s - late_s == pytest.approx(MAX_LEVEL * RULE.quiet_s, rel=0.1)
    assert (state.base_nodes, sentence(state)) == (0, "")


def test_a_late_hand_over_starts_the_quiet_time_again() -> None:
    state = play(BackOff(), 2.0, 2.0, 2.0)
    state = play(state, 0.1, 2.0, 0.1, at_s=T0 + 500)
    assert rested(state, RULE, now_s=T0 + 900).level == 1
    assert rested(state, RULE, now_s=T0 + 1101).level == 0


def test_a_level_ends_where_the_promise_is_kept_although_not_all_are_in_time() -> None:
    """A large site at 1% always has a bad one in half an hour, and would back off for good."""
    state = play(BackOff(), 2.0, 2.0, 2.0)
    state = play(state, *[0.1] * 60, 2.0, *[0.1] * 60, at_s=T0 + 500)
    assert rested(state, RULE, now_s=T0 + RULE.quiet_s).level == 0
    state = play(BackOff(), 2.0, 2.0, 2.0)
    state = play(state, *[0.1] * 18, 2.0, 0.1, at_s=T0 + 500)  # 1 of 19 is more than 5%
    assert rested(state, RULE, now_s=T0 + RULE.quiet_s).level == 1


def test_silence_takes_longer_than_good_hand_overs() -> None:
    state = play(BackOff(), 2.0, 2.0, 2.0)
    assert rested(state, RULE, now_s=T0 + RULE.quiet_s + 1).level == 1
    assert rested(state, RULE, now_s=T0 + PATIENCE * RULE.quiet_s).level == 0


def test_one_node_always_stays() -> None:
    assert max_held_nodes(BackOff(level=5, base_nodes=3)) == 1


def test_settings_and_state() -> None:
    settings = Settings()
    assert applied(settings, BackOff()) is settings
    more = applied(settings, BackOff(level=2, base_nodes=8))
    assert (more.max_held_nodes, more.hold_off_cycles, more.reserve_extra_nodes) == (2, 3.0, 2)
    assert replace(more, max_held_nodes=None, hold_off_cycles=1.0, reserve_extra_nodes=0) == (
        settings
    )
    state = play(BackOff(), 2.0, 0.1)
    assert canonical.decode(canonical.encode(state), BackOff) == state
    assert sentence(BackOff(level=1, base_nodes=8)).startswith("bftrainer backs off (level 1")


def test_a_level_of_the_release_before_is_kept() -> None:
    """Its entries had the window of the last 20 hand-overs."""
    before = (
        '{"base_nodes":8,"changed_s":5.0,"good":1,"held":[8,7],"in_vain":["7"],"late_s":5.0,'
        '"level":2,"type":"BackOff","window":[false,true]}'
    )
    assert canonical.decode(before, BackOff) == BackOff(
        level=2, base_nodes=8, changed_s=5.0, late_s=5.0, good=1.0, in_vain=("7",)
    )


# ---- decisions --------------------------------------------------------------------------


def test_no_more_nodes_are_claimed_than_may_be_held() -> None:
    plan = Fold(settings=LIMITED).decide(snapshot(idle_nodes(5)), trainers=[record()])
    assert len(claimed(plan)) == 2
    assert len(plan.pool) == 2
    reasons = {plan.not_used[n.name] for n in idle_nodes(5) if n.name not in claimed(plan)}
    assert len(reasons) == 1
    assert reasons.pop().startswith("bftrainer backs off: it holds 2 nodes at most")


def test_pilots_beyond_the_limit_go_and_those_not_held_yet_go_first() -> None:
    nodes = with_state(idle_nodes(4), NodeState.ALLOCATED, "n1", "n2", "n3")
    fold = Fold(settings=LIMITED)
    pilots = [*held("n1", "n2", "n3"), pilot("n4", is_held=False)]
    plan = fold.decide(snapshot(nodes), pilots, [record()])
    assert "n4" in released(plan)
    assert len(released(plan)) == 2
    assert len(set(plan.assignment) | {n.name for n in plan.pool}) == 2
    left = [p for p in pilots if p.node not in released(plan)]
    again = fold.decide(snapshot(nodes), left, [record()])
    assert (again.releases, again.claims) == ((), ())  # level-triggered


def test_nodes_that_can_be_used_longest_are_the_ones_that_stay() -> None:
    nodes = with_state(idle_nodes(3), NodeState.PLANNED, "n1", "n2")
    jobs = [
        pending("7", 9, start_s=T0 + 5000, planned=("n1",)),
        pending("8", 9, start_s=T0 + 9000, planned=("n2",)),
    ]
    plan = Fold(settings=LIMITED).decide(snapshot(nodes, jobs), trainers=[record()])
    assert claimed(plan) == {"n2", "n3"}


def test_the_reserve_is_larger() -> None:
    settings = Settings(reserve_nodes_per_type=1, reserve_extra_nodes=2)
    plan = Fold(settings=settings).decide(snapshot(idle_nodes(5)), trainers=[record()])
    assert len(plan.reserve) == 3
    assert len(claimed(plan)) == 2


@pytest.mark.parametrize(
    ("cycles", "at_s", "is_off"), [(1.0, 25, False), (2.0, 25, True), (2.0, 55, False)]
)
def test_a_node_given_back_is_held_off_for_more_cycles(
    cycles: float, at_s: float, is_off: bool
) -> None:
    fold = Fold(settings=Settings(reserve_nodes_per_type=0, cycle_s=30.0, hold_off_cycles=cycles))
    busy = with_state(idle_nodes(2), NodeState.ALLOCATED, "n1", "n2")
    fold.decide(snapshot(busy, [pending("7", 1)]), held("n1", "n2"), [record()])
    given_back = fold.memory.held_off.keys()
    assert len(given_back) == 1
    nodes = with_state(idle_nodes(2), NodeState.ALLOCATED, *({"n1", "n2"} - given_back))
    rest = held(*({"n1", "n2"} - given_back))
    for look_s, ended_s in ((1.0, -5.0), (at_s, at_s - 1.0)):
        seen = snapshot(nodes, [pending("7", 1)], at_s=T0 + look_s, cycle_ended_s=T0 + ended_s)
        fold.decide(seen, rest, [record()], at_s=T0 + look_s)
    assert (fold.memory.held_off.keys() == given_back) is is_off
