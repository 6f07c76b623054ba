"""The workers of one node that time a script's steps and measure their memory, for ``profile``.

They are processes of ``trainers.profiler.steps`` in the user's interpreter, each with its GPU, and
have ended on return.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import bftrainer
from bftrainer.batch import process
from bftrainer.decide.throughput.analyzer import StepTimes
from bftrainer.decide.throughput.memory import MemoryUse, memory_use
from bftrainer.ground.protocol import WorkerConfig, to_body
from bftrainer.model.errors import BftError
from trainers import profiler

PROGRAMS = Path(profiler.__file__).resolve().parent
PACKAGE = Path(bftrainer.__file__).resolve().parent
LOOK_S = 0.02  # between two looks whether all have ended
GRACE_S = 5.0  # for the others when a worker has failed
_Rows = Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProfile:
    """What the workers of a node have measured."""

    steps: StepTimes
    memory: MemoryUse
    nodes: tuple[int, ...]  # for which it was measured, rising
    gpu_bytes: int = 0  # memory of a worker's GPU; 0: it used none


def measure_steps(
    interpreter: str,
    script: str,
    args: Sequence[str],
    environment: tuple[tuple[str, str], ...] = (),
    *,
    sizes: Sequence[int],
    steps: int,
    limit_s: float,
    per_node: int = 1,
) -> NodeProfile:
    """Run a script's workers of one node and measure the steps they do at each size.

    Args:
        interpreter: that of the script.
        script: its path.
        args: its arguments.
        environment: of the workers, beside ours.
        sizes: in nodes.
        steps: to time at each of them.
        limit_s: for all of it.
        per_node: workers.

    Raises:
        BftError: BFT-4203, there was no result; BFT-4206, not even the smallest share fits;
            BFT-1417, there are fewer GPUs than workers.
    """
    if shutil.which(interpreter) is None:
        raise _no_result(script, f"{interpreter} is not a program", steps, sizes)
    with tempfile.TemporaryDirectory(prefix="bft-profile-") as directory:
        configs = _configs(script, environment, per_node)
        workers = [_Worker(config, Path(directory)) for config in configs]
        order = {"package": str(PACKAGE), "sizes": list(sizes), "steps": steps}
        with ExitStack() as children:
            for worker in workers:
                child = worker.start(interpreter, order, [script, *args])
                children.callback(child.wait)
                children.callback(process.kill_group, child.pid)
            _await_all(workers, limit_s)
        results, last_lines = list[dict[str, Any]](), list[str]()
        for worker in workers:
            last_lines.append(worker.last_line())
            if (result := worker.result()) is not None:
                results.append(result)
    codes = [worker.status for worker in workers]
    lacks_memory = any(result["lacks_memory"] for result in results) or -signal.SIGKILL in codes
    if len(results) == per_node:
        profile = _merged(results, sizes, lacks_memory=lacks_memory)
        has_ended = set(codes) == {0}
        if profile and (len(profile.nodes) == len(sizes) or lacks_memory or has_ended):
            return profile
    if lacks_memory:
        raise too_large(max(sizes))
    failures = [line for code, line in zip(codes, last_lines, strict=True) if code]
    why, *_ = failures or last_lines
    is_late = None in codes and not any(codes)
    raise _no_result(script, why[:300] or "no output", steps, sizes, is_late=is_late)


class _Worker:
    """One process, and what it writes into a directory of the profile."""

    def __init__(self, config: WorkerConfig, directory: Path) -> None:
        self._config, self._directory = config, directory
        self._out = directory / f"steps-{config.local_rank}.json"
        self._errors = directory / f"errors-{config.local_rank}"
        self._child: subprocess.Popen[bytes] | None = None
        self.status: int | None = None  # None: it has not ended by itself

    def start(
        self, interpreter: str, order: dict[str, Any], argv: Sequence[str]
    ) -> subprocess.Popen[bytes]:
        """Start it; the caller must end and reap it."""
        order = {**order, "out": str(self._out), "worker": to_body(self._config)}
        with self._errors.open("wb") as stderr:
            self._child = process.spawn(
                [interpreter, str(PROGRAMS / "steps.py"), json.dumps(order), *argv],
                env=_environment(self._config, str(self._directory)),
                stderr=stderr,
            )
        return self._child

    def look(self) -> int | None:
        """Return its status if it has ended."""
        if self._child is not None:
            self.status = self._child.poll()
        return self.status

    def result(self) -> dict[str, Any] | None:
        """Return what it has measured."""
        return json.loads(self._out.read_text()) if self._out.exists() else None

    def last_line(self) -> str:
        """Return what it said last."""
        lines = self._errors.read_text(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""


def _configs(
    script: str, environment: tuple[tuple[str, str], ...], per_node: int
) -> list[WorkerConfig]:
    from trainers.agent.team import DEVICE_VARIABLES, split  # noqa: PLC0415 - heavy; -h needs none

    config = WorkerConfig(
        trainer_id="",
        worker_id="local",
        node="",
        script=script,
        environment=environment,
        local_size=per_node,
    )
    n_gpus = 0
    if not os.environ.keys() & set(DEVICE_VARIABLES):  # else they list the GPUs
        n_gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    return split(config, gpus=n_gpus, environ=os.environ)


def _environment(config: WorkerConfig, directory: str) -> dict[str, str]:
    """Return that of a worker, with as many threads as under an agent if it is one of several."""
    from trainers.agent.surroundings import HASH_SEED  # noqa: PLC0415 - heavy; -h needs none

    environment = {**os.environ, **dict(config.environment), **dict([HASH_SEED])}
    if config.local_size > 1:
        environment.setdefault("OMP_NUM_THREADS", "1")
    return {**environment, "BFT_CHECKPOINT_DIR": directory, "TMPDIR": directory}


def _await_all(workers: Sequence[_Worker], limit_s: float) -> None:
    """Wait until all have ended, within the limit."""
    until_s = time.monotonic() + limit_s
    while None in (codes := [worker.look() for worker in workers]):
        now_s = time.monotonic()
        if any(codes):  # the others may wait for it in a collective
            until_s = min(until_s, now_s + GRACE_S)
        if now_s > until_s:
            break
        time.sleep(LOOK_S)


def _merged(
    results: Sequence[dict[str, Any]], sizes: Sequence[int], *, lacks_memory: bool
) -> NodeProfile | None:
    """Put together what the workers of the node have written; None: nothing was measured."""
    rows_by_nodes: dict[int, list[dict[str, Any]]] = {}
    for result in results:
        for row in result["rows"]:
            rows_by_nodes.setdefault(row["size"], []).append(row)
    rows = list[dict[str, Any]]()
    for _, rows_of_workers in sorted(rows_by_nodes.items()):
        if len(rows_of_workers) == len(results):  # a step takes as long as its slowest worker
            slowest_s = max(row["step_s"] for row in rows_of_workers)
            peak = max(row["peak"] for row in rows_of_workers)
            rows.append({**rows_of_workers[0], "step_s": slowest_s, "peak": peak})
    if not rows:
        return None
    first = results[0]
    nodes = tuple(row["size"] for row in rows)
    passes = list(map(max, zip(*(result["passes"] for result in results), strict=True)))
    too_few = max(set(sizes) - set(nodes), default=0) if lacks_memory else 0
    pairs = [(passes[min(row["size"], len(passes)) - 1], row["peak"]) for row in rows]
    return NodeProfile(
        steps=steps_from(first["weights"], rows, first["replicas"], first["grows"]),
        memory=memory_use(pairs, passes, too_few),
        nodes=nodes,
        gpu_bytes=min(result["total"] for result in results),
    )


def steps_from(weights: int, rows: _Rows, replicas: int, grows: bool) -> StepTimes:
    """Order what the probes wrote, with rising sizes, by the samples of one node's step."""
    times: dict[int, float] = {}
    for row in rows:
        times.setdefault(-(-row["batch"] // row["size"]), row["step_s"])
    batches = tuple(sorted(times))
    for larger, smaller in pairwise(reversed(batches)):  # fewer samples never take longer
        times[smaller] = min(times[smaller], times[larger])
    global_batch = rows[0]["batch"]
    if grows:
        global_batch //= rows[0]["size"]
    return StepTimes(
        weights=weights,
        global_batch=global_batch,
        is_per_worker=grows,
        batches=batches,
        seconds=tuple(times[batch] for batch in batches),
        replicas=replicas,
    )


def _no_result(
    script: str, why: str, steps: int, sizes: Sequence[int], *, is_late: bool = False
) -> BftError:
    return BftError(
        "BFT-4203",
        f"{script} made no {'step in time' if is_late else 'elastic step'} ({why}).",
        "Run it by hand first; its loops must be those of bftrainer.elastic.Run, and "
        f"{steps} steps at each of {len(sizes)} sizes must fit into --limit.",
    )


def too_large(nodes: int, needs: str = "") -> BftError:
    """Return BFT-4206: it does not fit on that many nodes either."""
    return BftError(
        "BFT-4206",
        f"On {nodes} node(s) a worker has too little memory{needs}.",
        "Shard the model over more --workers-per-node, limit passes by max_per_worker, or, where"
        " shares shrink with the nodes, try more --nodes.",
    )
