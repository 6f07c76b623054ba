"""Accounting of the test cluster, and a prediction made from it held against a real run."""

from __future__ import annotations

import json
import math
import os
import shutil
import stat
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from bftrainer.batch import process
from bftrainer.batch.traces import ReadOptions, read_trace, sacct_jobs
from bftrainer.batch.traces.sacct_jobs import read_jobs
from bftrainer.cli.main import cli
from bftrainer.journal.projection import JournalEntry, PilotState
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.lab.demo.watch import collect
from bftrainer.lab.harm.replica import share_of
from bftrainer.model.trainer import TrainerSpec
from milp.problem import Curve
from slurm_plugins.described_site import read_site
from slurm_plugins.testcluster import ClusterConfig, SlurmTestCluster, accounting
from slurm_plugins.testcluster.workload import WorkloadItem, WorkloadRun
from tests.integration.daemon_scripts import SLOW, trainer_spec
from tests.integration.slurm_fixtures import (
    enterable_directory,
    fast_cluster_with,
    need_slurm,
    remove_cluster,
)
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm

N_NODES = 4
COLUMNS = "JobID,JobName,Submit,Eligible,Start,End,NNodes,NodeList,State,Partition,Timelimit"
RESOLUTION_S = 1.0  # of sacct
SCALING = SLOW.replace("time.sleep(0.05)", "time.sleep(0.004 * len(x))")
POLICY = """\
poll_interval_s: 0.5
requests_per_minute: 1000
min_gap_s: 5
gap_margin_s: 1
pilot_time_limit_s: 600
t_fwd_s: 30
reserve_nodes_per_type: 0
join_window_s: 0.2
hold_idle_s: 2
p_jmax: 1
harm_slo_s: 60
"""


cluster = fast_cluster_with(n_nodes=N_NODES, gpus_per_node=0, accounting=True)


def export(
    cluster: SlurmTestCluster, path: Path, n_jobs: int, since_s: float, columns: str = COLUMNS
) -> Path:
    """Write what sacct says since then, once it knows the end of so many ordinary jobs."""
    env = {**cluster.env, "PATH": os.environ["PATH"], "SLURM_TIME_FORMAT": "%s", "TZ": "UTC0"}
    since = datetime.fromtimestamp(math.floor(since_s), UTC).strftime("%Y-%m-%dT%H:%M:%S")
    argv = (
        *("sacct", "--allusers", "--duplicates", "--allocations", "--parsable2"),
        *("--starttime", since, "--format", columns),
    )

    def everything() -> str:
        done = process.run(argv, timeout_s=20, env=env)
        assert done.is_ok, done.stderr
        ended = [line for line in done.stdout.splitlines() if "|COMPLETED|batch|" in line]
        return done.stdout if len(ended) >= n_jobs else ""

    path.write_text(wait_for(everything, what=f"{n_jobs} ended jobs in sacct"))
    return path


def run_script(cluster: SlurmTestCluster, items: Sequence[WorkloadItem]) -> tuple[float, ...]:
    """Run the jobs to their end; when the first one started and the last one ended."""
    with WorkloadRun(cluster, items) as run:
        assert run.wait(180), run.records()
    started = [r.started_s for r in run.records() if r.started_s is not None]
    ended = [r.ended_s for r in run.records() if r.ended_s is not None]
    assert len(started) == len(ended) == len(items)
    return min(started), max(ended)


def test_the_cluster_is_described_alike_by_its_file_and_by_scontrol(
    cluster: SlurmTestCluster, tmp_path: Path
) -> None:
    """As ``whatif --harm`` reads them, with a job of which sacct tells size and priority."""
    since_s = time.time()
    cluster.submit(n_nodes=2, duration_s=1)
    shown = [cluster.command("scontrol", "show", what).stdout for what in ("node", "partition")]
    by_scontrol = read_site(cluster.command("scontrol", "show", "config").stdout, "".join(shown))
    by_file = read_site(cluster.config.slurm_conf.read_text())
    assert by_scontrol.nodes == by_file.nodes
    assert len(by_file.nodes) == N_NODES
    assert by_scontrol.partitions == by_file.partitions
    assert by_scontrol.scheduler == by_file.scheduler
    columns = sacct_jobs.COMMAND.rpartition(" ")[2]
    file = export(cluster, tmp_path / "sacct.txt", 1, since_s, columns)
    (job,) = read_jobs(file, ReadOptions(ignored=("bf",))).jobs
    assert (job.n_nodes, job.partition) == (2, "batch")
    assert job.priority is not None
    assert share_of(job.tres, job.n_nodes, has_memory=False).cpus >= 1
    assert job.end_s - job.start_s == pytest.approx(1.0, abs=2 * RESOLUTION_S)


