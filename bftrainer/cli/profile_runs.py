"""Runs the measurements of ``bftrainer profile`` and reads their results.

Returns an ``AllreduceTable`` or ``StepTimes``. Processes in the user's interpreter measure
(``trainers.profiler``); all have ended on return.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import bftrainer
from bftrainer.batch import process
from bftrainer.decide.throughput.analyzer import AllreduceTable, StepTimes, table_from
from bftrainer.model.errors import BftError, UsageError
from trainers import profiler

PROGRAMS = Path(profiler.__file__).resolve().parent
PACKAGE = Path(bftrainer.__file__).resolve().parent
ALLREDUCE_TIMEOUT_S = 180.0


def measure_allreduce(
    interpreter: str, weights: Sequence[int], workers: Sequence[int], cell_s: float
) -> AllreduceTable:
    """Measure on this machine, one process per worker.

    Raises:
        BftError: BFT-4201, a worker failed.
    """
    size = max(workers)
    if shutil.which(interpreter) is None:  # where a child that starts would have to say so
        raise _failed(f"{interpreter} is not a program")
    # Several workers share the machine: one interface that is always there.
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="bft-allreduce-") as directory, ExitStack() as left:
        meet = str(Path(directory) / "meet")
        for rank in range(1, size):
            argv = _argv(interpreter, rank, size, weights, workers, cell_s, meet)
            child = process.spawn(argv, env=env)
            left.callback(child.wait)
            left.callback(process.kill_group, child.pid)
        argv = _argv(interpreter, 0, size, weights, workers, cell_s, meet)
        done = process.run(argv, timeout_s=ALLREDUCE_TIMEOUT_S, env=env)
    return _table(done, weights, workers)


def join_allreduce(
    interpreter: str,
    weights: Sequence[int],
    cell_s: float,
    *,
    rank: int,
    size: int,
    meet: str,
) -> AllreduceTable | None:
    """Be one of ``size`` workers on several machines; the table comes back on rank 0.

    Raises:
        BftError: BFT-4201, a worker failed.
    """
    workers = [k for k in powers_of_two(size) if k > 1]
    argv = _argv(interpreter, rank, size, weights, workers, cell_s, meet)
    done = process.run(argv, timeout_s=ALLREDUCE_TIMEOUT_S)
    if rank == 0 or not done.is_ok:
        return _table(done, weights, workers)
    return None


def measure_steps(
    interpreter: str,
    script: str,
    args: Sequence[str],
    sizes: Sequence[int],
    steps: int,
    limit_s: float,
) -> StepTimes:
    """Run a script plainly and time the steps it does at each size.

    Raises:
        BftError: BFT-4203, there was no result.
    """
    with tempfile.TemporaryDirectory(prefix="bft-profile-") as directory:
        out = Path(directory) / "steps.json"
        config = {"package": str(PACKAGE), "out": str(out), "sizes": list(sizes), "steps": steps}
        done = process.run(
            [interpreter, str(PROGRAMS / "steps.py"), json.dumps(config), script, *args],
            timeout_s=limit_s,
            env={**os.environ, "BFT_CHECKPOINT_DIR": directory},
        )
        if not out.exists():
            raise BftError(
                "BFT-4203",
                f"{script} made no {'step in time' if done.timed_out else 'elastic step'}"
                f" ({_last_line(done) or 'no output'}).",
                "Run it by hand first; its loops must be those of bftrainer.elastic.Run, and "
                f"{steps} steps at each of {len(sizes)} sizes must fit into --limit.",
            )
        found = json.loads(out.read_text())
    return steps_from(found["weights"], found["rows"])


def steps_from(weights: int, rows: Sequence[dict[str, Any]]) -> StepTimes:
    """Order what the probe wrote by the samples of one worker's step."""
    times: dict[int, float] = {}
    for row in rows:
        times.setdefault(-(-row["batch"] // row["size"]), row["step_s"])
    batches = tuple(sorted(times))
    for more, fewer in pairwise(reversed(batches)):  # fewer samples never take longer
        times[fewer] = min(times[fewer], times[more])
    grows = any(row["batch"] > rows[0]["batch"] for row in rows)
    return StepTimes(
        weights=weights,
        global_batch=rows[0]["batch"],
        is_per_worker=grows,
        batches=batches,
        seconds=tuple(times[b] for b in batches),
    )


def read_table(path: str) -> AllreduceTable:
    """Read an all-reduce table.

    Raises:
        UsageError: BFT-4202, it is none.
    """
    try:
        data = json.loads(Path(path).read_text())
    except (OSError, ValueError) as problem:
        raise UsageError(
            "BFT-4202",
            f"{path} cannot be read: {problem}.",
            "Make one with: bftrainer profile allreduce --out FILE",
        ) from problem
    return table_from(data, path)


def powers_of_two(limit: int) -> list[int]:
    """1, 2, 4 ... and the limit itself."""
    return sorted({1 << k for k in range(limit.bit_length())} - {0} | {limit})


def interpreter_or_ours(chosen: str | None) -> str:
    """Return the interpreter to use: as for ``submit``, the environment that is active."""
    prefix = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
    usual = str(Path(prefix) / "bin" / "python") if prefix else sys.executable
    return chosen or usual


def _argv(
    interpreter: str,
    rank: int,
    size: int,
    weights: Sequence[int],
    workers: Sequence[int],
    cell_s: float,
    meet: str,
) -> list[str]:
    config = {
        "rank": rank,
        "size": size,
        "weights": list(weights),
        "workers": list(workers),
        "cell_s": cell_s,
        "meet": meet,
    }
    return [interpreter, str(PROGRAMS / "allreduce.py"), json.dumps(config)]


def _table(
    done: process.Completed, weights: Sequence[int], workers: Sequence[int]
) -> AllreduceTable:
    try:
        seconds = (
            json.loads(done.stdout.strip().splitlines()[-1])["seconds"] if done.is_ok else None
        )
    except (ValueError, IndexError, KeyError, TypeError):
        seconds = None
    if seconds is None:
        why = "it took too long" if done.timed_out else _last_line(done)
        raise _failed(why or "a worker printed nothing")
    return AllreduceTable(
        weights=tuple(weights),
        workers=tuple(workers),
        seconds=tuple(tuple(map(float, row)) for row in seconds),
    )


def _failed(why: str) -> BftError:
    return BftError(
        "BFT-4201",
        f"The all-reduces could not be measured: {why}.",
        "Name an interpreter that has torch with --interpreter; fewer --workers need less.",
    )


def _last_line(done: process.Completed) -> str:
    lines = done.stderr.strip().splitlines()
    return lines[-1].strip() if lines else ""
