"""Runs a training script as a worker of the first node and times its steps.

``steps.py CONFIG SCRIPT [ARGS]...``, in the user's interpreter: the worker does its steps of rank
0 of 1, 2, 4 ... nodes, the most nodes first, each ``steps`` times, without exchanging gradients
with other nodes. The lower quartile counts, because disturbances only make steps slower. Most nodes
come first because their shares are the smallest: when memory runs out, what fits is known.

A model that is sharded over the workers of a node is trained by all of them together; others by
each alone, as the first of all workers.

The result is written to a file as a JSON object, after each size, and the process ends: code after
the script's loops is not run. CONFIG is a JSON object: ``{"package": DIR of bftrainer, "out": FILE,
"sizes": [...], "steps": N, "worker": its WorkerConfig}``, sizes in nodes.
"""

from __future__ import annotations

import ctypes
import dataclasses
import importlib
import importlib.util
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

COLD_STEPS = 2  # of each size, not timed
MOST_SIZES = 4096  # for which the samples of a pass are listed


class Peak:
    """The most memory that this process takes: of its GPU if it uses one, else of the host."""

    def __init__(self) -> None:
        self._cuda = sys.modules["torch"].cuda

    def reset(self) -> None:
        """Begin anew; where the kernel does not allow it, the peak of all sizes so far counts."""
        if self._cuda.is_initialized():
            self._cuda.synchronize()
            self._cuda.empty_cache()
            self._cuda.reset_peak_memory_stats()
            return
        with suppress(OSError, AttributeError):  # no glibc, no such file
            ctypes.CDLL(None).malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")

    def bytes(self) -> int:
        """Return the peak since the last reset."""
        if self._cuda.is_initialized():
            free, total = self._cuda.mem_get_info()
            outside = total - free - self._cuda.memory_reserved()  # the context, collectives
            return int(outside + self._cuda.max_memory_reserved())
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
        return 0

    def total_bytes(self) -> int:
        """Return the memory of the GPU; 0: none is used."""
        if not self._cuda.is_initialized():
            return 0
        return int(self._cuda.mem_get_info()[1])


