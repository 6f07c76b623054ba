"""Faults of the stand-in: daemons that stop or die, hosts that vanish, spoiled answers."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.batch import process
from bftrainer.model.errors import BatchSystemError, UsageError
from lsf_adapters.testcluster import LsfConfig, LsfTestCluster, processes
from lsf_adapters.testcluster.faults import SPOILS
from tests.integration.lsf_adapters.test_lsf_standin import (
    bsub,
    hosts,
    needs_root,
    noted,
    signals_job,
    states,
    wait_state,
)
from tests.integration.lsf_fixtures import DIALECTS, running_lsf
from tests.support.waiting import wait_for

TRYING = {
    "ibm": "Cannot connect to LSF. Please wait ...",
    "volclava": "batch system daemon not responding ... still trying",
}


@pytest.fixture(params=DIALECTS)
def lsf(request: pytest.FixtureRequest) -> Iterator[LsfTestCluster]:
    with running_lsf(dialect=request.param, n_nodes=2) as cluster:
        yield cluster


def in_background(cluster: LsfTestCluster, *argv: str) -> tuple[threading.Thread, list[str]]:
    """Run a command that waits; its standard error lines come when it has ended."""
    said: list[str] = []

    def run() -> None:
        said.extend(cluster.command(*argv).stderr.splitlines())

    thread = threading.Thread(target=run)
    thread.start()
    return thread, said


@pytest.mark.long
def test_requests_to_a_stopped_mbatchd_become_jobs(lsf: LsfTestCluster) -> None:
    lsf.stop_controller()
    cut = lsf.command("bjobs", timeout_s=2.5)
    assert cut.timed_out
    assert cut.stderr.splitlines() == [TRYING[lsf.config.dialect]]
    killed = lsf.command("bsub", "-J", "killed", "sleep 60", timeout_s=0.5)
    assert killed.timed_out
    before = requests_waiting(lsf)
    thread, said = in_background(lsf, "bsub", "-J", "once", "sleep 60")
    wait_for(lambda: requests_waiting(lsf) >= before + 2, what="two requests of one bsub")
    lsf.start_controller()
    thread.join()
    assert said == [TRYING[lsf.config.dialect]] * len(said)
    lines = lsf.command("bjobs", "-w").stdout.splitlines()[1:]
    names = [line.split()[6] for line in lines]
    # Killing a client takes no request back; each request of the other became a job.
    assert names.count("killed") == 1
    assert names.count("once") == len(said) + 1 >= 2


def requests_waiting(cluster: LsfTestCluster) -> int:
    """The number of requests that the server has not read, and the socket where it listens."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    return sum(line.endswith(str(cluster.config.socket)) for line in lines)


@pytest.mark.long
def test_killed_mbatchd_makes_no_duplicates_and_forgets_nothing(lsf: LsfTestCluster) -> None:
    runs = lsf.submit(n_nodes=1, duration_s=600)  # it ends by bkill, however slow the machine is
    ends = bsub(lsf, "-J", "ends", "sleep 0.3; exit 7")
    held = bsub(lsf, "-H", "true")
    wait_state(lsf, ends, "RUN")
    wait_for(lambda: lsf.started_s(runs), what="the first job")
    lsf.set_host("n2", "close")
    lsf.kill_controller()
    thread, said = in_background(lsf, "bsub", "-J", "once", "sleep 600")
    pids = processes.of_jobs(lsf.config.conf)
    wait_for(lambda: len(processes.of_jobs(lsf.config.conf)) < len(pids), what="the end of a job")
    lsf.start_controller()
    thread.join()
    assert len(set(said)) <= 1  # repeated for as long as it waits
    wait_state(lsf, ends, "EXIT")
    assert "Exited with exit code 7" in lsf.command("bjobs", "-l", ends).stdout
    seen = states(lsf)
    assert seen.pop(runs) == "RUN"
    assert seen.pop(held) == "PSUSP"
    assert len(seen) == 1  # the one that was submitted meanwhile
    assert hosts(lsf)["n2"][0] == "closed_Adm"
    assert lsf.command("bkill", runs).is_ok
    wait_state(lsf, runs, "EXIT")


