"""One record per committed step, for the workloads of benchmarks. Standard library only.

Appended to a file on tmpfs, which survives the SIGKILL of its writer; read by
``_bench.records``.
"""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

RECORD = struct.Struct("<dqiiii")  # monotonic s, step, generation, size, rank, reserved


class Records:
    """Appends one record per committed step."""

    def __init__(self, what: str = "steps") -> None:
        node = os.environ.get("BENCH_NODE", "node")
        path = Path(os.environ["BENCH_RECORDS"]) / f"{node}-{os.getpid()}.{what}"
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, step: int, generation: int, size: int, rank: int) -> None:
        """Note that this step is committed now."""
        os.write(self._fd, RECORD.pack(time.monotonic(), step, generation, size, rank, 0))
