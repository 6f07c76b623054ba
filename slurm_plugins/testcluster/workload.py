"""A scripted workload of job submissions, run against a test cluster.

Input is a JSON list of ``{"at_s", "n_nodes", "duration_s", "limit_s", "kind"}``. A thread submits
each job at its time; the record has the times of submission, start and end. Used by tests and the
command line.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import pydantic

from bftrainer.model.errors import BatchSystemError, ExitCode, UsageError
from slurm_plugins.testcluster.cluster import SlurmTestCluster


class WorkloadItem(pydantic.BaseModel):
    """One job of the script."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    at_s: float = pydantic.Field(ge=0)  # after the start of the workload
    n_nodes: int = pydantic.Field(ge=1)
    duration_s: float = pydantic.Field(gt=0)
    limit_s: float | None = pydantic.Field(default=None, gt=0)
    kind: Literal["sbatch", "srun"] = "sbatch"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """The result of one job; times are seconds since the epoch."""

    item: WorkloadItem
    job_id: str | None = None
    submitted_s: float | None = None  # just before the command that submits it
    started_s: float | None = None
    ended_s: float | None = None
    error: str = ""

    @property
    def wait_s(self) -> float | None:
        """From submission to start."""
        if self.started_s is None or self.submitted_s is None:
            return None
        return self.started_s - self.submitted_s

    def as_json(self) -> dict[str, object]:
        """Return the record as plain values."""
        return {
            **self.item.model_dump(),
            "job_id": self.job_id,
            "submitted_s": self.submitted_s,
            "started_s": self.started_s,
            "ended_s": self.ended_s,
            "error": self.error,
        }


def load_workload(path: Path) -> tuple[WorkloadItem, ...]:
    """Read a script; raises ``UsageError``: BFT-1246, the file cannot be read or is malformed."""
    try:
        items = pydantic.TypeAdapter(tuple[WorkloadItem, ...]).validate_json(path.read_bytes())
    except OSError as problem:
        cause = f"The workload {path} cannot be read: {problem.strerror}."
    except pydantic.ValidationError as problem:
        first = problem.errors()[0]
        cause = f"The workload {path} is wrong at {first['loc']}: {first['msg']}."
    else:
        return items
    raise UsageError(
        "BFT-1246",
        cause,
        'Write a JSON list of {"at_s": 0, "n_nodes": 1, "duration_s": 10} objects.',
        exit_code=ExitCode.VALIDATION_FAILED,
    )


class WorkloadRun:
    """A workload in progress; a context manager that runs it inside its block."""

    def __init__(self, cluster: SlurmTestCluster, items: Sequence[WorkloadItem]) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._records = [JobRecord(item=item) for item in sorted(items, key=lambda i: i.at_s)]
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._submit_all, name="workload", daemon=True)
        self.began_s: float | None = None  # epoch; at_s counts from here

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Begin; returns at once."""
        self.began_s = time.time()
        self._thread.start()

    def stop(self) -> None:
        """Submit no more; jobs already submitted stay."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def is_done(self) -> bool:
        """Return whether every job was submitted and has ended (or could not be submitted)."""
        return all(record.ended_s is not None or record.error for record in self.records())

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is done; return whether that happened in time."""
        deadline = time.monotonic() + timeout_s
        while not self.is_done():
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.1)
        return True

    def records(self) -> tuple[JobRecord, ...]:
        """Return what is known of each job now, in order of submission."""
        with self._lock:
            for index, record in enumerate(self._records):
                if record.job_id is not None and record.ended_s is None:
                    self._records[index] = dataclasses.replace(
                        record,
                        started_s=self._cluster.started_s(record.job_id),
                        ended_s=self._cluster.ended_s(record.job_id),
                    )
            return tuple(self._records)

    def _submit_all(self) -> None:
        began = time.monotonic()
        for index, record in enumerate(self._records):
            wait_s = began + record.item.at_s - time.monotonic()
            if self._stopped.wait(max(0.0, wait_s)):
                return
            submitted = _submit(self._cluster, record.item)
            with self._lock:
                self._records[index] = submitted


def _submit(cluster: SlurmTestCluster, item: WorkloadItem) -> JobRecord:
    submitted_s = time.time()
    try:
        job_id = cluster.submit(
            n_nodes=item.n_nodes,
            duration_s=item.duration_s,
            limit_s=item.limit_s,
            kind=item.kind,
        )
    except BatchSystemError as problem:
        return JobRecord(item=item, submitted_s=submitted_s, error=problem.cause)
    return JobRecord(item=item, submitted_s=submitted_s, job_id=job_id)
