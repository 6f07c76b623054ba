"""Who had its nodes for a whole cycle and did not start gets none for a while."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from bftrainer.decide.skipped_jobs import MOST_DOUBLINGS
from bftrainer.model.cluster import Job, NodeState, SchedulerCycle, Snapshot
from tests.support.snapshots import (
    T0,
    Fold,
    held,
    idle_nodes,
    pending,
    pilot,
    record,
    released,
    running,
    snapshot,
    with_state,
)

CYCLE_S = 30.0
NAMES = ("n1", "n2")
JOB = pending("7", 2, submit_s=T0)


@dataclass(slots=True)
class Site:
    """Two nodes of ours; a cycle passes, and nobody starts. What is given back comes again."""

    fold: Fold = field(default_factory=Fold)
    now_s: float = T0
    began_s: float = T0 - 5.0
    is_told: bool = True

    def look(self, jobs: Sequence[Job], *free: str) -> Snapshot:
        nodes = with_state(idle_nodes(2), NodeState.ALLOCATED, *(set(NAMES) - set(free)))
        cycle = SchedulerCycle(ended_s=self.began_s + 1.0, began_s=self.began_s)
        seen = snapshot(nodes, jobs, at_s=self.now_s)
        return replace(seen, cycle=cycle if self.is_told else None)

    def decide(self, jobs: Sequence[Job], *free: str) -> set[str]:
        ours = [pilot(name) for name in NAMES if name not in free]
        seen = self.look(jobs, *free)
        return released(self.fold.decide(seen, ours, [record()], at_s=self.now_s))

    def cycles(self, jobs: Sequence[Job], count: int) -> Iterator[set[str]]:
        """What is given back in each of the next cycles."""
        for _ in range(count):
            gone = self.decide(jobs)
            if gone:
                self.now_s += 1.0
                self.decide(jobs, *gone)
            yield gone
            self.began_s = self.now_s + 2.0
            self.now_s += CYCLE_S


def test_after_each_time_in_vain_it_waits_twice_as_long() -> None:
    found = [bool(gone) for gone in Site().cycles([JOB], 120)]
    served = [cycle for cycle, was_served in enumerate(found) if was_served]
    apart = [after - before for before, after in pairwise(served)]
    assert apart[:5] == [1 + 2**k for k in range(1, 6)]
    assert set(apart[5:]) == {1 + 2**MOST_DOUBLINGS}


def test_what_happens_elsewhere_changes_nothing_for_it() -> None:
    site = Site()
    for number, gone in enumerate(site.cycles([JOB], 3)):
        assert gone == (set(NAMES) if not number else set())
    site = Site()
    [*_] = site.cycles([JOB], 1)
    for other in (running("8", "n3"), pending("9", 5), running("10", "n3")):
        assert site.decide([JOB, other]) == set()


def test_who_starts_is_forgotten() -> None:
    site = Site()
    [*_] = site.cycles([JOB], 2)
    assert site.fold.memory.vain["7"].times == 1
    site.decide([running("7", *NAMES)], *NAMES)
    assert site.fold.memory.vain == {}
    assert site.decide([JOB]) == set(NAMES)


def test_the_tasks_of_an_array_share_one_memory_and_one_that_starts_clears_it() -> None:
    site = Site()
    tasks = [pending(f"7_{k}", 2, submit_s=T0) for k in range(3)]
    assert [bool(gone) for gone in site.cycles(tasks, 3)] == [True, False, False]
    assert site.fold.memory.vain.keys() == {"7"}
    assert site.decide(tasks[1:]) == set(NAMES)


def test_a_cycle_in_which_its_last_node_was_not_free_yet_does_not_count() -> None:
    site = Site()
    assert site.decide([JOB]) == set(NAMES)
    leaving = [pilot("n2", is_leaving=True)]
    for _ in range(3):
        site.now_s += CYCLE_S
        site.began_s = site.now_s - 2.0
        site.fold.decide(site.look([JOB], "n1"), leaving, [record()], at_s=site.now_s)
        assert site.fold.memory.vain["7"].times == 0
    site.now_s += 1.0
    site.decide([JOB], *NAMES)
    site.now_s += CYCLE_S
    site.began_s = site.now_s - 2.0
    site.decide([JOB], *NAMES)
    assert site.fold.memory.vain["7"].times == 1


def _with_pilots(site: Site, requested_s: float, *jobs: Job) -> set[str]:
    """What is given back when pilots were started on both nodes, asked for at that moment."""
    pilots = [pilot(name, requested_s=requested_s) for name in NAMES]
    seen = replace(site.look([JOB, *jobs]), pilots_come_last=True)
    return released(site.fold.decide(seen, pilots, [record()], at_s=site.now_s))


def test_a_pilot_that_was_started_after_it_shows_that_it_was_passed_over() -> None:
    """The main scheduler comes every few seconds: nodes would go to and fro until a cycle."""
    site = Site()
    site.decide([JOB])
    site.now_s += 1.0
    site.decide([JOB], *NAMES)
    site.now_s += 5.0
    assert _with_pilots(site, site.now_s - 1.0) == set()
    assert site.fold.memory.vain["7"].times == 1
    assert _with_pilots(site, site.now_s - 1.0, pending("8", 1, submit_s=site.now_s)) != set()


def test_a_pilot_that_had_been_asked_for_before_shows_nothing() -> None:
    site = Site()
    site.decide([JOB])
    site.now_s += 1.0
    site.decide([JOB], *NAMES)
    site.now_s += 5.0
    assert _with_pilots(site, T0) == set(NAMES)
    assert site.fold.memory.vain["7"].times == 0


def test_who_lost_a_node_to_another_job_was_not_passed_over() -> None:
    site = Site()
    site.decide([JOB])
    site.now_s += 1.0
    site.decide([JOB], *NAMES)
    site.now_s += CYCLE_S
    site.began_s = site.now_s - 2.0
    other = running("9", "n2", start_s=site.now_s - 1.0)
    seen = site.look([JOB, other], "n1")
    site.fold.decide(seen, (), [record()], at_s=site.now_s)
    assert site.fold.memory.vain.get("7") is None


def test_a_cycle_that_began_before_does_not_count() -> None:
    site = Site()
    site.decide([JOB])
    site.now_s += 1.0
    site.decide([JOB], *NAMES)
    site.now_s, site.began_s = site.now_s + 5.0, T0 - 1.0
    site.decide([JOB], *NAMES)
    assert site.fold.memory.vain["7"].times == 0


def test_what_is_planned_for_it_others_keep_off() -> None:
    site = Site()
    [*_] = site.cycles([JOB], 2)
    small = pending("8", 1, limit_s=600.0, submit_s=T0 + 1)
    planned = replace(JOB, start_s=site.now_s + 300.0, planned_nodes=NAMES)
    assert site.decide([planned, small]) == set()
    assert len(site.decide([JOB, small])) == 1


def test_where_no_cycles_are_told_time_counts() -> None:
    site = Site(is_told=False)
    site.decide([JOB])
    for after_s, times in ((1.0, 0), (2 * CYCLE_S + 0.9, 0), (2 * CYCLE_S + 1.1, 1)):
        site.now_s = T0 + after_s
        site.decide([JOB], *NAMES)
        assert site.fold.memory.vain["7"].times == times


@pytest.mark.parametrize("n_nodes", [1, 2])
def test_who_starts_on_free_nodes_and_does_not_is_not_waited_for(n_nodes: int) -> None:
    site = Site()
    job = replace(JOB, n_nodes=n_nodes)
    site.decide([job], *NAMES)
    assert site.fold.memory.held_off.keys() == set(NAMES[:n_nodes])
    site.now_s += CYCLE_S
    site.began_s = site.now_s - 2.0
    plan = site.fold.decide(site.look([job], *NAMES), held(), [record()], at_s=site.now_s)
    assert {c.node for c in plan.claims} == set(NAMES)
