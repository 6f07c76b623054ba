"""One of the example scripts as ``bench_convergence`` rescales it.

Argument: the model's name. The example runs unchanged; a hook on its committed steps
holds it at the step the benchmark allows, so that rescales come at known places and
joiners have the time to get warm. Environment: BENCH_LIMIT (a file with that step),
BENCH_ARGUMENTS (of the example).
"""

from __future__ import annotations

import os
import runpy
import struct
import sys
import time
from pathlib import Path
from typing import Any

from bftrainer import elastic
from bftrainer.elastic.run import Run

EXAMPLES = Path(__file__).resolve().parents[2] / "trainers" / "examples"
LIMIT = struct.Struct("<q")
POLL_S = 0.002


class Held(Run):
    """A run that waits where the benchmark says."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._limit = os.open(os.environ["BENCH_LIMIT"], os.O_RDONLY)
        self.on_committed(self._hold)

    def _hold(self, info: elastic.GenerationInfo) -> None:
        while info.step >= LIMIT.unpack(os.pread(self._limit, LIMIT.size, 0))[0]:
            time.sleep(POLL_S)


elastic.Run = Held  # type: ignore[misc]  # the example takes it from there
sys.argv = [sys.argv[0], *os.environ["BENCH_ARGUMENTS"].split()]
runpy.run_path(str(EXAMPLES / f"digits_{os.environ['BENCH_MODEL']}.py"), run_name="__main__")
