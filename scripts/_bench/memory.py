"""The memory of processes, as the kernel counts it (proc_pid_status(5)). Called by ``steady``."""

from __future__ import annotations

from pathlib import Path


def peak_bytes(pid: int) -> int:
    """Return the most resident memory that a process has had since ``forget_peak``, bytes."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name == "VmHWM":
            return 1024 * int(value.split()[0])
    raise ProcessLookupError(f"process {pid} has ended")


def forget_peak(pid: int) -> None:
    """Begin anew: the most so far is what the process has now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="utf-8")
