"""What is released on shared hosts makes room for the jobs it is released for, and is needed.

The check counts GPUs, CPUs and memory of each host by itself, from what is on it, and knows nothing
of rooms or candidates.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from bftrainer.model.cluster import Job, Node
from bftrainer.model.decision import Settings
from tests.support.gpu_hosts import (
    CPUS_PER_GPU,
    MEMORY_PER_GPU_MB,
    exclusive_job,
    gpu_host,
    gpu_job,
    ordinary,
    part_pilot,
    pilot_job,
)
from tests.support.snapshots import given_back, snapshot

N_GPUS = 4
SETTINGS = Settings(reserve_nodes_per_type=0, cycle_s=30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Hosts with GPUs of ordinary jobs and of our pilots, and a queue."""

    hosts: list[Node]
    running: list[Job]
    parts: list[str]
    queue: list[Job]


@st.composite
def sites(draw: st.DrawFn) -> Site:
    hosts: list[Node] = []
    running: list[Job] = []
    parts: list[str] = []
    for k in range(1, draw(st.integers(1, 4)) + 1):
        n_ordinary = draw(st.integers(0, N_GPUS))
        n_ours = draw(st.integers(0, N_GPUS - n_ordinary))
        hosts.append(gpu_host(f"n{k}", ordinary=n_ordinary, ours=n_ours))
        if n_ordinary:
            running.append(ordinary(f"r{k}", f"n{k}", n_ordinary))
        parts += [f"n{k}/{number}" for number in range(n_ours)]
    queue: list[Job] = []
    for number in range(draw(st.integers(1, 5))):
        if draw(st.integers(0, 4)) == 0:
            queue.append(exclusive_job(str(number + 100), draw(st.integers(1, 2))))
            continue
        gpus, n_nodes = draw(st.integers(0, N_GPUS)), draw(st.integers(1, 2))
        job = gpu_job(str(number + 100), gpus, n_nodes=n_nodes)
        cpus = draw(st.integers(1, 2 * CPUS_PER_GPU))
        queue.append(replace(job, cpus_per_node=cpus, priority=float(-number)))
    return Site(hosts=hosts, running=running, parts=parts, queue=queue)


def _free_of(site: Site, released: set[str]) -> dict[str, Counter[str]]:
    """What each host has that neither ordinary jobs nor the pilots that stay have."""
    free: dict[str, Counter[str]] = {}
    for host in site.hosts:
        n_used = sum(job.gpus_per_node for job in site.running if host.name in job.nodes)
        n_used += sum(
            1 for name in site.parts if name not in released and name.startswith(f"{host.name}/")
        )
        n_free = N_GPUS - n_used
        free[host.name] = Counter(
            gpus=n_free, cpus=n_free * CPUS_PER_GPU, memory_mb=n_free * MEMORY_PER_GPU_MB
        )
    return free


def _could_start(job: Job, site: Site, free: dict[str, Counter[str]]) -> bool:
    """Whether the hosts have room for the job, were it the only one that waits."""
    n_fitting = 0
    for host in site.hosts:
        left = free[host.name]
        if job.can_share:
            needs = Counter(gpus=job.gpus_per_node, cpus=job.cpus_per_node, memory_mb=job.memory_mb)
            n_fitting += all(left[name] >= count for name, count in needs.items())
        else:
            n_fitting += left["gpus"] == N_GPUS
    return n_fitting >= job.n_nodes


@given(sites())
def test_a_job_gets_what_it_needs_and_one_that_cannot_start_gets_nothing(site: Site) -> None:
    pilots = [part_pilot(name) for name in site.parts]
    jobs = [*site.running, *site.queue, *map(pilot_job, site.parts)]
    draft = given_back(snapshot(site.hosts, jobs), pilots, settings=SETTINGS)
    by_job: dict[str, set[str]] = {}
    for release in draft.releases:
        by_job.setdefault(release.for_job, set()).add(release.node)
    every_part = set(site.parts)
    released = set[str]().union(*by_job.values()) if by_job else set[str]()
    for job in site.queue:
        if not _could_start(job, site, _free_of(site, every_part)):
            assert job.job_id not in by_job
        elif job.job_id in by_job:
            assert _could_start(job, site, _free_of(site, released))
    first = min(site.queue, key=lambda job: (-job.priority, job.job_id))
    own = by_job.get(first.job_id, set())
    is_first_alone = first.priority > max(
        [job.priority for job in site.queue if job is not first], default=-1.0
    )
    if own and is_first_alone and first.n_nodes == 1 and first.can_share:
        # The first in the queue has no other job before it: each of its parts is needed.
        for name in own:
            free = _free_of(site, own - {name})
            host = name.partition("/")[0]
            alone = replace(site, hosts=[one for one in site.hosts if one.name == host])
            assert not _could_start(first, alone, free)
