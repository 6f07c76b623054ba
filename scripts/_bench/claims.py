"""One test cluster, one daemon, one trainer: nodes given back, and claimed again.

``Site.cycle`` lets an ordinary job take every node and leave them; the moments of both
ways go out, each on the wall clock of this machine. Called by ``bench_claim``.
"""

from __future__ import annotations

import getpass
import json
import math
import os
import re
import select
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from _bench.waiting import BenchError, wait_until
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.trainer import TrainerSpec
from slurm_plugins.testcluster import ClusterConfig, SlurmTestCluster

SCRIPT = Path(__file__).parent.parent / "workloads" / "claim_small.py"
PATIENCE_S = 90.0
JOB_S = 3.0  # longer than the looks its submission calls for
POLICY = """\
reserve_nodes_per_type: 0
min_gap_s: 60
gap_margin_s: 5
hold_idle_s: 60
"""
_AGENT = re.compile(r"^(\S+ \S+) .*: agent of (p\d+) on (\S+), pid (\d+)$", re.MULTILINE)
_WARM = re.compile(r"^(\S+ \S+) .*: template of \S+ is warm", re.MULTILINE)
_DONE = re.compile(r"^\[(\S+)\] _job_complete: JobId=(\d+) done", re.MULTILINE)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class GaveBack:
    """One node on its way to an ordinary job; seconds since the job's submission."""

    decided_s: float  # in the journal
    left_s: float  # the agent's process is gone
    freed_s: float  # Slurm has noted the orderly end of the pilot's job; nan: it had none


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """One node on its way to a trainer; seconds since the ordinary job's end."""

    node: str
    requested_s: float  # in the journal
    pilot_s: float  # the pilot's first line
    agent_s: float  # the agent looks for the daemon
    warm_s: float  # torch is imported
    script_s: float  # the training script's first line
    step_s: float  # its first step is committed

    @property
    def to_step_s(self) -> float:
        """From the pilot's first line to the first training step."""
        return self.step_s - self.pilot_s


@dataclass(frozen=True, slots=True)
class _Agent:
    pilot_id: str
    node: str
    pid: int
    log: Path
    connects_s: float