@pytest.mark.long
def test_stopped_lim(lsf: LsfTestCluster) -> None:
    lsf.stop_lim()
    assert lsf.command("bhosts", timeout_s=0.5).timed_out
    lsid = lsf.command("lsid")
    assert lsid.returncode == 255
    assert lsid.stderr == "ls_getclustername(): LIM is down; try later\n"
    lsf.start_lim()
    assert lsf.command("bhosts").is_ok


@pytest.mark.long
def test_dead_machine(lsf: LsfTestCluster) -> None:
    dies = bsub(lsf, "-m", "n1", "-n", "2", "sleep 60")
    again = bsub(lsf, "-m", "n1", "-r", "sleep 60")
    stays = bsub(lsf, "-m", "n2", "sleep 60")
    for job_id in (dies, again, stays):
        wait_state(lsf, job_id, "RUN")
    lsf.kill_host("n1")
    assert states(lsf)[dies] == "RUN"
    wait_for(lambda: hosts(lsf)["n1"][0] == "unreach", what="unreach", interval_s=0.02)
    wait_for(lambda: states(lsf, dies)[dies] == "UNKWN", what="UNKWN", interval_s=0.02)
    wait_for(lambda: hosts(lsf)["n1"][0] == "unavail", what="unavail")
    wait_state(lsf, dies, "ZOMBI")
    wait_state(lsf, again, "PEND")
    assert set(states(lsf)) == {again, stays}  # a zombie is not listed
    failed = lsf.command("bkill", dies)
    assert (failed.returncode, failed.stderr) == (255, f"Job <{dies}>: Operation is in progress\n")
    assert processes.of_jobs(lsf.config.conf)  # its processes run on
    lsf.start_host("n1")
    wait_state(lsf, dies, "EXIT")
    wait_for(lambda: hosts(lsf)["n1"][0] == "ok", what="ok")
    wait_state(lsf, again, "RUN")


@pytest.mark.long
def test_dead_sbatchd_alone(lsf: LsfTestCluster) -> None:
    job_id = bsub(lsf, "-m", "n1", "sleep 60")
    wait_state(lsf, job_id, "RUN")
    lsf.kill_sbatchd("n1")
    wait_state(lsf, job_id, "UNKWN")
    assert hosts(lsf)["n1"] == ["unreach", "4", "1", "1", "0", "0", "0"]
    assert lsf.command("bkill", job_id).returncode == 255
    assert states(lsf) == {}
    assert lsf.command("bkill", "-r", job_id).is_ok
    wait_state(lsf, job_id, "EXIT")
    lsf.start_host("n1")
    assert hosts(lsf)["n1"][0] == "ok"


@pytest.mark.long
def test_spoiled_answers(lsf: LsfTestCluster) -> None:
    plain = lsf.command("bhosts", "-w")
    for how in sorted(SPOILS):
        lsf.spoil("bhosts", how)
        assert lsf.command("bhosts", "-w").stdout != plain.stdout, how
    assert lsf.command("bqueues").is_ok
    lsf.spoil("bhosts", None)
    assert lsf.command("bhosts", "-w").stdout == plain.stdout


@pytest.mark.long
@needs_root
def test_only_the_owner_orders_faults(lsf: LsfTestCluster) -> None:
    program = str(lsf.directory / "lib" / "_fault")
    refused = lsf.command(program, "spoil", "bjobs", "empty", user="nobody")
    assert not refused.is_ok
    assert lsf.command("bjobs").returncode == 254


@pytest.mark.long
def test_root_is_refused_if_so_configured() -> None:
    with running_lsf(dialect="volclava", n_nodes=1, root_may_submit=False) as cluster:
        done = cluster.command("bsub", "true")
        if os.geteuid() == 0:
            assert done.stderr == "User permission denied. Job not submitted.\n"
            assert cluster.submit(n_nodes=1, duration_s=0)


@pytest.mark.long
def test_a_directory_is_used_again_and_nothing_of_it_is_left() -> None:
    with running_lsf(n_nodes=1) as cluster:
        first = cluster.submit(n_nodes=1, duration_s=60)
        wait_for(lambda: cluster.started_s(first), what="the job")
        # A test that was killed left everything running.
        again = LsfTestCluster.load(cluster.directory)
        assert again.config == cluster.config
        before = processes.of_server(cluster.directory) | processes.of_jobs(cluster.config.conf)
        again.up()
        assert not [pid for pid in before if processes.is_alive(pid)]
        assert again.submit(n_nodes=1, duration_s=60) == "1"
        again.down()
        assert processes.of_server(cluster.directory) == frozenset()
        assert processes.of_jobs(cluster.config.conf) == frozenset()


