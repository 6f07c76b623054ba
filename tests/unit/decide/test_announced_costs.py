"""A job announced between two looks costs what is new, on a large site as on a small one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from _bench.scale_gpus import GpuSize, PrintedGpus
from bench_scale import LENT_SETTINGS, reader

from bftrainer.decide.division import divided
from bftrainer.model.census import census_of
from bftrainer.model.cluster import STAND_IN, Job, JobState
from bftrainer.model.decision import DecisionInput, Memory
from bftrainer.model.parts import as_lent

NOW_S = 1_790_000_000.0
JOB = Job(
    job_id=f"{STAND_IN}1",
    user="u1",
    partitions=("batch",),
    state=JobState.PENDING,
    n_nodes=4,
    time_limit_s=600.0,
)


def n_calls(work: Callable[[], object]) -> int:
    """Return how many functions are called, those written in C, too."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def given_of(n_nodes: int) -> DecisionInput:
    size = GpuSize(n_nodes=n_nodes, n_trainers=6, n_pending=3, widths="single GPUs")
    site = PrintedGpus(size, NOW_S)
    return DecisionInput(
        now_s=NOW_S,
        snapshot=as_lent(reader(site).read(), LENT_SETTINGS.lend),
        is_new_snapshot=True,
        pilots=site.views(),
        trainers=site.trainers(),
        settings=LENT_SETTINGS,
        memory=Memory(),
    )


def announced(given: DecisionInput) -> DecisionInput:
    """Return the same a moment later, when one more job is known."""
    snapshot = replace(given.snapshot, jobs=(*(given.snapshot.jobs or ()), JOB))
    return replace(given, snapshot=snapshot, is_new_snapshot=False)


def test_no_host_and_no_pilot_is_looked_at_again_for_an_announced_job() -> None:
    counts: list[tuple[int, int, int]] = []
    for n_nodes in (20, 80):
        given = given_of(n_nodes)
        census_of(divided(given).snapshot, given.pilots)
        census_of(given.snapshot)
        later = announced(given)
        n_of_division = n_calls(partial(divided, later))
        parted = divided(later)
        assert parted.snapshot.nodes is divided(given).snapshot.nodes
        n_of_parts = n_calls(partial(census_of, parted.snapshot, given.pilots))
        counts.append((n_of_division, n_of_parts, n_calls(partial(census_of, later.snapshot))))
    assert counts[0] == counts[1]
