"""Runs a batch system's commands: a clean environment, a time limit, counted by kind.

Base of ``SlurmCommands`` and ``LsfCommands``, which know the commands. Variables of the caller that
could change an output (``SQUEUE_*``, ``BSUB_*`` and the like) are not passed on.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from bftrainer.batch import process

KEPT = ("PATH", "LD_LIBRARY_PATH", "HOME", "USER", "LOGNAME")
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
_MOST_WORDS = 300  # characters of a command's own message


class Commands:
    """Runs commands against one cluster and counts them."""

    def __init__(
        self,
        *,
        kind_of: Callable[[Sequence[str]], str],
        timeout_s: float,
        kept: Sequence[str] = (),
        added: Mapping[str, str] | None = None,
    ) -> None:
        """Say how commands are run.

        Args:
            kind_of: the kind under which a command line is counted; "submit" and "cancel" are
                orders (``batch_system.ORDER_KINDS``).
            timeout_s: limit per command; its process group is killed then.
            kept: variables passed on beside the usual ones.
            added: variables set in addition.
        """
        self.timeout_s = timeout_s
        self._kind_of, self._kept, self._added = kind_of, (*KEPT, *kept), dict(added or {})
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def request_counts(self) -> dict[str, int]:
        """Return a consistent copy of the numbers of requests so far, by kind."""
        with self._lock:
            return dict(self._counts)

    def count(self, argv: Sequence[str]) -> None:
        """Count a command that is run for us."""
        with self._lock:
            self._counts[self._kind_of(argv)] += 1

    def base_environment(self) -> dict[str, str]:
        """Return the environment of every command and pilot: paths, no settings."""
        kept = {key: os.environ[key] for key in self._kept if key in os.environ}
        kept.setdefault("PATH", DEFAULT_PATH)
        return {**kept, **self._added}

    def run(
        self, argv: Sequence[str], environment: Mapping[str, str], *, stdin: str = ""
    ) -> process.Completed:
        """Run one command with exactly this environment."""
        self.count(argv)
        return process.run(argv, timeout_s=self.timeout_s, env=environment, cwd=None, stdin=stdin)


def why_failed(done: process.Completed) -> str:
    """Describe a failed command in one sentence, in the batch system's words."""
    name = done.argv[0].rpartition("/")[2]
    if done.timed_out:
        return f"{name} did not answer within {done.wall_s:.0f} s."
    if done.truncated:
        return f"{name} printed more than bftrainer reads."
    if done.returncode == 127:
        return f"{name} cannot be started: {done.stderr.strip()[:200]}."
    words = " ".join((done.stderr.strip() or done.stdout.strip()).split())
    return f"{name} ended with status {done.returncode}: {words[:_MOST_WORDS] or 'no message'}."
