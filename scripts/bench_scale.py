"""What a look at a large site and a decision on it cost: from Slurm's text to the plan.

Sites of several sizes, as Slurm's commands print them; the adapter's own reader and the
daemon's own decision, in one process. On the last ones jobs share nodes, and GPUs are lent one by
one to 200 trainers: of single GPUs, or of 1, 2, 4 and 8 of one node. ``look``: text to snapshot.
``decide``: snapshot to plan, at a new look. ``announced``: from a job that was just submitted to
the pilots that go for it, between two looks. Seconds are processor time, medians. Prints targets
with ``met`` or ``missed``; exits 1 when one is missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from resource import RUSAGE_SELF, getrusage
from statistics import median
from typing import Any, TypeVar

from _bench.benchmark import Benchmark, Measured
from _bench.scale_gpus import GpuSize, PrintedGpus
from _bench.scale_site import Printed, Size

from bftrainer.batch.announcer import Announcement, UnseenAnnouncements
from bftrainer.decide.decision import decide
from bftrainer.decide.policies.base import AllocationPolicy, load_policy
from bftrainer.ground.collector import collect_rarely
from bftrainer.lab.parallel import end_with_parent
from bftrainer.model.cluster import STAND_IN, Job, JobState, Snapshot
from bftrainer.model.decision import DecisionInput, Memory, Plan, Settings
from bftrainer.model.parts import Lend, as_lent
from slurm_plugins.snapshot import SnapshotReader

T = TypeVar("T")
NODES, TRAINERS, JOBS = (1000, 5000, 10_000), 1000, (0, 1000, 10_000)
MOST_S, MOST_ANNOUNCED_S, MOST_MB = 1.0, 0.05, 512.0
USUAL, MOST_USUAL_S = Size(n_nodes=800, n_trainers=30, n_pending=500), 0.015
LOOKS = 11
SETTINGS = Settings(explore_budget=0.02, straggler_threshold=0.8)
GPU_NODES, GPU_TRAINERS = 2000, 200
LENT = tuple(
    GpuSize(n_nodes=GPU_NODES, n_trainers=GPU_TRAINERS, n_pending=n_pending, widths=widths)
    for widths, n_pending in (("single GPUs", 0), ("single GPUs", 500), ("mixed widths", 0))
)
LENT_SETTINGS = replace(SETTINGS, lend=Lend.AUTO, p_jmax=GPU_TRAINERS)
BENCHMARK = Benchmark(
    name="scale",
    title="A large site",
    about=__doc__,
    quick="1,000 nodes only",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnSite:
    """One size of site."""

    size: Size
    n_pilots: int
    first_s: float  # a daemon's first look and decision
    look_s: float
    decide_s: float
    announced_s: float
    n_releases: int  # for the announced job
    peak_mb: float

    @property
    def plan_s(self) -> float:
        """From text to plan."""
        return self.look_s + self.decide_s


def measure(arguments: argparse.Namespace, measured: Measured) -> None:
    """Measure every size of site."""
    sites = [_measure(size) for size in _sizes(is_quick=arguments.quick)]
    measured.results["sizes"] = [asdict(site) for site in sites]
    headings = ("site", "first", "look", "decide", "both", "announced", "peak, MB")
    measured.table("Processor time, s", headings, [_row(site) for site in sites])
    median_of = f"median of {LOOKS}; "
    usual = next(site for site in sites if site.size == USUAL)
    measured.at_most("decision", usual.decide_s, MOST_USUAL_S, note=median_of + usual.size.name)
    for n_nodes in NODES:
        of_size = [site for site in sites if site.size.n_nodes == n_nodes and site.size not in LENT]
        if of_size:
            slow = max(of_size, key=lambda site: site.plan_s)
            name, note = f"text to plan, {n_nodes:,} nodes", median_of + slow.size.name
            measured.at_most(name, slow.plan_s, MOST_S, note=note)
    for site in sites:
        if site.size in LENT:
            note = f"{median_of}{site.size.name}, {site.n_pilots:,} pilots"
            measured.at_most("text to plan, GPUs lent", site.plan_s, MOST_S, note=note)
    late = max(sites, key=lambda one: one.announced_s)
    about = median_of + late.size.name
    measured.at_most("announced job to its pilots", late.announced_s, MOST_ANNOUNCED_S, note=about)
    big = max(sites, key=lambda one: one.peak_mb)
    measured.at_most("memory", big.peak_mb, MOST_MB, "MB", f"peak; {big.size.name}")


def _row(one: OnSite) -> tuple[str, ...]:
    times_s = (one.first_s, one.look_s, one.decide_s, one.plan_s, one.announced_s)
    return (one.size.name, *(f"{s:.3f}" for s in times_s), f"{one.peak_mb:.0f}")


def _sizes(*, is_quick: bool) -> Iterator[Size]:
    yield USUAL
    for n_nodes in NODES[:1] if is_quick else NODES:
        for n_pending in JOBS:
            yield Size(n_nodes=n_nodes, n_trainers=TRAINERS, n_pending=n_pending)
    for n_pending in (0, JOBS[-1]):
        yield Size(n_nodes=n_nodes, n_trainers=TRAINERS, n_pending=n_pending, holds_all=True)
    yield from LENT


def _measure(size: Size) -> OnSite:
    """Measure one size, in a process of its own: its memory is its own."""
    with ProcessPoolExecutor(1, get_context("spawn"), end_with_parent) as pool:
        return pool.submit(_measured, size).result()


def _measured(size: Size) -> OnSite:
    collect_rarely()  # as the daemon
    now_s = time.time()
    settings = LENT_SETTINGS if isinstance(size, GpuSize) else SETTINGS
    site = PrintedGpus(size, now_s) if isinstance(size, GpuSize) else Printed(size, now_s)
    policy = load_policy(settings.policy)
    reader(site).read()  # prints every text, which is not what is measured
    looks = reader(site)
    began_s = time.process_time()
    training = site.training(settings.p_jmax)
    decision_input = DecisionInput(
        now_s=now_s,
        snapshot=_look(looks, settings),
        is_new_snapshot=True,
        pilots=site.views(),
        trainers=site.trainers(),
        settings=settings,
        memory=Memory(assignment=training),
        training=training,
    )
    plan = decide(decision_input, policy)
    first_s = time.process_time() - began_s
    look_s, decide_s, announced_s, n_releases = [], [], [], 0
    for at in range(1, LOOKS + 1):
        site.move()
        took_s, snapshot = timed(partial(_look, looks, settings, decision_input.snapshot))
        look_s.append(took_s)
        decision_input = replace(
            decision_input, snapshot=snapshot, now_s=now_s + 10 * at, memory=plan.memory
        )
        took_s, plan = timed(partial(decide, decision_input, policy))
        decide_s.append(took_s)
        took_s, soon = timed(partial(_on_announced, decision_input, plan, policy))
        announced_s.append(took_s)
        n_releases = len(soon.releases)
    return OnSite(
        size=size,
        n_pilots=len(decision_input.pilots),
        first_s=first_s,
        look_s=median(look_s),
        decide_s=median(decide_s),
        announced_s=median(announced_s),
        n_releases=n_releases,
        peak_mb=getrusage(RUSAGE_SELF).ru_maxrss / 1024,
    )


def _look(looks: SnapshotReader, settings: Settings, before: Snapshot | None = None) -> Snapshot:
    """Return the next snapshot as a decision gets it."""
    return as_lent(looks.read(), settings.lend, before)


def reader(site: Printed) -> SnapshotReader:
    """Return the adapter's reader of that site."""
    printed: Any = site  # answers as SlurmCommands does
    return SnapshotReader(
        commands=printed,
        user="bft",
        pilot_partition="bf",
        partition=None,
        reservations_interval_s=0.0,
    )


def _on_announced(given: DecisionInput, before: Plan, policy: AllocationPolicy) -> Plan:
    """Decide on a job of four nodes, submitted a second after the look."""
    at_s = given.now_s + 1.0
    job = Job(
        job_id=f"{STAND_IN}1",
        user="u1",
        partitions=("batch",),
        state=JobState.PENDING,
        n_nodes=4,
        time_limit_s=600.0,
        submit_s=at_s,
    )
    announcements = UnseenAnnouncements()
    announcements.hear((Announcement(at_s=at_s, partition="batch", job=job),))
    announced_snapshot = announcements.add_to(given.snapshot)
    memory = before.memory
    again = replace(
        given, snapshot=announced_snapshot, now_s=at_s, is_new_snapshot=False, memory=memory
    )
    again = replace(again, gives_back_only=True)  # as the daemon asks for it first
    return decide(again, policy)


def timed(call: Callable[[], T]) -> tuple[float, T]:
    """Return the processor time of a call, and its result."""
    began_s = time.process_time()
    result = call()
    return time.process_time() - began_s, result


if __name__ == "__main__":
    sys.exit(BENCHMARK.main(measure))
