"""Pilots with jsrun, and recorded idle nodes, on the stand-in of a machine with CSM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from bftrainer.errors import BatchSystemError
from bftrainer.model.cluster import JobState, NodeState
from bftrainer.poll.batch_system import PilotRequest
from bftrainer.simulate.traces import read_trace
from lsf_adapters.adapter import LsfBatchSystem
from lsf_adapters.commands import LsfCommands
from lsf_adapters.csm.__main__ import main
from lsf_adapters.csm.idle import gaps
from lsf_adapters.csm.placement import Csm
from lsf_adapters.csm.polls import read_polls
from lsf_adapters.csm.record import Machine, look, record
from lsf_adapters.testcluster import LsfTestCluster
from tests.conformance.words import (
    job_in,
    launch_and_wait,
    log_lines,
    node_states,
    pilot,
    started_with,
    wait_absent,
    wait_all_idle,
    wait_running,
    whole,
)
from tests.integration.lsf_fixtures import LsfDriver, lsf_adapter, running_lsf
from tests.support.csm import LAUNCH, csm_adapter, install
from tests.support.waiting import wait_for

SLOTS = 4
WHERE = """\
import os, signal, socket, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("on", os.environ["HOSTNAME"], os.environ.get("JSM_TEST_WHOLE"), os.getsid(0), flush=True)
signal.sigwait([signal.SIGTERM])
print("left", os.environ["HOSTNAME"], flush=True)
os._exit(0)
"""


@pytest.fixture(scope="module")
def machine() -> Iterator[LsfTestCluster]:
    """Four compute nodes and a launch node."""
    with running_lsf(dialect="ibm", n_nodes=4, slots_per_node=SLOTS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def bindir(machine: LsfTestCluster) -> Path:
    return install(machine)


@pytest.fixture(scope="module")
def system(machine: LsfTestCluster, bindir: Path) -> LsfBatchSystem:
    return csm_adapter(machine, bindir)


@pytest.fixture(scope="module")
def driver(machine: LsfTestCluster) -> LsfDriver:
    return LsfDriver(machine)


@pytest.fixture
def lsf(machine: LsfTestCluster, bindir: Path) -> LsfCommands:
    return LsfCommands(lsf_envdir=machine.config.conf, bindir=bindir)


def where_pilot(driver: LsfDriver, node: str) -> PilotRequest:
    """A pilot that says where it runs."""
    source = driver.directory / "where.py"
    source.write_text(WHERE)
    request = pilot(driver, node)
    words = (*request.agent_argv[:2], str(source))
    return PilotRequest(
        pilot_id=request.pilot_id,
        node=node,
        time_limit_s=600,
        agent_argv=words,
        log_path=request.log_path,
    )


def test_launch_nodes_are_no_nodes(system: LsfBatchSystem) -> None:
    wait_all_idle(system)
    seen = whole(system)
    assert node_states(seen) == dict.fromkeys(("n1", "n2", "n3", "n4"), NodeState.IDLE)
    assert seen.nodes is not None
    assert {node.cpus for node in seen.nodes} == {SLOTS}


def test_a_pilot_runs_on_its_compute_node_leaves_on_term_and_gives_it_back(
    system: LsfBatchSystem, driver: LsfDriver
) -> None:
    request = where_pilot(driver, "n3")
    job_id = system.launch_pilot(request)
    assert wait_running(system, job_id).node == "n3"
    said = wait_for(lambda: log_lines(request), what="the agent's first line")[0].split()
    assert said[:5] == ["on", "n3", "ALL_CPUS", "ALL_GPUS", "none"]

    job = job_in(whole(system), job_id)
    assert job is not None
    assert (job.nodes, job.n_nodes, job.pilot_id) == (("n3",), 1, request.pilot_id)
    assert node_states(whole(system))["n3"] is NodeState.ALLOCATED

    system.cancel_pilots([job_id])
    wait_absent(system, job_id)
    wait_for(lambda: log_lines(request)[-1:] == ["left n3"], what="the agent's last line")
    wait_all_idle(system)


def test_a_killed_pilot_leaves_nothing_on_the_compute_node(
    system: LsfBatchSystem, driver: LsfDriver
) -> None:
    request = where_pilot(driver, "n1")
    job_id = system.launch_pilot(request)
    session = wait_for(lambda: log_lines(request), what="the agent's first line")[0].split()[-1]
    assert Path(f"/proc/{session}").exists()
    system.cancel_pilots([job_id], force=True)
    wait_absent(system, job_id)
    wait_for(lambda: not Path(f"/proc/{session}").exists(), what="the agent is gone")
    wait_all_idle(system)


def test_arguments_and_variables_reach_the_agent_as_they_are(
    system: LsfBatchSystem, driver: LsfDriver
) -> None:
    hostile = 'a b\' "$HOME" `id` *'
    request = pilot(driver, "n2", "live", hostile, environment={"BFT_CONFORMANCE": hostile})
    job_id = launch_and_wait(system, request)
    assert started_with(request) == {"argv": ["live", hostile], "value": hostile}
    system.cancel_pilots([job_id], force=True)
    wait_absent(system, job_id)
    wait_all_idle(system)


def test_a_pilot_that_fails_is_said_to_have_failed(
    system: LsfBatchSystem, driver: LsfDriver
) -> None:
    request = pilot(driver, "n2", "die")
    job_id = system.launch_pilot(request)
    wait_absent(system, job_id)
    seen = system.pilot_states([job_id])[job_id]
    assert seen.has_failed
    assert "exit code 137" in seen.reason
    wait_all_idle(system)


def test_a_block_of_two_nodes_has_an_agent_on_each_and_comes_back_whole(
    machine: LsfTestCluster, system: LsfBatchSystem, driver: LsfDriver, bindir: Path
) -> None:
    csm, request = Csm(), where_pilot(driver, "n1")
    script = csm.script(request, request.agent_argv, n_nodes=2)
    for words in (csm.words(("n1", "n4"), SLOTS), csm.easy_words(2)):
        done = machine.command(
            str(bindir / "bsub"),
            "-q",
            "bf",
            "-W",
            "5",
            *words,
            stdin=f"#!/bin/sh\nPATH={bindir}:$PATH\n{script}",
        )
        assert done.is_ok, done.stderr
        job_id = done.stdout.partition("<")[2].partition(">")[0]
        wait_for(lambda: len(log_lines(request)) == 2, what="two agents")
        hosts = {line.split()[1] for line in log_lines(request)}
        assert len(hosts) == 2
        assert LAUNCH not in hosts
        assert machine.command("bkill", "-s", "TERM", job_id).is_ok
        wait_absent(system, job_id)
        wait_for(
            lambda: sum("left" in line for line in log_lines(request)) == 2,
            what="both agents have left",
        )
        assert {f"left {host}" for host in hosts} <= set(log_lines(request))
        wait_all_idle(system)
        request.log_path.unlink()
        request.log_path.with_name(f"{request.log_path.name}.started").rmdir()


def test_ordinary_jobs_are_seen_with_their_compute_nodes(
    machine: LsfTestCluster, system: LsfBatchSystem, bindir: Path
) -> None:
    def submitted(*words: str) -> str:
        done = machine.command(
            *(str(bindir / "bsub"), "-q", "normal", "-W", "9", *words),
            stdin="#!/bin/sh\nsleep 600\n",
        )
        return done.stdout.partition("<")[2].partition(">")[0]

    running, waiting = submitted("-nnodes", "3"), submitted("-nnodes", "2")

    def both() -> bool:
        seen = whole(system)
        one, other = job_in(seen, running), job_in(seen, waiting)
        return (
            one is not None
            and other is not None
            and (one.state, len(one.nodes), one.unclear) == (JobState.RUNNING, 3, "")
            and (other.state, other.n_nodes, other.cpus_per_node) == (JobState.PENDING, 2, SLOTS)
            and other.unclear == ""
        )

    wait_for(both, what="a running job on 3 nodes and a waiting one that wants 2")
    for job_id in (running, waiting):
        machine.cancel(job_id)
    wait_all_idle(system)


# -- idle nodes -----------------------------------------------------------------------------


def test_idle_nodes_are_found_as_the_paper_found_them(
    machine: LsfTestCluster, system: LsfBatchSystem, lsf: LsfCommands, bindir: Path, tmp_path: Path
) -> None:
    wait_all_idle(system)
    given = Machine(slots_per_node=SLOTS)
    assert set(look(lsf, given, 0.0).idle) == {"n1", "n2", "n3", "n4"}
    # Three nodes are taken for nine minutes; a job that wants two must wait, the rest is idle.
    first = machine.submit(n_nodes=3, duration_s=600, limit_s=540)
    wait_for(lambda: machine.started_s(first), what="the first job")
    second = machine.submit(n_nodes=2, duration_s=600, limit_s=540)

    def reserved() -> bool:
        poll = look(lsf, given, 0.0)
        return len(poll.idle) == 1 and poll.waiting != ()

    wait_for(reserved, what="a window on one node and an eligible job")
    (gap,) = gaps(look(lsf, given, 0.0))
    assert 400 < gap.for_s <= 540
    assert gap.is_unfillable
    out = tmp_path / "polls.jsonl"
    assert record(lsf, given, out, every_s=0.2, n_polls=4) == 0
    polls = read_polls(out)
    assert len(polls) == 4
    assert {name for poll in polls for name in poll.idle} == {gap.node}

    made = CliRunner().invoke(main, ["trace", str(out), str(tmp_path / "t.npz")])
    assert made.exit_code == 0, made.output
    trace = read_trace(tmp_path / "t.npz")
    assert trace.names == (gap.node,)
    assert trace.is_unfillable is not None
    assert trace.is_unfillable.all()
    for job_id in (second, first):
        machine.cancel(job_id)
    wait_all_idle(system)


@pytest.mark.parametrize("how", ["empty", "truncated", "garbage", "error"])
def test_bad_answers_are_refused_at_the_first_poll(
    machine: LsfTestCluster, lsf: LsfCommands, tmp_path: Path, how: str
) -> None:
    machine.spoil("bslots", how)
    try:
        with pytest.raises(BatchSystemError) as raised:
            record(lsf, Machine(slots_per_node=SLOTS), tmp_path / "polls", n_polls=1)
    finally:
        machine.spoil("bslots", None)
    assert raised.value.code == "BFT-1228"
    assert (tmp_path / "polls").read_text() == ""


def test_a_machine_without_jobstat_is_refused(machine: LsfTestCluster, tmp_path: Path) -> None:
    plain = LsfCommands(lsf_envdir=machine.config.conf, bindir=machine.config.bin)
    with pytest.raises(BatchSystemError) as raised:
        record(plain, Machine(slots_per_node=SLOTS), tmp_path / "polls", n_polls=1)
    assert raised.value.code == "BFT-1228"
    assert "jobstat" in raised.value.cause


def test_without_lshosts_no_node_is_known(machine: LsfTestCluster, bindir: Path) -> None:
    machine.spoil("lshosts", "error")
    try:
        seen = csm_adapter(machine, bindir).snapshot()
    finally:
        machine.spoil("lshosts", None)
    assert seen.nodes is None
    assert any("lshosts" in failure for failure in seen.failures)


def test_a_pilot_is_never_launched_this_way_on_an_lsf_without_csm() -> None:
    with running_lsf(dialect="volclava", n_nodes=1) as cluster:
        system = lsf_adapter(cluster, launch="csm")
        with pytest.raises(BatchSystemError) as raised:
            system.launch_pilot(pilot(LsfDriver(cluster), "n1"))
        assert raised.value.code == "BFT-1219"
        assert cluster.command("bjobs", "-u", "all").stdout == ""
