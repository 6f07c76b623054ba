"""The Slurm commands we run: fixed argument lists, a clean environment, a time limit.

Requests come from ``snapshot`` and ``launcher``; the text goes to ``parse``. Nothing
of the caller's environment that could change an output (``SQUEUE_*``, ``SBATCH_*``
and the like) reaches the commands. Every request to the controller is counted.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bftrainer import process
from slurm_plugins.parse import FIELD, RECORD

NODE_FORMAT = RECORD + FIELD.join(("%N", "%T", "%R", "%G", "%c", "%m", "%f", "%E"))
JOB_FORMAT = RECORD + FIELD.join(
    ("%i", "%P", "%T", "%r", "%S", "%l", "%Y", "%N", "%D", "%V", "%u", "%f", "%b", "%Q", "%n")
)
# Names are the one text a user chooses freely: they are read for our own jobs only.
NAME_FORMAT = RECORD + FIELD.join(("%i", "%j"))
PILOT_FORMAT = RECORD + FIELD.join(("%i", "%T", "%r", "%S", "%N"))

SINFO = ("sinfo", "-h", "-N", "-a", "--noconvert", "-o", NODE_FORMAT)
# -r: every waiting task of an array is a job of its own, as it is for the scheduler.
SQUEUE = ("squeue", "-h", "-a", "-r", "--noconvert", "-o", JOB_FORMAT)
RESERVATIONS = ("scontrol", "-o", "show", "reservations")
SDIAG = ("sdiag",)
CONFIG = ("scontrol", "show", "config")

DEFAULT_TIMEOUT_S = 15.0
"""A command blocks 9 s by itself when the controller is away; then it says so."""

_KEPT = ("PATH", "LD_LIBRARY_PATH", "HOME", "USER", "LOGNAME", "SLURM_CONF")


def names_argv(user: str, partition: str) -> tuple[str, ...]:
    """Ask for the names of the user's jobs in the pilots' partition."""
    return ("squeue", "-h", "-a", "-u", user, "-p", partition, "-o", NAME_FORMAT)


def pilots_argv(job_ids: Sequence[str]) -> tuple[str, ...]:
    """Ask for these jobs, ended ones too."""
    ids = ",".join(job_ids)
    return ("squeue", "-h", "-a", "-t", "all", "--noconvert", "-o", PILOT_FORMAT, "-j", ids)


@dataclass(slots=True, kw_only=True)
class SlurmCommands:
    """Runs Slurm commands against one cluster and counts them."""

    slurm_conf: str | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S
    extra_environment: Mapping[str, str] = field(default_factory=dict)
    requests: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def base_environment(self) -> dict[str, str]:
        """Return what every command and every pilot gets: where things are, no settings."""
        kept = {key: os.environ[key] for key in _KEPT if key in os.environ}
        kept.setdefault("PATH", "/usr/local/bin:/usr/bin:/bin")
        if self.slurm_conf is not None:
            kept["SLURM_CONF"] = self.slurm_conf
        return {**kept, **self.extra_environment}

    def query(self, argv: Sequence[str]) -> process.Completed:
        """Run a command whose output is parsed: fixed language, UTC, epoch seconds."""
        fixed = {"LC_ALL": "C", "TZ": "UTC0", "SLURM_TIME_FORMAT": "%s"}
        return self.run(argv, {**self.base_environment(), **fixed})

    def run(
        self, argv: Sequence[str], environment: Mapping[str, str], *, stdin: str = ""
    ) -> process.Completed:
        """Run one command with exactly this environment."""
        with self._lock:
            self.requests += 1
        return process.run(argv, timeout_s=self.timeout_s, env=environment, cwd=None, stdin=stdin)


def is_controller_away(done: process.Completed) -> bool:
    """Whether the failure says that no command will be answered now."""
    return done.timed_out or "contact slurm controller" in done.stderr


def why_failed(done: process.Completed) -> str:
    """One sentence on a command that did not succeed, in the batch system's own words."""
    name = done.argv[0]
    if done.timed_out:
        return f"{name} did not answer within {done.wall_s:.0f} s."
    if done.truncated:
        return f"{name} printed more than we read."
    if done.returncode == 127:
        return f"{name} cannot be started: {done.stderr.strip()[:200]}."
    words = " ".join((done.stderr.strip() or done.stdout.strip()).split())
    return f"{name} ended with status {done.returncode}: {words[:300] or 'no message'}."
