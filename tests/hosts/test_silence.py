"""Hosts that fall silent: a node, the daemon's, one that an ordinary job wants, one for ever."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bftrainer.lab.try_records import EpochUse
from tests.support.hosts import Cluster, running_hosts
from tests.support.hosts.own_daemon import OwnDaemon, updates, uses
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm
UPDATES = 60  # so long that a cut is longer than every time-out of ours


class Training:
    """A trainer on all three nodes."""

    def __init__(self, cluster: Cluster, daemon: OwnDaemon) -> None:
        self.cluster, self.daemon = cluster, daemon
        daemon.does("up", "--partition", "bf")
        daemon.polls_each(1.0)
        self.trainer = daemon.submit_train("1:3")
        daemon.trains_at(self.trainer, 3)

    @property
    def record(self) -> dict[str, Any]:
        record: dict[str, Any] = self.daemon.trainer(self.trainer)["record"]
        return record

    def restart(self) -> None:
        """Kill the daemon and start another one."""
        before = self.daemon.status()
        self.cluster.does("login", "kill", "-KILL", str(before["pid"]))
        self.daemon.does("up", "--partition", "bf")
        assert self.daemon.status()["incarnation"] == before["incarnation"] + 1

    def jobs(self) -> set[str]:
        """The pilots' jobs that run, as "JOB NODE"."""
        said = self.cluster.does("login", "squeue", "-h", "-pbf", "-tR", "-o%i %N")
        return set(said.splitlines())

    def nodes(self) -> dict[str, dict[str, Any]]:
        found = json.loads(self.daemon.does("nodes", "--json"))
        return {node["name"]: node for node in found["nodes"]}

    def is_taken_over(self, jobs: set[str], before: dict[str, Any]) -> None:
        """The daemon hears all agents again, and nothing but steps was done since."""
        wait_for(lambda: self.record["progress"]["step"] >= self.step() - UPDATES, what="news")
        wait_for(lambda: not self.daemon.status()["failures"], what="all is well")
        after = self.record
        assert self.jobs() == jobs
        for name in ("last_generation", "rescales", "failures"):
            assert after[name] == before[name], name

    def step(self) -> int:
        """The newest, as workers wrote it down."""
        return max((one.step for one in updates(self.daemon.records())), default=0)

    def trains_on(self, count: int = UPDATES) -> None:
        """Wait for more updates."""
        before = self.step()
        wait_for(lambda: self.step() >= before + count, interval_s=0.2, what="it trains on")


@contextmanager
def trained(slurmd_timeout_s: int) -> Iterator[Training]:
    slurm = (f"SlurmdTimeout={slurmd_timeout_s}", "ReturnToService=2")
    with running_hosts(n_nodes=3, slurm=slurm) as cluster, OwnDaemon(cluster) as daemon:
        yield Training(cluster, daemon)


@pytest.fixture(scope="module")
def training() -> Iterator[Training]:
    with trained(40) as started:
        yield started


@pytest.fixture
def patient_training() -> Iterator[Training]:
    """One whose Slurm does not call a cut-off node down while a busy machine trains slowly."""
    with trained(300) as started:
        yield started


def test_a_node_that_was_cut_off_comes_back_with_its_pilot(patient_training: Training) -> None:
    training = patient_training
    jobs = training.jobs()
    training.cluster.cut("n2")
    training.daemon.trains_at(training.trainer, 2)
    training.trains_on()
    assert training.nodes()["n2"]["use"] == "unreachable"
    assert "is not heard" in training.nodes()["n2"]["reason"]
    training.cluster.mend("n2")
    training.daemon.trains_at(training.trainer, 3)
    assert training.jobs() == jobs
    assert training.nodes()["n2"]["use"] == "held"


@pytest.mark.long
def test_if_the_daemons_host_is_cut_off_training_goes_on_and_is_taken_over(
    training: Training,
) -> None:
    jobs, before = training.jobs(), training.record
    training.cluster.cut("login")
    said = "BFT-1330: The daemon has not heard 3 of its 3 agents"
    wait_for(lambda: said in " ".join(training.daemon.status()["failures"]), what="it says so")
    training.trains_on()
    during = training.record
    assert (during["state"], during["progress"]["size"]) == ("running", 3)
    training.cluster.mend("login")
    training.is_taken_over(jobs, before)


@pytest.mark.long
def test_a_daemon_that_was_stopped_finds_all_as_they_were(training: Training) -> None:
    training.daemon.trains_at(training.trainer, 3)
    jobs, before = training.jobs(), training.record
    pid = str(training.daemon.status()["pid"])
    training.cluster.does("login", "kill", "-STOP", pid)
    training.trains_on()
    training.cluster.does("login", "kill", "-CONT", pid)
    wait_for(lambda: "BFT-1318" in training.daemon.status()["slept"], what="it says so")
    training.is_taken_over(jobs, before)
    training.trains_on()
    assert training.jobs() == jobs
    assert training.record["last_generation"] == before["last_generation"]


@pytest.mark.long
def test_an_ordinary_job_gets_a_silent_node_at_once(training: Training) -> None:
    training.daemon.trains_at(training.trainer, 3)
    training.cluster.cut("n3")
    wait_for(lambda: training.nodes()["n3"]["use"] == "unreachable", what="it is silent")
    (pilot,) = (job for job in training.jobs() if job.endswith(" n3"))
    ordinary = training.cluster.does(
        "login", "sbatch", "--parsable", "-wn3", "--wrap=true", user="bob"
    ).strip()
    wait_for(lambda: pilot not in training.jobs(), what="its pilot is cancelled")
    training.daemon.trains_at(training.trainer, 2)
    agents = training.cluster.processes("n3", "trainers.agent")
    assert agents
    training.cluster.mend("n3")
    wait_for(
        lambda: not set(agents) & set(training.cluster.processes("n3", "trainers.agent")),
        what="its agent is told to go",
    )
    shown = ("squeue", "-h", "-j", ordinary, "-tall", "-o%T")
    wait_for(
        lambda: training.cluster.does("login", *shown).strip() == "COMPLETED",
        timeout_s=400.0,  # Slurm repeats what did not arrive when it likes
        what="bob's job ends",
    )
    training.daemon.trains_at(training.trainer, 3)