class Site:
    """A context manager; the trainer holds every node inside it."""

    def __init__(self, *, n_nodes: int, scheduler_parameters: str = "") -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="bft-claim-", dir="/tmp"))
        self._directory.chmod(0o755)
        self._n_nodes = n_nodes
        config = ClusterConfig(
            directory=self._directory / "cluster",
            n_nodes=n_nodes,
            has_hook=True,
            scheduler_parameters=scheduler_parameters,
        )
        self._cluster = SlurmTestCluster(config)
        self._notes = self._directory / "notes"
        self._notes.mkdir(mode=0o700)
        self._daemon = DaemonProcess(
            self._directory / "state",
            batch_system="slurm",
            batch_options=config.batch_options(),
            policy=POLICY,
        )
        self._seq = 0

    def __enter__(self) -> Self:
        try:
            self._cluster.up()
            self._daemon.start()
            self._daemon.client.submit(self._spec())
            self._wait_training(0.0)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    def _remove(self) -> None:
        self._daemon.stop()
        self._cluster.down()
        shutil.rmtree(self._directory)

    def requests(self) -> dict[str, int]:
        """What the daemon has asked of the controller."""
        polling = self._daemon.client.status().polling
        return {} if polling is None else {r.kind: r.total for r in polling.requests}

    def cycle(self) -> tuple[list[GaveBack], list[Claimed]]:
        """Give every node back to one ordinary job and claim all again after it."""
        agents = self._agents()
        with ThreadPoolExecutor(1) as watcher:
            leaving = watcher.submit(_wait_gone, agents)
            submitted_s = time.time()
            job_id = self._cluster.submit(n_nodes=self._n_nodes, duration_s=JOB_S, limit_s=60)
            left_s = leaving.result()
        ended_s = self._wait(lambda: self._cluster.ended_s(job_id), "the ordinary job's end")
        self._wait_training(ended_s)
        entries = self._journal()
        given = self._given_back(agents, left_s, submitted_s, entries)
        return given, self._claimed(ended_s, entries)

    # -- reading what happened -----------------------------------------------------------

    def _given_back(
        self, agents: list[_Agent], left_s: dict[str, float], submitted_s: float, entries: list[Any]
    ) -> list[GaveBack]:
        decided = {
            release["pilot_id"]: entry.at_s
            for entry in entries
            if entry.kind == "decision"
            for release in entry.payload["plan"]["releases"]
            if release["for_job"]
        }
        jobs = {p.pilot_id: p.job_id for entry in entries for p in entry.pilots if p.job_id}
        log = (self._cluster.directory / "log" / "slurmctld.log").read_text()
        freed = {job_id: _epoch_s(at) for at, job_id in _DONE.findall(log)}
        return [
            GaveBack(
                decided_s=decided[a.pilot_id] - submitted_s,
                left_s=left_s[a.pilot_id] - submitted_s,
                freed_s=freed.get(str(jobs[a.pilot_id]), math.nan) - submitted_s,
            )
            for a in agents
            if a.pilot_id in decided
        ]

    def _claimed(self, ended_s: float, entries: list[Any]) -> list[Claimed]:
        requested = {
            p.pilot_id: p.requested_s
            for entry in entries
            if entry.kind == "pilot-requested"
            for p in entry.pilots
        }
        trained = {note["node"]: note for note in self._trained(ended_s)}
        found = []
        for agent in self._agents():
            note, warm = trained[agent.node], _WARM.search(agent.log.read_text())
            found.append(
                Claimed(
                    node=agent.node,
                    requested_s=requested[agent.pilot_id] - ended_s,
                    pilot_s=_process_start_s(agent.pid) - ended_s,
                    agent_s=agent.connects_s - ended_s,
                    warm_s=(_log_s(warm[1]) if warm else math.nan) - ended_s,
                    script_s=note["began_s"] - ended_s,
                    step_s=note["step_s"] - ended_s,
                )
            )
        return found

    def _journal(self) -> list[Any]:
        entries = self._daemon.entries(after_seq=self._seq)
        self._seq = entries[-1].seq
        return entries

    def _agents(self) -> list[_Agent]:
        """Of pilots whose process lives."""
        found = []
        for log in (self._directory / "state" / "pilots").glob("p*/agent.log"):
            said = _AGENT.search(log.read_text())
            if said and Path(f"/proc/{said[4]}").exists():
                found.append(_Agent(said[2], said[3], int(said[4]), log, _log_s(said[1])))
        return found

    def _trained(self, since_s: float) -> list[dict[str, Any]]:
        notes = [json.loads(path.read_text()) for path in self._notes.glob("*.json")]
        return [note for note in notes if note["step_s"] > since_s]

    def _wait_training(self, since_s: float) -> None:
        nodes = set(self._cluster.config.node_names)
        self._wait(
            lambda: {note["node"] for note in self._trained(since_s)} == nodes,
            "a training step on every node",
        )

    def _spec(self) -> TrainerSpec:
        return TrainerSpec(
            name="claim",
            user=getpass.getuser(),
            script=str(SCRIPT),
            cwd=str(self._directory),
            interpreter=sys.executable,
            n_min=1,
            n_max=self._n_nodes,
            epochs=10**6,
            checkpoint_dir=str(self._directory / "checkpoints"),
            environment=(("BENCH_CLAIMS", str(self._notes)),),
        )

    def _wait(self, condition: Callable[[], T | None], what: str) -> T:
        return wait_until(condition, what, patience_s=PATIENCE_S)


def _wait_gone(agents: list[_Agent]) -> dict[str, float]:
    """Return for each pilot when its process ended."""
    watched = {os.pidfd_open(agent.pid): agent for agent in agents}
    left_s: dict[str, float] = {}
    try:
        while watched:
            gone, _, _ = select.select(list(watched), [], [], PATIENCE_S)
            now_s = time.time()
            if not gone:
                raise BenchError("the pilots did not leave")
            for fd in gone:
                left_s[watched.pop(fd).pilot_id] = now_s
                os.close(fd)
    finally:
        for fd in watched:
            os.close(fd)
    return left_s


def _log_s(text: str) -> float:
    """Read the time of a line of an agent's log, local time with milliseconds."""
    return datetime.strptime(text, "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp()


def _epoch_s(text: str) -> float:
    """Read the time of a line of slurmctld's log."""
    return datetime.fromisoformat(text).astimezone().timestamp()


def _process_start_s(pid: int) -> float:
    """Return when a process was started; exec does not change it (10 ms, proc(5))."""
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age_s
