"""A user's environment changes nothing of what a real Slurm is asked, tells and starts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.batch.batch_system import PilotRequest
from bftrainer.model.cluster import Job, Node, Presence
from slurm_plugins.adapter import SlurmBatchSystem, create
from slurm_plugins.testcluster import FAST_CYCLE, SlurmTestCluster
from tests.integration.slurm_fixtures import running_cluster, whole_look
from tests.support.hostile_environment import HOSTILE
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.long]

# A pilot that prints its environment and leaves when it is told to.
AGENT = (
    "import os, signal; signal.pthread_sigmask(signal.SIG_BLOCK, [15]);"
    "[print(name, value, sep='=') for name, value in sorted(os.environ.items())];"
    "print('up', flush=True); signal.sigwait([15]); os._exit(0)"
)
# Lines of ``scontrol show job`` that say what was asked for.
ASKED = (
    *("Partition", "NumNodes", "NumCPUs", "ReqTRES", "TRES", "TresPerNode", "MinMemoryNode"),
    *("OverSubscribe", "Requeue", "TimeLimit", "ReqNodeList", "Account", "QOS", "WorkDir"),
    *("StdIn", "Dependency", "ArrayTaskId", "JobState", "NodeList", "BatchFlag"),
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmTestCluster]:
    """Two nodes with GPUs, of which an ordinary job has one and a job on hold wants both."""
    with running_cluster(
        n_nodes=2, gpus_per_node=4, bf_interval_s=2, scheduler_parameters=FAST_CYCLE
    ) as running:
        first = running.submit(n_nodes=1, duration_s=600.0, partition="batch")
        wait_for(lambda: running.started_s(first), what="the ordinary job runs")
        running.submit(n_nodes=2, duration_s=600.0, partition="batch", extra_args=("--hold",))
        yield running


def system_of(cluster: SlurmTestCluster) -> SlurmBatchSystem:
    return create({**cluster.config.batch_options(), "reservations_interval_s": 0})


def look(system: SlurmBatchSystem) -> tuple[set[Node], set[Job]]:
    """Return nodes and jobs; the plans of a pending job and its priority change by themselves."""
    seen = whole_look(system)
    assert seen.nodes is not None
    assert seen.jobs is not None
    jobs = {replace(job, priority=0.0, planned_nodes=()) for job in seen.jobs}
    return set(seen.nodes), jobs


def pilot_of(
    cluster: SlurmTestCluster, log: Path, name: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Start a pilot and end it; return what Slurm shows of its job, and its environment."""
    system = system_of(cluster)
    (idle,) = (node for node in whole_look(system).nodes or () if node.state == "idle")
    request = PilotRequest(
        pilot_id=name,
        node=idle.name,
        time_limit_s=600,
        agent_argv=(sys.executable, "-I", "-c", AGENT),
        log_path=log,
        gpus=4,
    )
    job_id = system.launch_pilot(request)
    wait_for(lambda: log.exists() and log.read_text().endswith("up\n"), what="the pilot runs")
    environment = dict(line.split("=", 1) for line in log.read_text().splitlines()[:-1])
    shown = cluster.command("scontrol", "-o", "show", "job", job_id).stdout
    words = dict(word.split("=", 1) for word in shown.split() if "=" in word)
    system.cancel_pilots([job_id])

    def is_gone() -> bool:
        pilot = system.pilot_states([job_id]).get(job_id)
        return pilot is None or pilot.presence is Presence.ABSENT

    wait_for(is_gone, what="the pilot has left")
    wait_for(
        lambda: any(node.state == "idle" for node in whole_look(system).nodes or ()),
        what="its node is idle again",
    )
    return {name: words[name] for name in ASKED if name in words}, environment


def test_a_hostile_environment_changes_neither_looks_nor_pilots(
    cluster: SlurmTestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = cluster.directory
    usual_look = look(system_of(cluster))
    usual_job, usual_environment = pilot_of(cluster, logs / "usual.log", "p000001")
    assert usual_job["Partition"] == "bf"
    for name, value in HOSTILE.items():
        monkeypatch.setenv(name, value)
    assert look(system_of(cluster)) == usual_look
    job, environment = pilot_of(cluster, logs / "hostile.log", "p000002")
    assert job == usual_job
    assert environment.keys() == usual_environment.keys()
    assert not [name for name, value in HOSTILE.items() if environment.get(name) == value]
