"""How many nodes stay unborrowed, learnt from small jobs, and which."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from bftrainer.canonical import decode, encode
from bftrainer.decide.reserve import (
    HALF_LIFE_S,
    MAX_SHARE,
    MOST_RECENT,
    PRIOR,
    SHORT_SHARE,
    SmallJobs,
    choose,
    look,
    wanted,
)
from bftrainer.decide.types import PoolNode, Settings
from bftrainer.poll.snapshot import Job, Node, NodeState
from tests.support.snapshots import (
    T0,
    Fold,
    claimed,
    idle_nodes,
    pending,
    record,
    running,
    snapshot,
    with_state,
)

RESTORE_S = 30.0
HUNDRED = idle_nodes(100)


def _at_once(job_id: str, at_s: float, *nodes: str, waited_s: float = 0.0) -> Job:
    return replace(running(job_id, *nodes, start_s=at_s), submit_s=at_s - waited_s)


def _watch(
    arrivals: Iterable[tuple[float, int]],
    nodes: Sequence[Node] = HUNDRED,
    *,
    waited_s: float = 0.0,
    had_room: Sequence[str] = (),
) -> SmallJobs:
    """What is learnt of jobs that come at these times, one look after each."""
    seen = look(SmallJobs(), snapshot(nodes), had_room, RESTORE_S, T0)
    for number, (at_s, size) in enumerate(arrivals):
        names = [n.name for n in nodes[:size]]
        job = _at_once(str(number), T0 + at_s, *names, waited_s=waited_s)
        seen = look(seen, snapshot(nodes, [job]), had_room, RESTORE_S, T0 + at_s)
    return seen


def _size(seen: SmallJobs, n_nodes: int = 100, later_s: float = 0.0) -> int:
    return wanted(seen, "default", n_nodes, (seen.at_s or T0) + later_s)


def _far(count: int, size: int) -> list[tuple[float, int]]:
    return [(1000.0 * k, size) for k in range(1, count + 1)]


class TestSize:
    def test_one_without_history_and_with_jobs_of_one_node(self) -> None:
        assert _size(SmallJobs()) == 1
        assert _size(_watch(_far(200, 1))) == 1

    def test_two_that_needed_more_are_more_than_a_twentieth(self) -> None:
        assert _size(_watch(_far(1, 4))) == 1
        assert _size(_watch(_far(2, 4))) == 4

    def test_jobs_within_the_restore_time_add_up(self) -> None:
        together = [(1000.0 * k + d, 1) for k in range(1, 40) for d in (0.0, 5.0, 10.0)]
        assert _size(_watch(together)) == 3
        apart = [(1000.0 * k + d, 1) for k in range(1, 40) for d in (0.0, 31.0, 62.0)]
        assert _size(_watch(apart)) == 1

    def test_what_was_long_ago_fades(self) -> None:
        seen = _watch(_far(4, 4))
        assert _size(seen, later_s=0.5 * HALF_LIFE_S) == 4
        assert _size(seen, later_s=3 * HALF_LIFE_S) == 1

    @pytest.mark.parametrize(("n_nodes", "size"), [(5, 1), (30, 3), (60, 6), (100, 8)])
    def test_it_is_bounded_by_a_share_of_the_type(self, n_nodes: int, size: int) -> None:
        seen = _watch(_far(30, 8))
        assert _size(seen, n_nodes) == size
        assert size <= max(1, MAX_SHARE * n_nodes)

    def test_at_most_the_stated_share_finds_fewer_than_it_asks_for(self) -> None:
        chance = random.Random(5)  # noqa: S311
        at_s, arrivals = 0.0, []
        for _ in range(800):
            at_s += chance.expovariate(1 / 25.0)
            arrivals.append((at_s, chance.choice([1, 1, 1, 2, 4])))
        seen = _watch(arrivals, idle_nodes(640))
        size = _size(seen, 640)
        # Counted again, by hand, over all arrivals (they span a quarter of the half-life).
        needs = [
            n + sum(m for s, m in arrivals[max(0, k - 40) : k] if s > t - RESTORE_S)
            for k, (t, n) in enumerate(arrivals)
        ]
        short = [sum(need > k for need in needs) / len(needs) for k in (size - 1, size)]
        assert 2 < size < 64
        assert short[1] <= SHORT_SHARE * (1 + PRIOR / len(needs)) + 0.01
        assert short[0] > SHORT_SHARE - 0.01


class TestArrivals:
    def test_what_the_first_look_shows_has_not_arrived(self) -> None:
        jobs = [_at_once(str(k), T0, f"n{4 * k + 1}", f"n{4 * k + 2}") for k in range(20)]
        seen = look(SmallJobs(), snapshot(HUNDRED, jobs), (), RESTORE_S, T0)
        assert look(seen, snapshot(HUNDRED, jobs), (), RESTORE_S, T0 + 5) is seen

    def test_jobs_that_had_to_wait_count_only_if_there_was_room(self) -> None:
        assert not _watch(_far(9, 4), waited_s=60.0).by_type
        had_room = [str(k) for k in range(9)]
        assert _size(_watch(_far(9, 4), waited_s=60.0, had_room=had_room)) == 4

    def test_large_jobs_and_unknown_waits_do_not_count(self) -> None:
        assert not _watch(_far(9, 9)).by_type  # more than SMALL_NODES
        assert not _watch(_far(9, 2), idle_nodes(19)).by_type  # more than a tenth of them
        seen = look(SmallJobs(), snapshot(HUNDRED), (), RESTORE_S, T0)
        blind = running("1", "n1")
        assert not look(seen, snapshot(HUNDRED, [blind]), (), RESTORE_S, T0).by_type

    def test_pilots_are_no_jobs(self) -> None:
        seen = look(SmallJobs(), snapshot(HUNDRED), (), RESTORE_S, T0)
        pilot = replace(_at_once("1", T0, "n1"), pilot_id="p1")
        assert look(seen, snapshot(HUNDRED, [pilot]), (), RESTORE_S, T0) is seen

    def test_what_is_kept_stays_small_and_can_be_written_down(self) -> None:
        seen = _watch([(k / 1000, 1) for k in range(1, 400)])
        (demand,) = seen.by_type.values()
        assert len(demand.recent) <= MOST_RECENT
        assert len(demand.needs) <= 64
        assert decode(encode(seen), SmallJobs) == seen


class TestChoice:
    def _choose(self, count: int, **until_s: float | None) -> list[str]:
        free = [
            PoolNode(
                name=name,
                node_type="x",
                gpus=0,
                usable_until_s=None if end is None else T0 + end,
            )
            for name, end in until_s.items()
        ]
        return [n.name for n in choose(free, count, T0)]

    def test_an_hour_fits_then_the_shorter_gap_is_worth_less_to_trainers(self) -> None:
        order = self._choose(6, a=None, b=9000.0, c=3600.0, d=3599.0, e=60.0, f=None)
        assert order == ["c", "b", "f", "a", "d", "e"]

    def test_it_stays_while_time_passes(self) -> None:
        free = [
            PoolNode(name=f"n{k}", node_type="x", gpus=0, usable_until_s=T0 + 8000.0 + k % 3)
            for k in range(9)
        ]
        first = choose(free, 3, T0)
        assert all(choose(free, 3, T0 + s) == first for s in (10.0, 900.0, 4000.0))


class TestInTheDecision:
    def test_the_reserve_grows_with_what_small_jobs_needed(self) -> None:
        fold = Fold(settings=Settings(learns_reserve=True))
        plan = fold.decide(snapshot(HUNDRED), (), [record(n_max=99)])
        assert len(plan.reserve) == 1
        for k in range(1, 9):
            now_s = T0 + 100.0 * k
            job = _at_once(str(k), now_s, "n1", "n2", "n3", "n4")
            busy = with_state(HUNDRED, NodeState.ALLOCATED, *job.nodes)
            plan = fold.decide(
                snapshot(busy, [job], at_s=now_s), (), [record(n_max=99)], at_s=now_s
            )
        assert len(plan.reserve) == 4
        assert not claimed(plan) & set(plan.reserve)
        again = fold.decide(snapshot(busy, [job]), (), [record(n_max=99)], at_s=now_s, is_new=False)
        assert again.reserve == plan.reserve

    def test_a_daemon_that_backs_off_keeps_more(self) -> None:
        settings = Settings(learns_reserve=True, reserve_extra_nodes=2)
        plan = Fold(settings=settings).decide(snapshot(HUNDRED), (), [record()])
        assert len(plan.reserve) == 3

    def test_jobs_we_gave_back_for_are_among_those_that_had_room(self) -> None:
        fold = Fold(settings=Settings(learns_reserve=True, cycle_s=5.0))
        busy = with_state(HUNDRED, NodeState.ALLOCATED, *(n.name for n in HUNDRED))
        for k in range(3):
            now_s = T0 + 1000.0 * k
            free = with_state(busy, NodeState.IDLE, "n1", "n2", "n3")
            waits = pending(f"j{k}", 3, submit_s=now_s)
            fold.decide(snapshot(free, [waits], at_s=now_s), (), [], at_s=now_s)
            runs = _at_once(f"j{k}", now_s + 20, "n1", "n2", "n3", waited_s=20.0)
            fold.decide(snapshot(busy, [runs], at_s=now_s + 20), (), [], at_s=now_s + 20)
        assert wanted(fold.memory.small_jobs, "default", 100, fold.now_s) == 3

    def test_nothing_is_remembered_where_the_number_is_set(self) -> None:
        fold = Fold(settings=Settings())
        for k in range(3):
            fold.decide(snapshot(HUNDRED, [_at_once(str(k), T0, "n1")]), (), [])
        assert fold.memory.small_jobs == SmallJobs()
