"""LSF's queue: who holds back whom."""

from __future__ import annotations

from dataclasses import replace

from bftrainer.decide.queue.models import MODELS, LsfQueue, PrintedQueue, queue_of
from bftrainer.model.census import census_of
from bftrainer.model.cluster import Snapshot
from tests.support.snapshots import T0, node, pending, running, snapshot

CYCLE_S = 10.0
SEEN = snapshot([node("n1"), node("n2"), node("n3")], [running("1", "n3"), pending("2", 3)])


def kept_off(seen: Snapshot, limit_s: float) -> int:
    """How many nodes a job of that limit may not have, when nobody can start."""
    queue = queue_of(census_of(seen), T0, CYCLE_S)
    plan = queue.next_plan(queue.sets.named(("n1", "n2")))
    for job in queue.jobs:
        plan.wait(job, queue.requests.of(job))
    return plan.kept_off(limit_s, is_in_reservation=False).bit_count()


def test_a_blocked_job_holds_back_nobody_unless_slots_are_reserved_for_it() -> None:
    lsf = replace(SEEN, queue_model="lsf")
    assert kept_off(SEEN, 7200.0) == 3, "Slurm's backfill plans it"
    assert kept_off(lsf, 7200.0) == 0
    jobs = tuple(
        replace(job, start_s=T0 + 600.0, planned_nodes=("n1", "n2")) if job.job_id == "2" else job
        for job in SEEN.jobs or ()
    )
    reserved = replace(lsf, jobs=jobs)
    assert kept_off(reserved, 7200.0) == 2
    assert kept_off(reserved, 300.0) == 0, "who ends before its start may use its slots"


def test_a_snapshot_names_its_model_and_older_ones_are_slurms() -> None:
    assert isinstance(queue_of(census_of(SEEN), T0, CYCLE_S), PrintedQueue)
    assert not isinstance(queue_of(census_of(SEEN), T0, CYCLE_S), LsfQueue)
    assert isinstance(queue_of(census_of(replace(SEEN, queue_model="lsf")), T0, CYCLE_S), LsfQueue)
    assert set(MODELS) == {"printed", "lsf"}
