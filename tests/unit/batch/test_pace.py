"""The pace of looks: budgets, latency, announcements, orders; on a clock of our own."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftrainer.batch.rate_limit import (
    BURST_S,
    LATENCY_FACTOR,
    LEAST_REST_S,
    UNANSWERED_REST_S,
    WINDOW_S,
    PaceRules,
    PollRateLimiter,
    RequestWindow,
)
from bftrainer.daemon.poller import rules_of
from bftrainer.site.policy.model import SitePolicy

POLLING = rules_of(SitePolicy(), has_hook=False)
HOOK = rules_of(SitePolicy(), has_hook=True)


@dataclass
class Asked:
    """A virtual daemon: looks as soon as the pace lets it, notes when it asked."""

    rules: PaceRules
    took_s: float = 0.04
    cost: int = 2
    now_s: float = 0.0
    uncalled: list[tuple[float, int]] = field(default_factory=list)
    called: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pace = PollRateLimiter(self.rules)

    def look(self, cost: int | None = None) -> None:
        """Wait until it is time and look."""
        self.now_s = self.pace.due_s(self.now_s)
        is_called = self.pace.is_called(self.now_s)
        requests = self.cost if cost is None else cost
        (self.called if is_called else self.uncalled).append((self.now_s, requests))
        ended_s = self.now_s + self.took_s
        self.pace.looked(self.now_s, ended_s, requests, is_called=is_called)
        self.now_s = ended_s

    def until(self, end_s: float) -> None:
        """Look as often as it may."""
        while self.pace.due_s(self.now_s) < end_s:
            self.look()


def most_in_a_minute(requests: list[tuple[float, int]]) -> int:
    """Return the largest number of requests in any 60 s."""
    return max(
        sum(count for at_s, count in requests if start_s <= at_s < start_s + WINDOW_S)
        for start_s, _ in requests
    )


def test_the_default_pace_is_the_one_that_was_promised() -> None:
    assert (POLLING.interval_s, POLLING.requests_per_minute) == (1.0, 130)
    assert (HOOK.requests_per_minute, HOOK.total_per_minute) == (12, 130)
    assert HOOK.called_interval_s == 1.0


@pytest.mark.parametrize("cost", [2, 3, 4])
def test_without_announcements_a_look_a_second_as_far_as_the_budget_goes(cost: int) -> None:
    asked = Asked(POLLING, cost=cost)
    asked.until(600)
    assert most_in_a_minute(asked.uncalled) <= POLLING.requests_per_minute
    per_minute = len(asked.uncalled) / 10
    assert per_minute == pytest.approx(min(60.0, POLLING.requests_per_minute / cost), rel=0.05)


@pytest.mark.parametrize("interval_s", [1.0, 7.0, 30.0])
@pytest.mark.parametrize("cost", [2, 3, 4])
def test_with_announcements_at_most_twelve_requests_a_minute(interval_s: float, cost: int) -> None:
    rules = rules_of(SitePolicy(poll_interval_with_hook_s=interval_s), has_hook=True)
    asked = Asked(rules, cost=cost)
    asked.until(1200)
    assert most_in_a_minute(asked.uncalled) <= 12
    possible = min(60 / interval_s, 12 / cost)  # looks a minute
    # Room is left for a look that asks for more than the last one did.
    assert 20 * 0.7 * possible <= len(asked.uncalled) <= 20 * possible + 1


@pytest.mark.parametrize("rules", [POLLING, HOOK], ids=["polling", "hook"])
def test_a_slow_controller_is_asked_a_fifth_of_the_time_at_most(rules: PaceRules) -> None:
    asked = Asked(rules, took_s=9.0)
    asked.look()
    first_s = asked.now_s - 9.0
    asked.pace.calls.call(asked.now_s)
    assert asked.pace.due_s(asked.now_s) >= first_s + LATENCY_FACTOR * 9.0


def test_one_slow_look_does_not_make_blind_and_two_are_a_slow_controller() -> None:
    pace = PollRateLimiter(POLLING)
    pace.looked(0.0, 0.1, 2, is_called=False)
    pace.looked(1.0, 9.0, 2, is_called=False)
    assert pace.due_s(9.0) == 9.0 + LEAST_REST_S
    pace.looked(10.0, 18.0, 2, is_called=False)
    assert pace.due_s(18.0) == 10.0 + LATENCY_FACTOR * 8.0


def test_one_that_did_not_answer_is_asked_again_soon() -> None:
    pace = PollRateLimiter(POLLING)
    pace.looked(0.0, 9.0, 1, is_called=False, was_answered=False)
    assert pace.due_s(9.0) == 9.0 + UNANSWERED_REST_S
    pace.looked(14.0, 23.0, 2, is_called=False)  # slow, but it answers
    assert pace.due_s(23.0) == 14.0 + LATENCY_FACTOR * 9.0


def test_a_burst_of_announcements_gets_one_look_that_shows_it_all() -> None:
    asked = Asked(HOOK)
    asked.look()
    ripe_s = [30.0 + 0.005 * n for n in range(100)]
    asked.now_s = 29.0
    for at_s in ripe_s:
        asked.pace.calls.call(at_s)
    asked.pace.looked(20.0, 20.04, 2, is_called=False)
    asked.look()
    assert [at_s for at_s, _ in asked.called] == [pytest.approx(ripe_s[-1])]
    assert asked.pace.calls.due_s() == math.inf


def test_a_burst_without_end_is_looked_at_nevertheless() -> None:
    asked = Asked(HOOK)
    asked.look()
    step_s = 0.1
    ripe_s = 1.0
    while ripe_s < 60.0:
        ripe_s += step_s
        asked.pace.calls.call(ripe_s)
        if asked.pace.due_s(asked.now_s) <= ripe_s:
            asked.look()
    starts = [at_s for at_s, _ in asked.called]
    assert len(starts) > 20
    assert max(b - a for a, b in pairwise(starts)) <= 2 * BURST_S + 2 * step_s
    assert most_in_a_minute(asked.called + asked.uncalled) <= HOOK.total_per_minute


def test_an_announcement_that_a_look_came_too_early_for_gets_its_own() -> None:
    asked = Asked(HOOK)
    asked.look()
    asked.pace.calls.call(5.0)
    asked.pace.looked(4.9, 4.95, 2, is_called=False)
    asked.now_s = 4.95
    assert asked.pace.due_s(asked.now_s) == pytest.approx(5.9)  # a second after the last


def test_orders_are_paid_by_the_looks_after_them() -> None:
    asked = Asked(POLLING)
    asked.until(120)
    asked.pace.ordered(asked.now_s, 40)
    before, asked.uncalled = asked.uncalled, []
    start_s = asked.now_s
    asked.until(start_s + WINDOW_S)
    looks = sum(count for _, count in asked.uncalled)
    assert looks + 40 <= POLLING.requests_per_minute
    assert len(before) > 110
    assert len(asked.uncalled) > 40  # more seldom, but steadily
    rests = [b[0] - a[0] for a, b in pairwise(asked.uncalled)]
    assert max(rests) < 1.6


def test_however_many_orders_a_daemon_goes_on_looking() -> None:
    asked = Asked(POLLING)
    asked.until(10)
    asked.pace.ordered(asked.now_s, 1000)
    assert asked.pace.due_s(asked.now_s) <= asked.now_s + POLLING.longest_rest_s
    assert asked.pace.requests_last_minute(asked.now_s) > 1000


def test_what_is_announced_is_seen_soon_however_many_pilots_were_submitted() -> None:
    asked = Asked(HOOK)
    asked.until(10)
    asked.pace.ordered(asked.now_s, 1000)
    asked.look(4)
    asked.pace.calls.call(asked.now_s + 0.3)
    assert HOOK.longest_called_rest_s == 2.0
    assert asked.pace.due_s(asked.now_s) <= asked.now_s + 2.0


def test_a_batch_system_without_a_controller_is_looked_at_as_often_as_is_wished() -> None:
    asked = Asked(rules_of(SitePolicy(poll_interval_s=0.05), has_hook=False), cost=0, took_s=0.001)
    asked.until(60)
    assert len(asked.uncalled) > 1000


@given(
    limit=st.integers(2, 40),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["look", "call", "order"]), st.floats(0.0, 20.0), st.integers(1, 4)
        ),
        max_size=120,
    ),
)
def test_looks_keep_both_budgets_whatever_happens(
    limit: int, steps: list[tuple[str, float, int]]
) -> None:
    asked = Asked(
        PaceRules(
            interval_s=1.0,
            requests_per_minute=limit,
            called_interval_s=0.5,
            total_per_minute=3 * limit,
            longest_rest_s=5.0,
            longest_called_rest_s=2.0,
        )
    )
    for kind, span_s, number in steps:
        if kind == "look":
            asked.look(number)
        elif kind == "call":
            asked.pace.calls.call(asked.now_s + span_s)
        else:
            asked.now_s += span_s
            asked.pace.ordered(asked.now_s, number)
    # A single look may cost more than a very small budget.
    if asked.uncalled:
        assert most_in_a_minute(asked.uncalled) <= max(limit, 4)
    if both := sorted(asked.uncalled + asked.called):
        assert most_in_a_minute(both) <= max(3 * limit, 4)


def test_what_was_spent_is_forgotten_after_a_minute() -> None:
    spent = RequestWindow()
    spent.add(0.0, 3)
    spent.add(10.0, 2)
    assert spent.count(59.9) == 5
    assert spent.count(60.0) == 2
    assert spent.free_s(60.0, 4, limit=4) == 70.0
    assert spent.free_s(60.0, 2, limit=4) == 60.0


def test_an_announced_job_is_looked_at_though_a_look_has_just_been() -> None:
    asked = Asked(HOOK, cost=3)
    asked.look()
    asked.now_s = 20.0
    asked.pace.calls.call(20.0)
    asked.look()
    for at_s in (20.25, 20.5, 20.75, 21.0):
        asked.pace.soon.call(at_s)
        asked.look()
        assert asked.called[-1][0] == pytest.approx(at_s)
    asked.pace.soon.call(21.25)
    asked.look()
    assert asked.called[-1][0] > 21.3, "one more has to wait"


def test_jobs_announced_without_end_leave_looks_as_far_apart_as_the_budget_wants() -> None:
    asked = Asked(HOOK, cost=3)
    asked.look()
    ripe_s = 1.0
    while ripe_s < 300.0:
        ripe_s += 0.07
        asked.pace.soon.call(ripe_s)
        if asked.pace.due_s(asked.now_s) <= ripe_s:
            asked.look()
    everything = sorted(asked.called + asked.uncalled)
    assert most_in_a_minute(everything) <= HOOK.total_per_minute
    starts = [at_s for at_s, _ in everything]
    assert max(b - a for a, b in pairwise(starts)) < 6.0  # never blind for long
