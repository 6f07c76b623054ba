"""Jobs that are announced and that the batch system then refuses: what they cost everybody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from bftrainer.batch.announcer import Announcement, UnseenAnnouncements
from bftrainer.model.cluster import Job, NodeState, Snapshot
from bftrainer.model.decision import PilotView
from tests.support.snapshots import (
    T0,
    Fold,
    held,
    idle_nodes,
    node_names,
    pending,
    record,
    released,
    snapshot,
    with_state,
)

N_NODES = 4
LOOKS_APART_S = 1.4  # of a daemon that announcements call to look again and again


@dataclass
class Site:
    """A trainer has all nodes; announcements, looks and decisions come as in the daemon."""

    now_s: float = T0
    queue: list[Job] = field(default_factory=list)  # what looks show
    given_back: dict[str, float] = field(default_factory=dict)  # pilots, and when
    _number: int = 0

    def __post_init__(self) -> None:
        self.fold, self.announced = Fold(), UnseenAnnouncements(lambda: self.now_s)
        self.nodes = with_state(idle_nodes(N_NODES), NodeState.ALLOCATED, *node_names(N_NODES))
        self.seen = self.looked()
        self.looked_s = self.now_s
        self.decide()

    def looked(self) -> Snapshot:
        return snapshot(self.nodes, self.queue, at_s=self.now_s, cycle_ended_s=self.now_s)

    def submit(self, *users: str, n_nodes: int = N_NODES, is_accepted: bool = False) -> None:
        for user in users:
            self._number += 1
            job = pending(f"announced-{self._number}", n_nodes, reason="", submit_s=self.now_s)
            job = replace(job, user=user)
            said = Announcement(at_s=self.now_s, partition=job.partitions[0], job=job)
            assert self.announced.hear((said,))
            if is_accepted:
                self.queue.append(replace(job, job_id=str(self._number)))
        self.seen = self.announced.add_to(self.seen)
        self.decide()

    def look(self) -> None:
        began = self.announced.look_begins()
        self.looked_s = self.now_s
        self.seen = self.announced.add_to(self.looked(), began)
        self.decide(is_new=True)

    def wait(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.looked_s + LOOKS_APART_S <= end_s:
            self.now_s = max(self.now_s, self.looked_s + LOOKS_APART_S)
            self.look()
        self.now_s = end_s

    def claim_again(self) -> None:
        """What was given back is the trainer's again."""
        self.given_back.clear()

    def decide(self, *, is_new: bool = False) -> None:
        plan = self.fold.decide(
            self.seen, self.pilots(), (record(n_max=N_NODES),), at_s=self.now_s, is_new=is_new
        )
        for name in released(plan):
            self.given_back.setdefault(name, self.now_s)

    def pilots(self) -> Sequence[PilotView]:
        there = held(*node_names(N_NODES))
        return [replace(p, is_leaving=p.node in self.given_back) for p in there]


def test_refused_submissions_of_one_user_cost_one_node() -> None:
    site = Site()
    for _ in range(28):
        site.submit("eve")
        site.wait(30 / 28)
    assert len(site.given_back) == 1


def test_refused_submissions_of_one_user_in_one_moment_cost_one_node() -> None:
    site = Site()
    site.submit(*["eve"] * 200, n_nodes=1)
    site.wait(20)
    assert len(site.given_back) == 1


def test_a_user_can_cost_another_node_only_after_a_minute() -> None:
    site = Site()
    site.submit("eve")
    site.wait(58)
    site.claim_again()
    site.submit("eve")
    assert len(site.given_back) == 0
    site.wait(70)
    site.submit("eve")
    assert len(site.given_back) == 1


def test_other_users_are_believed_as_ever() -> None:
    site = Site()
    site.submit("eve")
    site.wait(10)
    site.claim_again()
    site.submit("eve", "alice", n_nodes=1)
    assert len(site.given_back) == 1
    site.submit("bob", n_nodes=1)
    assert len(site.given_back) == 2


def test_a_user_who_was_refused_gets_everything_by_the_look_that_shows_the_next_job() -> None:
    site = Site()
    site.submit("alice")
    site.wait(5)
    site.submit("alice", is_accepted=True)
    assert len(site.given_back) == 1
    site.look()
    assert len(site.given_back) == N_NODES


@pytest.mark.parametrize("n_jobs", [1, 2, N_NODES])
def test_accepted_jobs_get_one_node_at_once_and_the_others_by_the_first_look(n_jobs: int) -> None:
    site = Site()
    site.submit(*["alice"] * n_jobs, n_nodes=N_NODES // n_jobs, is_accepted=True)
    assert len(site.given_back) == 1
    site.now_s += 0.05
    site.look()
    assert len(site.given_back) == N_NODES


def test_a_free_node_counts_for_the_job_that_is_announced() -> None:
    site = Site()
    site.nodes = with_state(idle_nodes(N_NODES), NodeState.ALLOCATED, "n1", "n2", "n3")
    site.given_back["n4"] = T0  # nobody has it
    site.look()
    site.submit("eve", n_nodes=2)
    assert site.given_back.keys() == {"n4"}


def test_the_reserve_is_filled_up_for_one_refused_job_only() -> None:
    site = Site()
    site.fold.settings = replace(site.fold.settings, reserve_nodes_per_type=1)
    site.nodes = with_state(idle_nodes(N_NODES), NodeState.ALLOCATED, "n1", "n2", "n3")
    site.given_back["n4"] = T0  # nobody has it
    site.look()
    for _ in range(10):
        site.submit("eve", "eve", "eve", n_nodes=1)
        site.wait(3)
    assert len(site.given_back.keys() - {"n4"}) == 1