@pytest.mark.long
def test_sacct_gives_the_fragments_between_the_jobs(
    cluster: SlurmTestCluster, tmp_path: Path
) -> None:
    """Two jobs on all nodes, between them one on n1 and a pilot's stand-in on n2."""
    assert cluster.up_s is not None
    since_s = time.time()
    cluster.submit(n_nodes=N_NODES, duration_s=1)
    left_idle(cluster)
    pilot = cluster.submit(
        n_nodes=1, duration_s=4, partition="bf", extra_args=("--nodelist=n2",), user=None
    )
    middle = cluster.submit(n_nodes=1, duration_s=4, extra_args=("--nodelist=n1",))
    wait_for(lambda: cluster.ended_s(middle) and cluster.ended_s(pilot), what="both to end")
    left_idle(cluster)
    last = cluster.submit(n_nodes=N_NODES, duration_s=1)
    file = export(cluster, tmp_path / "sacct.txt", 3, since_s)
    found = read_trace(file, "sacct", options=ReadOptions(ignored=("bf",)))
    assert sorted(found.names) == [f"n{i + 1}" for i in range(N_NODES)]
    first_node = found.names.index("n1")
    gaps = list(zip(found.node.tolist(), found.start_s, found.end_s, strict=True))
    assert len(gaps) == N_NODES + 1  # n1 has two
    (_, begin, until), (_, after, end) = [g for g in gaps if g[0] == first_node]
    truth = [*noted(cluster, middle), noted(cluster, last)[0]]
    assert [until, after, end] == pytest.approx(truth, abs=RESOLUTION_S)
    others = [g[1:] for g in gaps if g[0] != first_node]
    assert others == [(begin, end)] * (N_NODES - 1)  # the pilot on n2 does not count
    with_it = read_trace(file, "sacct")
    began_s, ended_s = noted(cluster, pilot)
    less_s = found.node_seconds() - with_it.node_seconds()
    assert less_s == pytest.approx(ended_s - began_s, abs=2 * RESOLUTION_S)


def noted(cluster: SlurmTestCluster, job_id: str) -> list[float]:
    """When a job began and ended, as the controller knows it: for five minutes after the end."""
    argv = ("squeue", "-h", "-t", "all", "-j", job_id, "-o", "%S %e")
    done = cluster.command("env", "SLURM_TIME_FORMAT=%s", *argv)
    return [float(word) for word in done.stdout.split()]


def left_idle(cluster: SlurmTestCluster) -> None:
    """Wait until nothing runs, and then for an idle time that sacct can show."""
    wait_for(lambda: not cluster.command("squeue", "-h").stdout.strip(), what="an empty queue")
    free_s = time.time()
    wait_for(lambda: time.time() > free_s + 2 * RESOLUTION_S, what="two seconds")


