"""What only IBM's LSF does, at the stand-in: preemption, its signals, the plan, limits of runs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest

from lsf_adapters.testcluster import LsfTestCluster, Parameters, Profile
from lsf_adapters.testcluster.config import standard_queues
from tests.integration.lsf_adapters.test_lsf_standin import (
    bsub,
    hosts,
    noted,
    signals_job,
    states,
    wait_state,
)
from tests.integration.lsf_fixtures import lsf_adapter, running_lsf
from tests.support.waiting import wait_for

NORMAL, BF = standard_queues("ibm")
FAST = Profile.FAST
WHOLE = ("-q", "bf", "-n", "4", "-R", "span[ptile=4]", "-W", "10")


@pytest.fixture
def lsf(request: pytest.FixtureRequest) -> Iterator[LsfTestCluster]:
    settings: dict[str, Any] = getattr(request, "param", {})
    with running_lsf(**{"n_nodes": 2, **settings}) as cluster:
        yield cluster


def pilots(cluster: LsfTestCluster, n: int = 2) -> list[str]:
    ids = [bsub(cluster, *WHOLE, "-m", name, "sleep 60") for name in cluster.node_names[:n]]
    for job_id in ids:
        wait_state(cluster, job_id, "RUN")
    return ids


@pytest.mark.long
def test_one_pilot_is_terminated_for_an_ordinary_job(lsf: LsfTestCluster) -> None:
    ids = pilots(lsf)
    ordinary = lsf.submit(n_nodes=1, duration_s=60)
    wait_for(lambda: lsf.started_s(ordinary), what="the ordinary job")
    seen = states(lsf, "-a", *ids)
    assert sorted(seen.values()) == ["EXIT", "RUN"]
    (gone,) = (job_id for job_id, state in seen.items() if state == "EXIT")
    assert "TERM_PREEMPT" in lsf.command("bjobs", "-UF", gone).stdout
    fields = lsf.command("bjobs", "-a", "-o", "jobid exit_reason", "-json", gone).stdout
    assert json.loads(fields)["RECORDS"][0]["EXIT_REASON"].startswith("TERM_PREEMPT")


@pytest.mark.long
def test_several_pilots_are_terminated_for_a_wide_job(lsf: LsfTestCluster) -> None:
    ids = pilots(lsf)
    ordinary = lsf.submit(n_nodes=2, duration_s=60)
    wait_for(lambda: lsf.started_s(ordinary), what="the ordinary job")
    assert set(states(lsf, "-a", *ids).values()) == {"EXIT"}


@pytest.mark.long
def test_parallel_pilots_get_kill_alone(lsf: LsfTestCluster) -> None:
    script, path = signals_job(lsf, "pilot")
    (other,) = pilots(lsf, 1)
    pilot = bsub(lsf, *WHOLE, stdin=script)
    wait_for(lambda: noted(path) == ["ready"], what="the pilot")
    ordinary = lsf.submit(n_nodes=2, duration_s=60)
    wait_for(lambda: lsf.started_s(ordinary), what="the ordinary job")
    assert noted(path) == ["ready"]
    assert set(states(lsf, "-a", pilot, other).values()) == {"EXIT"}


@pytest.mark.long
@pytest.mark.parametrize(
    "lsf", [{"parameters": Parameters(sequential_signal=True), "n_nodes": 1}], indirect=True
)
def test_sequential_signals_for_parallel_jobs(lsf: LsfTestCluster) -> None:
    script, path = signals_job(lsf, "pilot")
    bsub(lsf, *WHOLE, stdin=script)
    wait_for(lambda: noted(path) == ["ready"], what="the pilot")
    ordinary = lsf.submit(n_nodes=1, duration_s=60)
    wait_for(lambda: lsf.started_s(ordinary), what="the ordinary job")
    assert [word for word in noted(path) if word != "CONT"] == ["ready", "INT", "TERM"]


SUSPENDS = (NORMAL, dataclasses.replace(BF, terminates_preempted=False))


@pytest.mark.long
@pytest.mark.parametrize("lsf", [{"queues": SUSPENDS, "n_nodes": 1}], indirect=True)
def test_suspended_pilot_goes_on_later(lsf: LsfTestCluster) -> None:
    (pilot,) = pilots(lsf, 1)
    ordinary = lsf.submit(n_nodes=1, duration_s=1)
    wait_for(lambda: lsf.started_s(ordinary), what="the ordinary job")
    assert states(lsf)[pilot] == "SSUSP"
    assert hosts(lsf)["n1"] == ["closed_Full", "4", "8", "4", "4", "0", "0"]
    wait_state(lsf, ordinary, "DONE")
    wait_state(lsf, pilot, "RUN")


@pytest.mark.long
@pytest.mark.parametrize(
    "lsf", [{"parameters": Parameters(preempt_delay_s=2.0), "n_nodes": 1}], indirect=True
)
def test_preemption_may_be_delayed(lsf: LsfTestCluster) -> None:
    (pilot,) = pilots(lsf, 1)
    ordinary = lsf.submit(n_nodes=1, duration_s=60)
    submitted_s = lsf.config.events_file.stat().st_mtime
    started_s = wait_for(lambda: lsf.started_s(ordinary), what="the ordinary job")
    assert started_s - submitted_s >= 1.9
    wait_state(lsf, pilot, "EXIT")


@pytest.mark.long
@pytest.mark.parametrize(
    "lsf", [{"parameters": Parameters(allocation_planner=True)}], indirect=True
)
def test_plan_file(lsf: LsfTestCluster) -> None:
    runs = lsf.submit(n_nodes=1, duration_s=60, limit_s=600)
    wait_state(lsf, runs, "RUN")
    waits = lsf.submit(n_nodes=2, duration_s=60, limit_s=120)
    path = lsf.config.logdir / "lsb.allocation.plan.json"

    def plans() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(path.read_text())["PLANS"]
        return found

    (plan,) = wait_for(plans, what="a plan")
    assert plan["JOB_ID"] == f"lab@{waits}"
    assert int(plan["FINISH_TIME"]) - int(plan["START_TIME"]) == 120
    started_s = lsf.started_s(runs)
    assert started_s is not None
    assert abs(int(plan["START_TIME"]) - started_s - 600) < 2
    assert {one["HOST"]: one["RSRC"] for one in plan["ALLOC"]} == {
        name: [{"NAME": "slots", "AMOUNT": 4}] for name in ("n1", "n2")
    }
    shown = lsf.command("bslots", "-l").stdout
    assert "HOSTS: 4*n2" in shown


QUICK = dataclasses.replace(BF, default_limit_s=1.0)


@pytest.mark.long
@pytest.mark.parametrize("lsf", [{"queues": (NORMAL, QUICK)}], indirect=True)
def test_run_limit_is_usr2_and_later_the_end(lsf: LsfTestCluster) -> None:
    script, path = signals_job(lsf, "limit")
    job_id = bsub(lsf, "-q", "bf", "-n", "4", stdin=script)
    wait_for(lambda: noted(path) == ["ready", "USR2"], what="SIGUSR2")
    assert states(lsf)[job_id] == "RUN"
    wait_state(lsf, job_id, "EXIT")
    assert noted(path) == ["ready", "USR2"]
    assert "TERM_RUNLIMIT" in lsf.command("bjobs", "-l", job_id).stdout


ONE_SIGNAL = (NORMAL, dataclasses.replace(BF, terminate_signal="SIGTERM"))


@pytest.mark.long
@pytest.mark.parametrize("lsf", [{"queues": ONE_SIGNAL, "n_nodes": 1}], indirect=True)
def test_signal_of_the_queue_replaces_the_ladder(lsf: LsfTestCluster) -> None:
    script, path = signals_job(lsf, "queue")
    job_id = bsub(lsf, *WHOLE, stdin=script)
    wait_for(lambda: noted(path) == ["ready"], what="the job")
    assert lsf.command("bkill", job_id).is_ok
    wait_for(lambda: noted(path) == ["ready", "TERM"], what="TERM")
    assert states(lsf)[job_id] == "RUN"


@pytest.mark.long
@pytest.mark.parametrize("lsf", [{"gpus_per_node": 2}], indirect=True)
def test_gpus(lsf: LsfTestCluster) -> None:
    lines = lsf.command("lshosts", "-gpu").stdout.splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["n1", "1", "n2", "1"]
    first = bsub(lsf, "-gpu", "num=2", "sleep 60")
    second = bsub(lsf, "-gpu", "num=1", "sleep 60")
    wait_state(lsf, second, "RUN")
    text = lsf.command("bjobs", "-o", "exec_host gpu_num delimiter='^'", first, second).stdout
    assert text.splitlines() == ["EXEC_HOST^GPU_NUM", "n1^2", "n2^1"]

    def gpus_left() -> dict[str, int]:
        nodes = lsf_adapter(lsf).snapshot().nodes or ()
        return {node.name: node.left.gpus for node in nodes if node.left is not None}

    wait_for(lambda: gpus_left() == {"n1": 0, "n2": 1}, what="a look at both hosts")
