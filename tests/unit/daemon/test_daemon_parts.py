"""The daemon's parts by themselves: adoption, what was observed, announcements, reloads."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from bftrainer.batch.announcer import Announcement
from bftrainer.batch.awake import AWAKE
from bftrainer.batch.batch_system import BatchSystem
from bftrainer.daemon.adoption import Adoption
from bftrainer.daemon.awakenings import Awakenings
from bftrainer.daemon.decider import Observed
from bftrainer.daemon.lookout import Lookout
from bftrainer.daemon.reload import Reloading
from bftrainer.daemon.state import InForce
from bftrainer.daemon.systemd import ServiceManager
from bftrainer.model.cluster import STAND_IN, Job, JobState, Snapshot
from bftrainer.model.decision import Claim, DecisionInput, Memory, Plan, Release
from bftrainer.model.errors import UsageError
from bftrainer.site.policy.model import SitePolicy

NOTHING = Plan(
    assignment={},
    claims=(),
    releases=(),
    pool=(),
    not_used={},
    reserve=(),
    allocation=None,
    memory=Memory(),
)
FULL = cast("DecisionInput", SimpleNamespace(gives_back_only=False))
HASTY = cast("DecisionInput", SimpleNamespace(gives_back_only=True))


class TestAdoption:
    def test_it_is_over_when_all_have_come_or_ended(self) -> None:
        adoption = Adoption(lambda: 0.0)
        adoption.begin(["p1", "p2"], 30.0)
        adoption.settled("p1")
        assert adoption.awaited == {"p2"}
        before = adoption.is_over
        adoption.settled("p2")
        assert (before, adoption.is_over) == (False, True)

    def test_it_is_over_when_the_time_is(self) -> None:
        now_s = [100.0]
        adoption = Adoption(lambda: now_s[0])
        adoption.begin(["p1"], 30.0)
        now_s[0] = 129.9
        before = adoption.is_over
        now_s[0] = 130.0
        assert (before, adoption.is_over) == (False, True)
        assert adoption.awaited == {"p1"}  # lost

    def test_nobody_is_waited_for_where_nothing_ran(self) -> None:
        adoption = Adoption(lambda: 0.0)
        adoption.begin([], 30.0)
        assert adoption.is_over


class TestObserved:
    def test_a_plan_is_news_if_it_asks_for_anything_or_gives_nodes_to_others(self) -> None:
        seen = Observed()
        assert seen.is_news(NOTHING)  # the first
        seen.follow(FULL, NOTHING)
        assert not seen.is_news(NOTHING)
        assert seen.is_news(replace(NOTHING, assignment={"n1": "t1"}))
        release = Release(pilot_id="p1", node="n1", reason="")
        assert seen.is_news(replace(NOTHING, releases=(release,)))
        claim = Claim(node="n1", for_trainer="t1", time_limit_s=60.0)
        assert seen.is_news(replace(NOTHING, claims=(claim,)))

    def test_a_plan_that_only_gives_back_is_followed_but_not_shown(self) -> None:
        seen, memory = Observed(), Memory(assignment={"n1": "t1"})
        seen.follow(FULL, NOTHING)
        seen.follow(HASTY, replace(NOTHING, memory=memory))
        assert seen.memory == memory
        assert seen.plan is NOTHING
        assert seen.given is FULL

    def test_the_first_plan_is_shown_whatever_it_is(self) -> None:
        seen = Observed()
        seen.follow(HASTY, NOTHING)
        assert seen.plan is NOTHING


class TestLookout:
    JOB = Job(
        job_id=f"{STAND_IN}1",
        user="alice",
        state=JobState.PENDING,
        n_nodes=1,
        time_limit_s=60.0,
        submit_s=1000.0,
    )
    SUBMITTED = Announcement(at_s=1000.0, partition="", job=JOB)
    PILOT_ENDED = Announcement(at_s=1000.0, partition="", nodes=("n9",))

    def lookout(self) -> Lookout:
        awakenings = Awakenings(AWAKE, lambda: 1000.0)
        return Lookout(cast("BatchSystem", None), awakenings, lambda: 1000.0, lambda one: one)

    def test_a_job_is_added_to_the_last_snapshot(self) -> None:
        lookout, snapshot = self.lookout(), Snapshot(taken_at_s=1000.0, nodes=(), jobs=())
        completed = lookout.hear((self.SUBMITTED,), snapshot)
        assert completed is not None
        assert [job.job_id for job in completed.jobs or ()] == [self.JOB.job_id]
        assert snapshot.jobs == ()
        assert lookout.is_unshown
        lookout.close()

    def test_nothing_is_to_be_decided_before_the_first_poll_or_where_nothing_changes(self) -> None:
        lookout, snapshot = self.lookout(), Snapshot(taken_at_s=1000.0, nodes=(), jobs=())
        assert lookout.hear((self.PILOT_ENDED,), snapshot) is None
        assert lookout.hear((), snapshot) is None
        assert lookout.hear((self.SUBMITTED,), None) is None
        assert lookout.is_unshown  # the first poll shows it, or not
        lookout.close()


class TestReloading:
    SYSTEM = cast("BatchSystem", SimpleNamespace(cycle_s=30.0, idle_confirmations=2))

    def reloading(self, *policies: SitePolicy) -> tuple[InForce, Reloading]:
        rest = iter(policies)
        in_force = InForce.of(SitePolicy(), self.SYSTEM)
        return in_force, Reloading(in_force, self.SYSTEM, ServiceManager({}), lambda: next(rest))

    def test_a_policy_is_in_force_between_two_decisions_and_says_what_changed(self) -> None:
        in_force, reloading = self.reloading(SitePolicy(journal_days=3))
        calls: list[str] = []
        reloading.on_read = lambda: calls.append("decide")
        hash_before = in_force.policy_hash
        asyncio.run(reloading.reload("a test"))
        assert calls == ["decide"]
        assert in_force.policy_hash == hash_before  # a decision may be under way
        changed = reloading.put_in_force()
        assert changed is not None
        assert [change.setting for change in changed.changes] == ["journal_days"]
        assert (changed.before, changed.policy_hash) == (hash_before, in_force.policy_hash)
        assert hash_before != in_force.policy_hash
        assert in_force.policy.journal_days == 3
        assert reloading.put_in_force() is None

    def test_the_same_policy_changes_nothing(self) -> None:
        _, reloading = self.reloading(SitePolicy())
        asyncio.run(reloading.reload("a test"))
        assert reloading.put_in_force() is None

    def test_a_policy_that_cannot_be_read_changes_nothing_and_is_noted(self) -> None:
        in_force = InForce.of(SitePolicy(), self.SYSTEM)
        reloading = Reloading(in_force, self.SYSTEM, ServiceManager({}), None)
        with pytest.raises(UsageError, match="without a policy file"):
            asyncio.run(reloading.reload("a test"))
        assert reloading.put_in_force() is None
        [note] = reloading.notes()
        assert "BFT-1546" in note