@pytest.mark.long
def test_two_clusters_side_by_side() -> None:
    with running_lsf(n_nodes=1) as one, running_lsf(n_nodes=1, dialect="volclava") as other:
        mine = one.submit(n_nodes=1, duration_s=60)
        assert other.command("bjobs", "-u", "all").returncode == 254
        one.down()
        assert other.command("lsid").is_ok
        assert mine == "1"


@pytest.mark.long
def test_what_cannot_be_a_cluster_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    for directory in (tmp_path, Path("/tmp") / ("x" * 100)):
        with pytest.raises(UsageError) as caught:
            LsfTestCluster(LsfConfig(directory=directory)).up()
        assert caught.value.code == "BFT-1277"
    with pytest.raises(UsageError) as caught:
        LsfTestCluster.load(tmp_path)
    assert caught.value.code == "BFT-1276"


@pytest.mark.long
def test_what_the_cluster_refuses() -> None:
    with running_lsf(n_nodes=1) as cluster:
        with pytest.raises(BatchSystemError) as caught:
            cluster.submit(n_nodes=2, duration_s=1)
        assert caught.value.code == "BFT-1280"
        with pytest.raises(BatchSystemError) as caught:
            cluster.set_host("n9", "close")
        assert caught.value.code == "BFT-1279"
        with pytest.raises(UsageError) as wrong:
            cluster.command("lsid", user="no-such-user")
        assert wrong.value.code == "BFT-1289"


@pytest.mark.long
def test_server_that_cannot_start_says_why() -> None:
    with running_lsf(n_nodes=1, up_timeout_s=5.0) as cluster:
        cluster.kill_controller()
        (cluster.directory / "cluster.json").write_text("{}")
        with pytest.raises(BatchSystemError) as caught:
            cluster.start_controller()
        assert caught.value.code == "BFT-1278"
        assert "KeyError" in str(caught.value)


@pytest.mark.long
def test_commands_without_a_server_wait() -> None:
    with running_lsf(n_nodes=1) as cluster:
        cluster.down()
        path = cluster.config.bin / "bjobs"
        done = process.run((str(path),), timeout_s=0.5, env=cluster.env)
        assert done.timed_out
        cluster.start_controller()


@pytest.mark.long
def test_start_that_fails(lsf: LsfTestCluster) -> None:
    lsf.fail_start("n1")
    job_id = bsub(lsf, "sleep 60")
    wait_state(lsf, job_id, "RUN")
    assert processes.of_jobs(lsf.config.conf) == frozenset()
    wait_for(lambda: processes.of_jobs(lsf.config.conf), what="the second start")
    assert states(lsf)[job_id] == "RUN"
    records = [line.split() for line in lsf.config.events_file.read_text().splitlines()]
    kinds = [(words[0], words[4:6]) for words in records if '"JOB_S' in words[0]][:3]
    assert kinds[0][0] == kinds[2][0] == '"JOB_START"'
    assert kinds[1] == ('"JOB_STATUS"', ["1", "1603"])


@pytest.mark.long
@needs_root
def test_every_user_reaches_the_commands(lsf: LsfTestCluster) -> None:
    # Through a shell of that user: a program that root starts for him has more rights.
    done = lsf.command("sh", "-c", "bjobs; bsub -H true", user="nobody")
    assert done.stdout == "Job <1> is submitted to default queue <normal>.\n"
    assert done.stderr == "No unfinished job found\n"


@pytest.mark.long
def test_jobs_can_trap_signals_that_the_test_ignores(lsf: LsfTestCluster) -> None:
    lsf.kill_controller()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        lsf.start_controller()
    finally:
        signal.signal(signal.SIGINT, before)
    script, path = signals_job(lsf, "trap")
    job_id = bsub(lsf, stdin=script)
    wait_for(lambda: noted(path) == ["ready"], what="the job")
    assert lsf.command("bkill", "-s", "INT", job_id).is_ok
    wait_for(lambda: noted(path) == ["ready", "INT"], what="INT")
