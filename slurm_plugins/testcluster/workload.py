"""A scripted workload of job submissions, run against a test cluster.

Input is a JSON list of ``WorkloadItem``s: whole nodes, or GPUs, CPUs and memory of nodes; arrays;
jobs that wait for an earlier one. A thread submits each job at its time; the record has the times
of submission, start and end. Used by tests, benchmarks and the command line.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import pydantic

from bftrainer.model.errors import BatchSystemError, ExitCode, UsageError
from slurm_plugins.testcluster.cluster import SlurmTestCluster
from slurm_plugins.testcluster.jobs import Kind, Share


class WorkloadItem(pydantic.BaseModel):
    """One job of the script."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    at_s: float = pydantic.Field(ge=0)  # after the start of the workload
    n_nodes: int = pydantic.Field(ge=1)
    duration_s: float = pydantic.Field(gt=0)
    limit_s: float | None = pydantic.Field(default=None, gt=0)
    kind: Literal["sbatch", "srun", "immediate"] = "sbatch"  # immediate: srun, at once or never
    # Of each node; none of them: whole nodes.
    gpus: int = pydantic.Field(default=0, ge=0)
    gpu_type: str = ""
    cpus: int = pydantic.Field(default=0, ge=0)
    memory_mb: int = pydantic.Field(default=0, ge=0)
    n_tasks: int = pydantic.Field(default=1, ge=1)  # of an array
    after: int | None = pydantic.Field(default=None, ge=0)  # that item has ended well, from 0

    @pydantic.model_validator(mode="after")
    def _can_be_asked_for(self) -> Self:
        if self.n_tasks > 1 and self.kind != "sbatch":
            raise ValueError("srun has no arrays")
        if self.gpu_type and not self.gpus:
            raise ValueError("a type of GPU, but no number")
        return self

    @property
    def share(self) -> Share | None:
        """What it takes of each node; None: all of it."""
        if not (self.gpus or self.cpus or self.memory_mb):
            return None
        return Share(
            gpus=self.gpus,
            gpu_type=self.gpu_type,
            cpus=max(1, self.cpus),
            memory_mb=self.memory_mb,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """The result of one job, or of one task of an array; times are seconds since the epoch."""

    item: WorkloadItem
    number: int = 0  # of the item in the workload, from 0
    task: int = 0
    job_id: str | None = None
    submitted_s: float | None = None  # just before the command that submits it
    started_s: float | None = None
    ended_s: float | None = None
    nodes: tuple[str, ...] = ()
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
            "number": self.number,
            "task": self.task,
            "job_id": self.job_id,
            "submitted_s": self.submitted_s,
            "started_s": self.started_s,
            "ended_s": self.ended_s,
            "nodes": self.nodes,
            "error": self.error,
        }


def load_workload(path: Path) -> tuple[WorkloadItem, ...]:
    """Read a script; raises ``UsageError``: BFT-1246, the file cannot be read or is malformed."""
    try:
        items = pydantic.TypeAdapter(tuple[WorkloadItem, ...]).validate_json(path.read_bytes())
        cause = _wrong_order(path, items)
        if not cause:
            return items
    except OSError as problem:
        cause = f"The workload {path} cannot be read: {problem.strerror}."
    except pydantic.ValidationError as problem:
        first = problem.errors()[0]
        cause = f"The workload {path} is wrong at {first['loc']}: {first['msg']}."
    raise UsageError(
        "BFT-1246",
        cause,
        'Write a JSON list of {"at_s": 0, "n_nodes": 1, "duration_s": 10, "gpus": 2} objects.',
        exit_code=ExitCode.VALIDATION_FAILED,
    )


def _wrong_order(path: Path, items: Sequence[WorkloadItem]) -> str:
    """Return what is wrong with an item that waits for a later one, or for none; "": nothing."""
    for number, item in enumerate(items):
        if item.after is None:
            continue
        if item.after >= len(items) or items[item.after].at_s > item.at_s or item.after == number:
            waits = f"waits for item {item.after}, which is not before it"
            return f"Item {number} of the workload {path} {waits}."
    return ""


class WorkloadRun:
    """A workload in progress; a context manager that runs it inside its block."""

    def __init__(self, cluster: SlurmTestCluster, items: Sequence[WorkloadItem]) -> None:
        """Prepare it; items that come at the same time are submitted in their order."""
        self._cluster = cluster
        self._lock = threading.Lock()
        self._items = sorted(enumerate(items), key=lambda numbered: numbered[1].at_s)
        self._records = [
            JobRecord(item=item, number=number, task=task)
            for number, item in self._items
            for task in range(item.n_tasks)
        ]
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

    def start(self, at_s: float | None = None) -> None:
        """Begin now, or at a time (epoch); returns at once."""
        if at_s is None:
            at_s = time.time()
        self.began_s = at_s
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
                        nodes=self._cluster.jobs.noted_nodes(record.job_id),
                    )
            return tuple(self._records)

    def _submit_all(self) -> None:
        began_s = self.began_s
        if began_s is None:
            began_s = time.time()
        job_ids: dict[int, str] = {}
        position = 0
        for number, item in self._items:
            if self._stopped.wait(max(0.0, began_s + item.at_s - time.time())):
                return
            submission = self._submit(item, job_ids)
            job_ids[number] = submission.job_id
            with self._lock:
                for _ in range(item.n_tasks):
                    record = self._records[position]
                    self._records[position] = submission.record_of(record)
                    position += 1

    def _submit(self, item: WorkloadItem, job_ids: Mapping[int, str]) -> _Submission:
        extra_args: tuple[str, ...] = ()
        if item.after is not None:
            if not job_ids.get(item.after):
                return _Submission(error="The job that it waits for was refused.")
            extra_args = (f"--dependency=afterok:{job_ids[item.after]}",)
        kind: Kind = "sbatch"
        if item.kind != "sbatch":
            kind = "srun"
        if item.kind == "immediate":
            extra_args += ("--immediate",)
        submitted_s = time.time()
        try:
            job_id = self._cluster.submit(
                n_nodes=item.n_nodes,
                duration_s=item.duration_s,
                limit_s=item.limit_s,
                kind=kind,
                share=item.share,
                n_tasks=item.n_tasks,
                extra_args=extra_args,
            )
        except BatchSystemError as problem:
            return _Submission(submitted_s=submitted_s, error=problem.cause)
        return _Submission(submitted_s=submitted_s, job_id=job_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Submission:
    """What came of asking for an item."""

    submitted_s: float | None = None
    job_id: str = ""
    error: str = ""

    def record_of(self, record: JobRecord) -> JobRecord:
        job_id = self.job_id or None
        if job_id is not None and record.item.n_tasks > 1:
            job_id = f"{job_id}_{record.task}"
        return dataclasses.replace(
            record, submitted_s=self.submitted_s, job_id=job_id, error=self.error
        )
