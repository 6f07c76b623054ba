"""mbatchd is stopped while pilots are submitted: bsub repeats its requests, and all become jobs.

As measured on volclava 2.2: one bsub, four jobs. Of a pilot one job at most becomes an agent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.batch.batch_system import PilotRequest
from bftrainer.batch.pilot_job import job_name
from bftrainer.model.cluster import Presence
from bftrainer.model.errors import BatchSystemError
from lsf_adapters.adapter import LsfBatchSystem
from lsf_adapters.launcher import taken_by
from lsf_adapters.testcluster import LsfTestCluster, Profile
from tests.conformance.words import pilot
from tests.integration.lsf_fixtures import DIALECTS, PARAMETERS, LsfDriver, lsf_adapter, running_lsf
from tests.support.waiting import wait_for

N = 25  # pilots of a stall; two stalls in each dialect: 100 submissions
AGENT = 'echo "started $LSB_JOBID"; exec sleep 600'


@pytest.fixture(scope="module", params=DIALECTS)
def lsf(request: pytest.FixtureRequest) -> Iterator[LsfTestCluster]:
    profile = replace(Profile.FAST, retry_s=0.5)
    with running_lsf(
        dialect=request.param, n_nodes=N, profile=profile, parameters=PARAMETERS
    ) as cluster:
        yield cluster


def requests_of(cluster: LsfTestCluster) -> list[PilotRequest]:
    driver = LsfDriver(cluster)
    return [
        replace(pilot(driver, node), agent_argv=("/bin/sh", "-c", AGENT))
        for node in cluster.node_names
    ]


def launched(
    cluster: LsfTestCluster,
    system: LsfBatchSystem,
    requests: Sequence[PilotRequest],
    *,
    n_waiting: int,
    is_patient: bool,
) -> list[str | BatchSystemError]:
    """Launch all at once while mbatchd is stopped, which goes on when so many requests wait.

    Or, if the commands are not patient, when all have been cut off.
    """

    def launch(request: PilotRequest) -> str | BatchSystemError:
        try:
            return system.launch_pilot(request)
        except BatchSystemError as problem:
            return problem

    cluster.stop_controller()
    try:
        with ThreadPoolExecutor(N) as pool:
            results = [pool.submit(launch, request) for request in requests]
            if is_patient:
                wait_for(lambda: requests_waiting(cluster) >= n_waiting, what="repeated requests")
                cluster.start_controller()
        return [result.result() for result in results]
    finally:
        cluster.start_controller()


def requests_waiting(cluster: LsfTestCluster) -> int:
    """The number of requests that the server has not read."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    return sum(line.endswith(str(cluster.config.socket)) for line in lines) - 1


def jobs_by_name(cluster: LsfTestCluster, *options: str) -> Counter[str]:
    lines = cluster.command("bjobs", "-u", "all", "-w", *options).stdout.splitlines()[1:]
    return Counter(line.split()[6] for line in lines)


def started(request: PilotRequest) -> list[str]:
    """The ids of the jobs that became the pilot's agent."""
    if not request.log_path.exists():
        return []
    lines = request.log_path.read_text().splitlines()
    return [line.split()[1] for line in lines if line.startswith("started ")]


@pytest.mark.long
def test_of_the_jobs_of_one_pilot_one_becomes_an_agent(lsf: LsfTestCluster) -> None:
    system = lsf_adapter(lsf, command_timeout_s=60)
    assert system.snapshot().is_complete
    requests = requests_of(lsf)
    job_ids = launched(lsf, system, requests, n_waiting=2 * N, is_patient=True)
    assert all(isinstance(job_id, str) for job_id in job_ids)
    names = {job_name(request) for request in requests}
    made = jobs_by_name(lsf, "-a")
    assert sum(made[name] for name in names) >= 2 * N, "the accident did not happen"

    def one_each() -> bool:
        """A poll cancels duplicates, and shows one job of each pilot."""
        seen = system.snapshot()
        assert seen.is_complete, seen.failures
        pilots = Counter(job.pilot_id for job in seen.jobs or ())
        assert set(pilots.values()) == {1}
        return set(jobs_by_name(lsf).values()) == {1}

    wait_for(one_each, what="no duplicate in the queue")

    def running() -> bool:
        seen = system.pilot_states([str(job_id) for job_id in job_ids])
        assert all(one.presence is Presence.PRESENT for one in seen.values())
        return {one.phase for one in seen.values()} == {"running"} and all(
            started(request) for request in requests
        )

    wait_for(running, what="all pilots running under the ids of their launch")
    assert [started(request) for request in requests] == [[job_id] for job_id in job_ids]
    assert set(jobs_by_name(lsf)) == names
    system.cancel_pilots([str(job_id) for job_id in job_ids], force=True)
    wait_for(lambda: system.snapshot().jobs == (), what="an empty queue")
    assert all(len(started(request)) == 1 for request in requests)


@pytest.mark.long
def test_what_was_cut_off_becomes_no_agent(lsf: LsfTestCluster) -> None:
    """The time-out kills bsub, and takes no request back."""
    system = lsf_adapter(lsf, command_timeout_s=1.2)
    wait_for(lambda: system.snapshot().is_complete, what="a complete snapshot")
    requests = requests_of(lsf)
    results = launched(lsf, system, requests, n_waiting=0, is_patient=False)
    assert {getattr(one, "code", one) for one in results} == {"BFT-1205"}
    assert all(taken_by(request.log_path).is_dir() for request in requests)
    names = {job_name(request) for request in requests}
    patient = lsf_adapter(lsf, command_timeout_s=60)
    wait_for(lambda: names <= set(jobs_by_name(lsf, "-a")), what="jobs of killed commands")
    assert sum(jobs_by_name(lsf, "-a")[name] for name in names) > N
    wait_for(lambda: patient.snapshot().jobs == (), what="an empty queue")
    assert [started(request) for request in requests] == [[]] * N