class Probe:
    """Times the steps of one ``Run``, whose size it sets."""

    def __init__(self, run: Any, config: dict[str, Any]) -> None:
        self._membership = run._membership  # noqa: SLF001 - our own class
        self._state = run._state  # noqa: SLF001
        self._config = config
        control, self._shards = run._control, run._shards  # noqa: SLF001
        self._per_node = control.config.local_size
        if self._shards is None:
            control.config = dataclasses.replace(control.config, local_rank=0, local_size=1)
        self._sizes = sorted(config["sizes"], reverse=True)
        self._times: list[float] = []
        self._batches: list[int] = []
        self._samples = 0
        self._last_s: float | None = None
        self._peak = Peak()
        cutting, batch = run._cutting, run._plan.batch  # noqa: SLF001
        self._passes = self._listed(cutting, batch)
        self._grows = cutting.whole(batch, 2) > batch  # the global batch, with the workers
        self.rows: list[dict[str, Any]] = []
        run.on_entered(lambda _info: self._begin())
        run.on_committed(self._committed)

    def _listed(self, cutting: Any, batch: int) -> list[int]:
        """Return the samples of this worker's largest pass on 1, 2, 3 ... nodes."""
        alike, rank = 1, 0
        if self._shards is not None:
            alike = self._shards.alike
            rank = self._shards.node.rank // alike
        replicas_per_node = self._per_node // alike
        largest = []
        for nodes in range(1, min(MOST_SIZES, self._sizes[0]) + 1):
            replicas = nodes * replicas_per_node
            pieces = cutting.pieces(cutting.whole(batch, replicas), replicas, rank)
            largest.append(max(piece.samples for piece in pieces))
        return largest

    def _begin(self) -> None:
        self._membership.size = self._sizes[len(self.rows)] * self._per_node
        self._peak.reset()

    def _committed(self, info: Any) -> None:
        now_s = time.perf_counter()
        if self._last_s is not None:
            self._times.append(now_s - self._last_s)
            self._batches.append(info.samples - self._samples)
        self._samples = info.samples
        if len(self._times) == COLD_STEPS + self._config["steps"]:
            self.note()
            self._times, self._batches = [], []
            if len(self.rows) == len(self._sizes):
                self.end()
            self._begin()
        self._last_s = time.perf_counter()

    def note(self) -> None:
        """Record the steps of the present size, except on short batches."""
        batch = max(self._batches)
        times = sorted(
            t
            for t, b in zip(self._times[COLD_STEPS:], self._batches[COLD_STEPS:], strict=True)
            if b == batch
        )
        if times:
            nodes = self._sizes[len(self.rows)]
            peak = self._peak.bytes() + self._buckets_bytes()
            row = {"size": nodes, "batch": batch, "step_s": times[len(times) // 4], "peak": peak}
            self.rows.append(row)
            self.write()

    def _buckets_bytes(self) -> int:
        """Return the memory of the second copy of gradients that a worker under an agent has."""
        if self._shards is not None or self._membership.reducer is not None:
            return 0
        n_bytes = 0
        for parameter in self._state.parameters():
            if parameter.requires_grad:
                n_bytes += parameter.numel() * parameter.element_size()
        return n_bytes

    def write(self, *, lacks_memory: bool = False) -> None:
        """Write what is known so far."""
        results = {
            "weights": sum(p.numel() for p in self._state.parameters()),
            "replicas": self._per_node if self._shards is None else 1,
            "passes": self._passes,
            "grows": self._grows,
            "rows": self.rows,
            "total": self._peak.total_bytes(),
            "lacks_memory": lacks_memory,
        }
        out = Path(self._config["out"])
        out.with_suffix(".new").write_text(json.dumps(results))
        out.with_suffix(".new").rename(out)

    def end(self) -> None:
        """End the process, together with the others of the node: they may still be receiving."""
        with suppress(RuntimeError):  # they have ended
            if self._shards is not None:
                self._shards.node.any(False)  # noqa: FBT003
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def main() -> None:
    """Install the probe, then run the script."""
    config = json.loads(sys.argv[1])
    package = Path(config["package"])
    own_folder = Path(__file__).resolve().parent
    sys.path[:] = [p for p in sys.path if Path(p or os.curdir).resolve() != own_folder]
    _load(package / "elastic" / "finder.py").ensure_importable(package)
    protocol = importlib.import_module("bftrainer.ground.protocol")
    control = importlib.import_module("bftrainer.elastic.process.control")
    control.start(protocol.from_body(config["worker"]), None)
    elastic = importlib.import_module("bftrainer.elastic.run")
    probes: list[Probe] = []
    construct = elastic.Run.__init__

    def probed(run: Any, *args: Any, **more: Any) -> None:
        construct(run, *args, **more)
        probes.append(Probe(run, config))

    elastic.Run.__init__ = probed
    script = sys.argv[2]
    sys.argv = sys.argv[2:]
    worker = importlib.import_module("bftrainer.elastic.worker")
    worker.seed_alike(config["worker"].get("seed", 0))  # as under an agent: workers read the same
    main = importlib.import_module("bftrainer.ground.main_module")
    sys.path.insert(0, main.first_path(script))
    try:
        main.run_main(script)
    except BaseException as problem:
        if probes and _lacks_memory(problem):
            probes[0].write(lacks_memory=True)
        raise
    if probes and probes[0].rows:  # the script ended before all sizes were measured
        os._exit(0)


def _lacks_memory(problem: BaseException) -> bool:
    is_of_host = isinstance(problem, RuntimeError) and "t allocate memory" in str(problem)
    return is_of_host or type(problem).__name__ in {"OutOfMemoryError", "MemoryError"}


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("_bft_finder", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"the installation of bftrainer lacks {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