def test_nobody_else_reaches_the_database(cluster: SlurmTestCluster) -> None:
    home = cluster.directory / accounting.DATABASE
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    conf = cluster.directory / "etc" / "slurmdbd.conf"
    assert stat.S_IMODE(conf.stat().st_mode) == 0o600
    pid = (home / "mariadbd.pid").read_text().strip()
    inodes = {
        line.split()[9]
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    }
    held = {str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    assert not {f"socket:[{inode}]" for inode in inodes} & held  # no port at all


def ordinary_jobs() -> list[WorkloadItem]:
    """Return jobs of one to three nodes, between two that take all of them.

    The first and the last make every node known to sacct and bound the time observed.
    """
    return [
        WorkloadItem(at_s=0, n_nodes=N_NODES, duration_s=2, limit_s=60),
        WorkloadItem(at_s=20, n_nodes=1, duration_s=12, limit_s=60),
        WorkloadItem(at_s=26, n_nodes=2, duration_s=10, limit_s=60),
        WorkloadItem(at_s=55, n_nodes=1, duration_s=15, limit_s=60),
        WorkloadItem(at_s=60, n_nodes=1, duration_s=6, limit_s=60),
        WorkloadItem(at_s=85, n_nodes=3, duration_s=8, limit_s=60),
        WorkloadItem(at_s=118, n_nodes=N_NODES, duration_s=2, limit_s=60),
    ]


@pytest.mark.long
def test_the_predicted_harvest_is_what_the_daemon_harvested(
    cluster: SlurmTestCluster, tmp_path: Path
) -> None:
    """Within 10%, against the journal.

    The idle time is what sacct says of the ordinary jobs; how long claims, warm-ups and
    pauses took on this machine is measured, as a site would have to.
    """
    sidecar = DaemonProcess(
        tmp_path / "state",
        batch_system="slurm",
        batch_options=cluster.config.batch_options(),
        policy=POLICY,
    )
    items = ordinary_jobs()
    try:
        sidecar.start()
        trainer = sidecar.client.submit(spec(tmp_path / "slow")).record.trainer_id
        wait_for(
            lambda: len(sidecar.client.trainer(trainer).observed_nodes) == N_NODES,
            what="the trainer has all nodes",
        )
        begin_s, end_s = run_script(cluster, items)
        entries = sidecar.entries()
        sidecar.client.cancel(trainer, now=True)
        file = export(cluster, tmp_path / "sacct.txt", len(items), begin_s)
    finally:
        sidecar.stop()
    costs = tmp_path / "costs.json"
    costs.write_text(json.dumps(measured(entries, begin_s, end_s)))
    observed = harvested_node_s(entries, begin_s, end_s)
    predicted = predict(file, costs)
    assert predicted == pytest.approx(observed, rel=0.10)


def spec(directory: Path) -> TrainerSpec:
    """A trainer that is worth more on more nodes: its time is in its samples."""
    return trainer_spec(
        directory,
        SCALING,
        n_max=N_NODES,
        curve=Curve(sizes=(1, 2, 4), samples_per_s=(240.0, 470.0, 900.0)),
        environment=(("OMP_NUM_THREADS", "1"),),
    )


def predict(file: Path, costs: Path) -> float:
    """Node-seconds that whatif expects, with the daemon's own settings."""
    done = CliRunner().invoke(
        cli,
        ["whatif", "--sacct", str(file), "--json", "--costs", str(costs), "--p-jmax=1",
         "--t-fwd=30", "--hold-down=0", f"--trainer-nodes=1:{N_NODES}"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    per_day = document["expected"][0]["node_hours_per_day"]["value"]
    return float(per_day * document["idle"]["hours"] / 24 * 3600)


def measured(entries: Sequence[JournalEntry], begin_s: float, end_s: float) -> dict[str, object]:
    """How long claims and warm-ups took, and pauses, by the journal.

    Only those of the time observed: the first ones of all are slower.
    """
    requested: dict[str, float] = {}
    held: dict[str, tuple[str, float]] = {}  # node -> pilot, since when
    claims: list[float] = []
    warm_ups: list[float] = []
    for entry in entries:
        if not begin_s <= entry.at_s <= end_s:
            continue
        for pilot in entry.pilots:
            requested.setdefault(pilot.pilot_id, pilot.requested_s)
            is_new = held.get(pilot.node, ("", 0.0))[0] != pilot.pilot_id
            if pilot.state is PilotState.RUNNING and is_new:
                held[pilot.node] = pilot.pilot_id, entry.at_s
                claims.append(entry.at_s - requested[pilot.pilot_id])
        if entry.kind == "rescaled":
            for node in entry.payload["what"]["nodes"]:
                if node in held and held[node][1] < entry.at_s:
                    warm_ups.append(entry.at_s - held[node][1])
                    held[node] = held[node][0], float("inf")
    pauses = [r.pause_s for r in collect(entries).rescales]
    return {
        "detection": 0.3,  # half of poll_interval_s, and the look itself
        "claim": claims,
        "warm_up": warm_ups,
        **{f"pause_{kind}": sum(pauses) / len(pauses) for kind in ("up", "down", "loss")},
        "resume": 0.0,  # in the warm-up as it is measured
    }


def harvested_node_s(entries: Sequence[JournalEntry], begin_s: float, end_s: float) -> float:
    """Node-seconds of members between two times, less the pauses, by the journal."""
    facts = collect(entries)
    sizes = [(r.at_s, r.size) for r in facts.generations]
    sizes += [(entry.at_s, 0) for entry in entries if entry.kind == "parked"]
    sizes.sort()
    total = 0.0
    for (at_s, size), (until_s, _) in zip(sizes, [*sizes[1:], (end_s, 0)], strict=True):
        total += size * max(0.0, min(until_s, end_s) - max(at_s, begin_s))
    return total - sum(r.pause_s * r.size for r in facts.rescales if begin_s <= r.at_s <= end_s)


@pytest.mark.long
def test_down_leaves_nothing_and_up_begins_anew() -> None:
    """The last one here: a second cluster with accounting, twice up in one directory."""
    need_slurm(with_accounting=True)
    directory = enterable_directory()
    config = ClusterConfig(
        directory=directory / "lab", n_nodes=1, gpus_per_node=0, bf_interval_s=2, accounting=True
    )
    cluster = SlurmTestCluster(config)
    try:
        cluster.up()
        SlurmTestCluster.load(directory / "lab").up()  # as after a crash: nobody called down
        done = cluster.command("sacct", "-n", "--allusers")
        assert done.is_ok, done.stderr
        assert done.stdout.strip() == ""
    finally:
        cluster.down()
        cluster.down()
        remove_cluster(cluster)
        shutil.rmtree(directory)
