"""Small machines on which a daemon that forgets, hurries or believes too much asks for ever.

Ten nodes have ordinary jobs, twenty are bftrainer's to hold; two hours, after ten minutes in
which it takes them. What is judged is how often it asks for a pilot. Pure.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from _bench.targets import Target, at_most
from bftrainer.lab.site.arms import ArmOutcome, SharedStage
from bftrainer.lab.site.machine import JobSpec, SchedulerSettings

N_BUSY, N_OURS = 10, 20
SETTLE_S, COUNTED_S = 600.0, 7200.0
END_S = SETTLE_S + COUNTED_S
FAR_S = 6 * 3600.0  # limit of jobs that outlast a scenario
PASS_S = 3.5  # until the main scheduler has freed and given away a node
MOST_SUBMISSIONS = 10.0  # per node and hour
LIMIT_REASON, HELD_REASON = "MaxNodePerAccount", "launch failed requeued held"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One of them."""

    name: str
    jobs: tuple[JobSpec, ...] = ()  # beside those that keep ten nodes busy
    is_lively: bool = False  # these end and start all the time
    bf_interval_s: float = 30.0
    bf_duration_s: float = 0.5
    bf_max_job_test: int = 500
    hello_s: float = 3.0

    def stage(self) -> SharedStage:
        """Return the run."""
        busy = list(_lively() if self.is_lively else _still())
        jobs = [*busy, *self.jobs]
        return SharedStage(
            slurm=SchedulerSettings(
                n_nodes=N_BUSY + N_OURS,
                bf_interval_s=self.bf_interval_s,
                bf_duration_s=self.bf_duration_s,
                bf_max_job_test=self.bf_max_job_test,
            ),
            jobs=tuple(replace(job, number=n) for n, job in enumerate(jobs, 1)),
            warm_s=60.0,
            end_s=60.0 + END_S,
            settle_s=SETTLE_S,
            hello_s=self.hello_s,
        )


def _job(
    n_nodes: int, *, at_s: float = 0.0, limit_s: float = 3600.0, run_s: float = FAR_S,
    priority: float = 10.0, held_by: str = "",
) -> JobSpec:  # fmt: skip
    return JobSpec(
        number=0,
        submit_s=at_s,
        n_nodes=n_nodes,
        limit_s=limit_s,
        run_s=run_s,
        priority=priority,
        held_by=held_by,
    )


def _still() -> Iterator[JobSpec]:
    for _ in range(N_BUSY):
        yield _job(1, limit_s=FAR_S, priority=50.0)


def _lively() -> Iterator[JobSpec]:
    """One job after the other on each of ten nodes."""
    chance = random.Random(1)  # noqa: S311 - a workload, not a secret
    for _ in range(N_BUSY):
        at_s = 0.0
        while at_s < END_S:
            run_s = chance.uniform(100.0, 200.0)
            yield _job(1, at_s=at_s, limit_s=7200.0, run_s=run_s, priority=50.0)
            at_s += run_s + PASS_S


def _churn() -> tuple[JobSpec, ...]:
    """A blocked head, and small jobs behind it that backfill starts."""
    chance = random.Random(3)  # noqa: S311 - a workload, not a secret
    small = tuple(
        _job(1, at_s=20.0 * k, run_s=300.0 * chance.uniform(0.5, 1.5), priority=50.0)
        for k in range(1, int(END_S / 20.0))
    )
    return (_job(29, priority=99.0, at_s=1.0), *small)


def all_scenarios() -> tuple[Scenario, ...]:
    """Return them all."""
    head = (_job(25, priority=99.0, at_s=1.0),)
    phantoms = [
        Scenario(
            name=f"phantom of {size}, {kind}{', lively' if is_lively else ''}",
            jobs=(_job(size, priority=priority, held_by=reason, at_s=1.0),),
            is_lively=is_lively,
        )
        for kind, reason, priority in (("limit", LIMIT_REASON, 10.0), ("held", HELD_REASON, 0.0))
        for size in (8, 20)
        for is_lively in (False, True)
    ]
    long_cycles = [
        Scenario(
            name=f"blocked head, {interval_s:g}/{duration_s:g} s",
            jobs=head,
            bf_interval_s=interval_s,
            bf_duration_s=duration_s,
        )
        for interval_s, duration_s in (
            (30.0, 0.5), (30.0, 5.0), (30.0, 10.0), (30.0, 20.0), (30.0, 30.0),
            (60.0, 20.0), (60.0, 60.0), (120.0, 60.0),
        )
    ]  # fmt: skip
    churns = [
        Scenario(
            name=f"churn, {interval_s:g}/{duration_s:g} s",
            jobs=_churn(),
            bf_interval_s=interval_s,
            bf_duration_s=duration_s,
        )
        for interval_s, duration_s in (
            (30.0, 0.5), (30.0, 10.0), (30.0, 30.0), (60.0, 20.0), (60.0, 60.0), (120.0, 60.0)
        )
    ]  # fmt: skip
    beyond = tuple(_job(1, limit_s=1800.0, at_s=2.0) for _ in range(60))
    return (
        Scenario(name="quiet"),
        Scenario(name="lively", is_lively=True),
        *phantoms,
        Scenario(name="beyond backfill's depth", jobs=(*head, *beyond), bf_max_job_test=1,
                 is_lively=True),
        *long_cycles,
        *churns,
        Scenario(name="agents come after 120 s", hello_s=120.0),
        Scenario(name="agents come after 120 s, lively", hello_s=120.0, is_lively=True),
    )  # fmt: skip


def target(scenario: Scenario, found: ArmOutcome) -> Target:
    """Return what a scenario has to keep."""
    harvest = found.harvest
    if harvest is None:
        raise ValueError(f"{scenario.name} ran without bftrainer")
    hours = COUNTED_S / 3600.0
    share = harvest.held_s / harvest.oracle_s if harvest.oracle_s else 1.0
    return at_most(
        scenario.name,
        harvest.submissions / (N_OURS * hours),
        MOST_SUBMISSIONS,
        "per node-h",
        f"held {100 * share:.0f}% of the oracle's {harvest.oracle_s / 3600:.0f} node-h, "
        f"{harvest.releases / hours:.0f} given back per h",
    )
