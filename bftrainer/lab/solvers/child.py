"""The process a solver runs in: limits itself, reads a request, prints one answer.

A request comes in on standard input, the answer goes to what was standard output at the
start. Whatever native code prints goes to standard error. Started by
``bftrainer.lab.solvers.runner`` as ``python -m bftrainer.lab.solvers.child``.
"""

from __future__ import annotations

import argparse
import importlib
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence

WORK = "milp.reference.guard:answer_request"
OUT_OF_MEMORY = 3
CPU_GRACE_S = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer one request; the exit code is 0 when there is an answer."""
    parser = argparse.ArgumentParser(prog="bftrainer.lab.solvers.child", description=__doc__)
    parser.add_argument("--work", default=WORK, help="MODULE:FUNCTION that answers")
    parser.add_argument("--memory-bytes", type=int, required=True)
    parser.add_argument("--deadline-s", type=float, help="on the monotonic clock")
    options = parser.parse_args(arguments)
    deadline_s: float | None = options.deadline_s

    def remaining_s() -> float | None:
        if deadline_s is None:
            return None
        return max(deadline_s - time.monotonic(), 0.0)

    limit_self(memory_bytes=options.memory_bytes, cpu_s=remaining_s())
    answer_fd = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        answer = _load(options.work)(sys.stdin.read(), remaining_s=remaining_s)
    except MemoryError:
        print("out of memory", file=sys.stderr)  # noqa: T201 - this is how a child reports
        return OUT_OF_MEMORY
    with os.fdopen(answer_fd, "w", encoding="utf-8") as stream:
        stream.write(answer)
    return 0


def limit_self(*, memory_bytes: int, cpu_s: float | None) -> None:
    """Let the kernel hold this process to its memory and, without a parent, its time."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if cpu_s is not None:
        seconds = int(cpu_s) + CPU_GRACE_S
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


def _load(work: str) -> Callable[..., str]:
    module, _, name = work.partition(":")
    function: Callable[..., str] = getattr(importlib.import_module(module), name)
    return function


if __name__ == "__main__":
    sys.exit(main())
