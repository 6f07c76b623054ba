"""What one run leaves behind, and where it is kept so that a later call goes on.

``arm`` makes a ``Run``, ``compare``, ``idle`` and ``report`` read it. All times are
seconds after the start of the run, by the jobs' own clocks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pydantic


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """What became of one ordinary job; its place in the workload is its identity."""

    number: int
    n_nodes: int
    planned_s: float
    submitted_s: float | None = None
    job_id: str = ""
    started_s: float | None = None
    ended_s: float | None = None
    nodes: tuple[str, ...] = ()
    refused: str = ""  # Slurm's words: an immediate job that found no node


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpan:
    """A node was in some use from one moment to another."""

    node: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSeen:
    """When Slurm plans to use nodes, as a look of bftrainer's showed it."""

    at_s: float
    starts_s: tuple[tuple[str, float], ...]  # node, planned start


@dataclass(frozen=True, slots=True, kw_only=True)
class Sidecar:
    """What bftrainer's own journal says of the run."""

    held: tuple[NodeSpan, ...] = ()
    training: tuple[NodeSpan, ...] = ()
    plans: tuple[PlanSeen, ...] = ()
    pilots: int = 0
    give_backs: int = 0
    preemptions: int = 0
    decisions: int = 0
    rescales: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of the workload on a fresh cluster."""

    name: str  # e.g. "tier-bf30 A", "tier-bf30 B hook"
    nodes: tuple[str, ...]
    bf_interval_s: int
    jobs: tuple[JobOutcome, ...]
    cycles_s: tuple[float, ...]  # when backfill cycles began
    cpu_share: float  # of this machine's processors, while it ran
    sidecar: Sidecar | None = None
    problem: str = ""  # why it is not to be compared

    @property
    def makespan_s(self) -> float:
        """When the last job ended."""
        return max((j.ended_s for j in self.jobs if j.ended_s is not None), default=0.0)


class Shelf:
    """Runs kept in a directory, one file each."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def get(self, name: str) -> Run | None:
        """Find a run that an earlier call finished without a problem."""
        try:
            text = self._path(name).read_bytes()
            run = pydantic.TypeAdapter(Run).validate_json(text)
        except (FileNotFoundError, pydantic.ValidationError):
            return None  # never made, or by another version of this script
        return None if run.problem else run

    def put(self, run: Run) -> None:
        """Keep a run; whole or not at all."""
        path = self._path(run.name)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(run)) + "\n", encoding="utf-8")
        temporary.rename(path)

    def _path(self, name: str) -> Path:
        return self.directory / f"{name.replace(' ', '-')}.json"


def length_s(spans: Sequence[NodeSpan]) -> float:
    """Add up node-seconds."""
    return sum(span.end_s - span.start_s for span in spans)
