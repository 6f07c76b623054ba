"""Two daemons of one user share a queue of LSF: each has pilots p000001 and so on."""

from __future__ import annotations

from dataclasses import replace

from bftrainer.batch.pilot_job import job_name
from lsf_adapters.testcluster import LsfTestCluster
from tests.conformance.words import launch_and_wait, observe, pilot, whole
from tests.integration.lsf_fixtures import LsfDriver, lsf_adapter, lsf_cluster
from tests.support.waiting import wait_for

__all__ = ["lsf_cluster"]


def test_two_daemons_with_pilots_of_the_same_number(lsf_cluster: LsfTestCluster) -> None:
    """Of the same user, in the same queue: each sees its own, and leaves the other's alone."""
    places = [LsfDriver(lsf_cluster).directory / name for name in ("mine", "other")]
    systems = [lsf_adapter(lsf_cluster), lsf_adapter(lsf_cluster)]
    requests, ids = [], []
    for place, system, node in zip(places, systems, ("n1", "n2"), strict=True):
        plain = pilot(LsfDriver(lsf_cluster), node)
        folder = place / "pilots" / "p000001"
        folder.mkdir(parents=True)
        request = replace(plain, pilot_id="p000001", log_path=folder / "agent.log")
        requests.append(request)
        ids.append(launch_and_wait(system, request))
    mine, other = ({j.job_id: j for j in whole(system).jobs or ()} for system in systems)
    assert mine[ids[0]].pilot_id == other[ids[1]].pilot_id == "p000001"
    assert mine[ids[1]].pilot_id == job_name(requests[1])  # a pilot, but none of ours
    assert other[ids[0]].pilot_id == job_name(requests[0])
    assert not mine[ids[1]].is_ordinary
    # A daemon that starts again knows its own once it has been told where they are.
    again = lsf_adapter(lsf_cluster)
    again.pilots_are_in(places[1] / "pilots")
    seen = {job.job_id: job.pilot_id for job in whole(again).jobs or ()}
    assert seen == {ids[0]: job_name(requests[0]), ids[1]: "p000001"}
    # A second job of the other's pilot is the other's to end.
    extra = lsf_cluster.command(
        *("bsub", "-q", "bf", "-J", job_name(requests[1]), "-n", "4", "-m", "n2"),
        *("-o", "/dev/null", "sleep 600"),
    ).stdout.partition("<")[2].partition(">")[0]  # fmt: skip
    systems[0].snapshot()
    assert "PEND" in lsf_cluster.command("bjobs", "-w", extra).stdout
    systems[1].snapshot()
    wait_for(
        lambda: "EXIT" in lsf_cluster.command("bjobs", "-w", extra).stdout, what="it is cancelled"
    )
    assert all(observe(systems[0], job_id).phase == "running" for job_id in ids)
