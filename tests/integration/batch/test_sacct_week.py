"""A week of jobs in a real slurmdbd, as a real ``sacct`` prints it, against the truth.

The jobs are written into the database of the test cluster: nobody waits a week.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from bftrainer.batch import process
from bftrainer.batch.traces import ReadOptions, closed, read_trace, sacct
from slurm_plugins.testcluster import SlurmTestCluster
from slurm_plugins.testcluster.accounting import DATABASE
from tests.integration.slurm_fixtures import running_cluster
from tests.support.job_log import DAY_S, Run, Site, made_site, with_closed

pytestmark = [pytest.mark.slurm, pytest.mark.long]

STATES = {"PENDING": 0, "RUNNING": 1, "COMPLETED": 3, "NODE_FAIL": 7}  # slurm.h
NO_VALUE = 0xFFFFFFFE
COLUMNS = (
    "id_job,id_array_job,id_array_task,het_job_id,het_job_offset,id_assoc,id_qos,id_resv,id_wckey,"
    "id_user,id_group,kill_requid,`partition`,job_name,nodelist,nodes_alloc,cpus_req,priority,"
    "state,timelimit,time_submit,time_eligible,time_start,time_end,time_suspended,mod_time,"
    "state_reason_prev"
)


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A cluster whose database has the jobs of a site."""

    cluster: SlurmTestCluster
    site: Site
    now_s: int

    def print_week(self, command: str, *left_out: str, zone: str = "") -> str:
        """Return what a command of ours prints of the week; ``zone``: local times of it."""
        env = {**self.cluster.env, "PATH": os.environ["PATH"], "TZ": zone or "UTC0"}
        if not zone:
            env["SLURM_TIME_FORMAT"] = "%s"
        for day, at_s in (("2024-05-01", self.site.begin_s), ("2024-05-08", self.site.end_s)):
            at = datetime.fromtimestamp(at_s, UTC).astimezone(ZoneInfo(zone or "UTC"))
            command = command.replace(day, at.strftime("%Y-%m-%dT%H:%M:%S"))
        argv = [word for word in command.split(" ")[1:] if word not in left_out]
        done = process.run(argv, timeout_s=60, env=env)
        assert done.is_ok, done.stderr
        return done.stdout


def row_of(run: Run, number: int, now_s: int) -> str:
    """Return the values of a job's row, as slurmdbd has them at a time."""
    base, _, task = run.job_id.partition("_")
    has_started, has_ended = run.start_s <= now_s, run.end_s <= now_s
    state = run.state if has_ended else "RUNNING" if has_started else "PENDING"
    names = f"n[{','.join(map(str, run.nodes))}]" if has_started else "None assigned"
    het = base.partition("+")[0] if "+" in base else "0"
    values: Sequence[object] = (
        number if task or het == "0" else int(het),
        int(base) if task else 0, int(task) if task else NO_VALUE,
        int(het), 0 if het != "0" else NO_VALUE, 0, 0, 0, 0, 0, 0, NO_VALUE,
        "'batch'", "'job'", f"'{names}'", len(run.nodes), 1, 1,
        STATES[state], run.limit_s // 60, run.submit_s, run.submit_s,
        run.start_s if has_started else 0, run.end_s if has_ended else 0,
        run.suspended_s if has_ended else 0, run.submit_s, 0,
    )  # fmt: skip
    return f"({','.join(map(str, values))})"


@pytest.fixture(scope="module")
def recorded() -> Iterator[Recorded]:
    """A week that ended yesterday; some of its jobs still run, some wait."""
    now_s = int(time.time())
    site = with_closed(made_site(21, now_s - 8 * DAY_S), 6)
    with running_cluster(n_nodes=1, gpus_per_node=0, accounting=True) as cluster:
        numbers: dict[str, int] = {}
        for run in site.runs:
            base = run.job_id.partition("_")[0].partition("+")[0]
            numbers.setdefault(run.job_id, int(base))
        rows = [
            row_of(run, numbers[run.job_id], now_s) for run in site.runs if run.submit_s < now_s
        ]
        events = [
            f"({start_s},{end_s if end_s <= now_s else 0},'n{node}','down',1)"
            for node, start_s, end_s in dict.fromkeys(site.closed)
            if start_s <= now_s
        ]
        table = f"`{cluster.config.cluster_name}_event_table`"
        text = f"insert into {table} (time_start,time_end,node_name,reason,state) values "  # noqa: S608
        text += f"{','.join(events)};\n"
        table = f"`{cluster.config.cluster_name}_job_table`"
        text += f"insert into {table} ({COLUMNS}) values {','.join(rows)};"  # noqa: S608 - of a test
        socket = cluster.config.directory / DATABASE / "db.sock"
        file = cluster.config.directory / "jobs.sql"
        file.write_text(text)
        shell = f"exec mariadb --socket={socket} --user=root slurm_acct_db < {file}"
        done = process.run(("sh", "-c", shell), timeout_s=60)
        assert done.is_ok, done.stderr
        yield Recorded(cluster=cluster, site=site, now_s=now_s)


@pytest.mark.parametrize("zone", ["", "Europe/Berlin"])
@pytest.mark.parametrize("is_cut", [True, False])
def test_node_seconds_are_those_of_the_jobs(
    recorded: Recorded, tmp_path: Path, is_cut: bool, zone: str
) -> None:
    left_out = () if is_cut else ("--truncate",)
    text = recorded.print_week(sacct.COMMAND, *left_out, zone=zone)
    assert ("Unknown" in text) != is_cut
    week, events = tmp_path / "week.txt", tmp_path / "closed.txt"
    week.write_text(text)
    events.write_text(recorded.print_week(closed.COMMAND, zone=zone))
    options = ReadOptions(time_zone=zone or "UTC", closed=events)
    trace = read_trace(week, "sacct", options=options)
    site, (begin_s, end_s) = recorded.site, trace.span_s
    assert site.begin_s <= begin_s < end_s <= site.end_s
    assert end_s - begin_s > (6.9 if is_cut else 6.0) * DAY_S
    assert len(trace.names) == site.n_nodes
    idle_s = site.idle_node_s(begin_s, end_s)
    assert trace.node_seconds() == idle_s
    assert trace.used_node_seconds() == site.used_node_s(begin_s, end_s)
    assert not trace.warnings
