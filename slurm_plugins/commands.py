"""The Slurm commands we run: fixed argument lists, a clean environment, a time limit.

Called by ``snapshot`` and ``launcher``; ``parse`` reads the output. Environment variables of the
caller that could change an output (``SQUEUE_*``, ``SBATCH_*`` and the like) are not passed on.
Every request to the controller is counted.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bftrainer import process
from slurm_plugins import asked
from slurm_plugins.parse import FIELD, NODE_FIELDS, RECORD


def _long(fields: Sequence[str]) -> str:
    """Build a format for ``-O``: no widths; the separators are the fields' suffixes."""
    return ",".join((*(f"{name}:{FIELD}" for name in fields[:-1]), f"{fields[-1]}:{RECORD}"))


JOB_FORMAT = RECORD + FIELD.join(
    (
        *("%i", "%P", "%T", "%r", "%S", "%l", "%Y", "%N", "%D", "%V", "%u", "%f", "%b", "%Q"),
        *("%n", "%x", "%E"),
    )
)
# Job names are free text chosen by users, so they are read for our own jobs only.
NAME_FORMAT = RECORD + FIELD.join(("%i", "%j", "%k"))
PILOT_FORMAT = RECORD + FIELD.join(("%i", "%T", "%r", "%S", "%N"))

# Only -O shows how much memory and how many GPUs of a node are allocated.
SINFO = ("sinfo", "-h", "-N", "-a", "--noconvert", "-O", _long(NODE_FIELDS))
SQUEUE = ("squeue", "-h", "-a", "--noconvert", "-o", JOB_FORMAT)
ASKED = ("squeue", "-h", "-a", "-t", "PD", "--noconvert", "-O", _long(asked.FIELDS))
RESERVATIONS = ("scontrol", "-o", "show", "reservations")
SDIAG = ("sdiag",)
CONFIG = ("scontrol", "show", "config")
TOPOLOGY = ("scontrol", "show", "topology")

DEFAULT_TIMEOUT_S = 15.0
"""Without the controller a command fails by itself after 9 s."""

_KINDS = {"sinfo": "nodes", "sdiag": "cycle", "sbatch": "submit", "scancel": "cancel"}
_KEPT = ("PATH", "LD_LIBRARY_PATH", "HOME", "USER", "LOGNAME", "SLURM_CONF")


def names_argv(user: str, partition: str) -> tuple[str, ...]:
    """Query the names of the user's jobs in the pilots' partition."""
    return ("squeue", "-h", "-a", "-u", user, "-p", partition, "-o", NAME_FORMAT)


def pilots_argv(job_ids: Sequence[str]) -> tuple[str, ...]:
    """Query these jobs, including ended ones."""
    ids = ",".join(job_ids)
    return ("squeue", "-h", "-a", "-t", "all", "--noconvert", "-o", PILOT_FORMAT, "-j", ids)


@dataclass(slots=True, kw_only=True)
class SlurmCommands:
    """Runs Slurm commands against one cluster and counts them."""

    slurm_conf: str | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S
    extra_environment: Mapping[str, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)  # requests so far, by kind
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def requests(self) -> int:
        """The number of requests of all kinds."""
        return sum(self.request_counts().values())

    def request_counts(self) -> dict[str, int]:
        """Return a consistent copy of the counts."""
        with self._lock:
            return dict(self.counts)

    def base_environment(self) -> dict[str, str]:
        """Return the environment of every command and pilot: paths, no settings."""
        kept = {key: os.environ[key] for key in _KEPT if key in os.environ}
        kept.setdefault("PATH", "/usr/local/bin:/usr/bin:/bin")
        if self.slurm_conf is not None:
            kept["SLURM_CONF"] = self.slurm_conf
        return {**kept, **self.extra_environment}

    def query(self, argv: Sequence[str]) -> process.Completed:
        """Run a command whose output is parsed: fixed language, UTC, epoch seconds."""
        fixed = {"LC_ALL": "C", "TZ": "UTC0", "SLURM_TIME_FORMAT": "%s"}
        fixed["SLURM_BITSTR_LEN"] = "0"  # do not abbreviate arrays
        return self.run(argv, {**self.base_environment(), **fixed})

    def run(
        self, argv: Sequence[str], environment: Mapping[str, str], *, stdin: str = ""
    ) -> process.Completed:
        """Run one command with exactly this environment."""
        with self._lock:
            self.counts[kind_of(argv)] += 1
        return process.run(argv, timeout_s=self.timeout_s, env=environment, cwd=None, stdin=stdin)


def kind_of(argv: Sequence[str]) -> str:
    """Return the kind of a request; "submit" and "cancel" are orders."""
    if argv[0] in _KINDS:
        return _KINDS[argv[0]]
    if argv[0] == "squeue":
        return "jobs" if tuple(argv) in (SQUEUE, ASKED) else "pilots"
    kinds = {RESERVATIONS: "reservations", CONFIG: "configuration", TOPOLOGY: "configuration"}
    return kinds.get(tuple(argv), "settings")


def is_controller_away(done: process.Completed) -> bool:
    """Whether the failure means that no command will be answered now."""
    return done.timed_out or "contact slurm controller" in done.stderr


def why_failed(done: process.Completed) -> str:
    """Describe a failed command in one sentence, in the batch system's words."""
    name = done.argv[0]
    if done.timed_out:
        return f"{name} did not answer within {done.wall_s:.0f} s."
    if done.truncated:
        return f"{name} printed more than bftrainer reads."
    if done.returncode == 127:
        return f"{name} cannot be started: {done.stderr.strip()[:200]}."
    words = " ".join((done.stderr.strip() or done.stdout.strip()).split())
    return f"{name} ended with status {done.returncode}: {words[:300] or 'no message'}."
