"""Runs a training script as one worker and times its steps, in the user's interpreter.

``steps.py CONFIG SCRIPT [ARGS]...``: the worker does the steps of rank 0 of 1, 2, 4 ... workers,
one size after the other, each ``steps`` times, without exchanging gradients. The lower quartile
counts, because disturbances only make steps slower. The result is written to a file as a JSON
object and the process ends: code after the script's loops is not run. CONFIG is a JSON object:
``{"package": DIR of bftrainer, "out": FILE, "sizes": [...], "steps": N}``.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

COLD_STEPS = 2  # of each size, not timed


class Probe:
    """Times the steps of one ``Run``, whose size it sets."""

    def __init__(self, run: Any, config: dict[str, Any]) -> None:
        self._membership = run._membership  # noqa: SLF001 - our own class
        self._state = run._state  # noqa: SLF001
        self._config = config
        self._sizes: list[int] = list(config["sizes"])
        self._times: list[float] = []
        self._batches: list[int] = []
        self._samples = 0
        self._last_s: float | None = None
        self.rows: list[dict[str, Any]] = []
        run.on_committed(self._committed)

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
                self.write()
            self._membership.size = self._sizes[len(self.rows)]
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
            row = {"size": self._membership.size, "batch": batch, "step_s": times[len(times) // 4]}
            self.rows.append(row)

    def write(self) -> None:
        """Write the result and end the process."""
        weights = sum(p.numel() for p in self._state.parameters())
        Path(self._config["out"]).write_text(json.dumps({"weights": weights, "rows": self.rows}))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def main() -> None:
    """Install the probe, then run the script."""
    config = json.loads(sys.argv[1])
    package = Path(config["package"])
    here = Path(__file__).resolve().parent
    sys.path[:] = [p for p in sys.path if Path(p or os.curdir).resolve() != here]
    _load(package / "elastic" / "finder.py").ensure_importable(package)
    elastic = importlib.import_module("bftrainer.elastic.run")
    probes: list[Probe] = []
    construct = elastic.Run.__init__

    def probed(run: Any, *args: Any, **more: Any) -> None:
        construct(run, *args, **more)
        probes.append(Probe(run, config))

    elastic.Run.__init__ = probed
    script = sys.argv[2]
    sys.argv = sys.argv[2:]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))  # noqa: PTH100, PTH120 - as python does
    runpy.run_path(script, run_name="__main__")
    if probes and probes[0].rows:  # the script ended before all sizes were measured
        probes[0].write()


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("_bft_finder", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"the installation of bftrainer lacks {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