@pytest.mark.long
def test_a_node_that_is_gone_ends_with_its_job(training: Training) -> None:
    (job,) = (job for job in training.jobs() if job.endswith(" n1"))
    agents = training.cluster.processes("n1", "trainers.agent")
    training.cluster.cut("n1")
    wait_for(lambda: training.nodes()["n1"]["use"] == "unreachable", what="it is silent")
    training.daemon.trains_at(training.trainer, 2)
    wait_for(lambda: training.nodes()["n1"]["use"] != "unreachable", what="its pilot is dropped")
    assert job not in training.jobs()
    training.trains_on()
    training.cluster.mend("n1")
    wait_for(
        lambda: not set(agents) & set(training.cluster.processes("n1", "trainers.agent")),
        what="its agent is told to go",
    )
    training.cluster.stop_slurm("n1")  # which would ask after it only minutes later
    training.cluster.start_slurm("n1")
    training.daemon.trains_at(training.trainer, 3)


@pytest.mark.long
def test_a_daemon_that_is_started_while_it_is_cut_off_takes_over_too(training: Training) -> None:
    training.daemon.trains_at(training.trainer, 3)
    jobs, before = training.jobs(), training.record
    for node in training.cluster.plan.nodes:
        training.cluster.block("login", node)
    training.restart()
    said = "BFT-1330: The daemon has not heard 3 of its 3 agents"
    wait_for(lambda: said in " ".join(training.daemon.status()["failures"]), what="it says so")
    training.trains_on()
    during = training.record
    assert (during["state"], during["progress"]["size"]) == ("running", 3)
    assert {node["use"] for node in training.nodes().values()} == {"unreachable"}
    for node in training.cluster.plan.nodes:
        training.cluster.unblock("login", node)
    training.is_taken_over(jobs, before)


@pytest.mark.long
def test_an_agent_is_told_to_go_by_a_daemon_that_only_has_its_key(training: Training) -> None:
    training.daemon.trains_at(training.trainer, 3)
    (job,) = (job.split()[0] for job in training.jobs() if job.endswith(" n2"))
    agents = training.cluster.processes("n2", "trainers.agent")
    assert agents
    training.cluster.stop_slurm("n2")  # so that nobody else ends them
    training.cluster.cut("n2")
    training.cluster.does("login", "scancel", job, user="ada")
    wait_for(lambda: not training.nodes()["n2"]["pilot_id"], what="the pilot has ended")
    training.restart()
    training.cluster.mend("n2")
    wait_for(
        lambda: not set(agents) & set(training.cluster.processes("n2", "trainers.agent")),
        what="its agent is told to go",
    )
    training.cluster.start_slurm("n2")
    training.daemon.trains_at(training.trainer, 3)


@pytest.mark.long
def test_where_no_process_can_be_started_any_more_an_agent_leaves_in_order(
    training: Training,
) -> None:
    training.daemon.trains_at(training.trainer, 3)
    (job,) = (job.split()[0] for job in training.jobs() if job.endswith(" n2"))
    pilot = training.nodes()["n2"]["pilot_id"]
    limit = "for pid in $(pgrep -f 'trainers[.]agent'); do prlimit --pid $pid --nproc=1:1; done"
    training.cluster.does("n2", "sh", "-c", limit, user="ada")  # root has no such limit
    training.cluster.does("login", "scancel", job, user="ada")
    wait_for(lambda: training.nodes()["n2"]["pilot_id"] != pilot, what="the pilot has ended")
    (log,) = training.cluster.home.glob(f"ada/.bftrainer/*/pilots/{pilot}/agent.log")
    assert "files of workers stay: can't start new thread" in log.read_text()
    assert "left: signal" in log.read_text()
    training.daemon.trains_at(training.trainer, 3)


@pytest.mark.long
def test_a_daemon_whose_host_starts_no_process_any_more_goes_on(training: Training) -> None:
    training.daemon.trains_at(training.trainer, 3)
    before = training.daemon.status()["incarnation"]

    def limit(most: str) -> None:
        text = f"for pid in $(pgrep -f 'bftrainer daemo[n]'); do prlimit --pid $pid --nproc={most}:"
        training.cluster.does("login", "sh", "-c", f"{text}; done", user="ada")

    limit("1")
    wait_for(lambda: training.daemon.status()["observed"] == "unknown", what="it sees nothing")
    assert "cannot be started" in " ".join(training.daemon.status()["failures"])
    pilot = next(job for job in training.jobs() if job.endswith(" n3"))
    training.cluster.does("login", "sbatch", "-wn3", "-o/dev/null", "--wrap=true", user="bob")
    wait_for(lambda: pilot not in training.jobs(), what="bob's job has the node")
    training.daemon.trains_at(training.trainer, 2)
    training.trains_on()
    limit("5000")
    training.daemon.trains_at(training.trainer, 3)
    assert training.daemon.status()["incarnation"] == before


def test_each_sample_was_used_once(training: Training) -> None:
    """The last of this module: what all tests before it did counts."""

    def whole() -> list[EpochUse] | None:
        complete = uses(training.daemon.records())[:-1]
        return complete if len(complete) > 5 else None

    assert [use for use in wait_for(whole, what="some epochs") if not use.is_once] == []
