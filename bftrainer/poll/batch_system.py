"""The protocol every batch system implements, and how one is found by name.

Implementations: ``bftrainer.local`` (process groups on this machine),
``slurm_plugins`` (Slurm 22.05 and later). They share one conformance test class,
``tests/conformance/batch_system.py``. Calls block (they run commands or sockets)
and are made from a worker thread of the daemon, one at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from bftrainer.errors import ExitCode, UsageError
from bftrainer.model.cluster import Presence, Snapshot
from bftrainer.model.finding import NOTHING, Finding, Measured
from bftrainer.plugins import load_plugin
from bftrainer.poll.announcer import Announcer

ENTRY_POINT_GROUP = "bftrainer.batch_systems"
ORDER_KINDS = frozenset({"submit", "cancel"})  # of requests: ours that may not wait


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotRequest:
    """The 1-node lowest-priority job that shall hold ``node`` and run our agent."""

    pilot_id: str  # ours, unique for ever, e.g. "p000017"; also the batch job's name
    node: str
    time_limit_s: float  # fits the gap; adapters round *down* to their granularity
    agent_argv: tuple[str, ...]  # absolute interpreter first; becomes the batch script itself
    log_path: Path
    gpus: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotObservation:
    """What the batch system says about one pilot job."""

    presence: Presence
    phase: str = ""  # "pending" | "running" | "ending" when present, else ""
    node: str | None = None
    start_s: float | None = None
    reason: str = ""  # why it ended or does not start: the batch system's own word
    # Its process ended other than with status 0, and neither the batch system nor anybody who
    # asked it has ended it; nor has its node failed.
    has_failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionProblem:
    """What is wrong with one option of a batch system, or of a policy."""

    path: tuple[str | int, ...]  # its name, then where inside its value; (): all of them
    cause: str
    next_step: str


class OptionError(UsageError):
    """Options of a plug-in that are unknown or malformed: all of them."""

    def __init__(self, code: str, problems: Sequence[OptionProblem]) -> None:
        cause = " ".join(problem.cause for problem in problems)
        next_step = problems[0].next_step
        super().__init__(code, cause, next_step, exit_code=ExitCode.VALIDATION_FAILED)
        self.problems = tuple(problems)


class BatchSystem(Protocol):
    """Where nodes come from and pilots go to."""

    name: str
    idle_confirmations: int  # snapshots a node must be idle in before we believe it
    cycle_s: float  # longest time between two complete passes of its scheduler

    def snapshot(self, *, wants_cycle: bool = True) -> Snapshot:
        """Look once; never raises for a failing source (that part is ``None``).

        Args:
            wants_cycle: False: nothing waits for it, and where asking for it costs a
                request it is the one known last.
        """

    def request_counts(self) -> Mapping[str, int]:
        """Count what the controller was asked so far, by kind; orders are ORDER_KINDS."""

    def launch_pilot(self, request: PilotRequest) -> str:
        """Submit the pilot and return its batch job id; raise ``BatchSystemError``."""

    def cancel_pilots(self, job_ids: Sequence[str], *, force: bool = False) -> None:
        """Ask the pilots to leave now; ids already gone are no error."""

    def pilot_states(self, job_ids: Sequence[str]) -> Mapping[str, PilotObservation]:
        """Observe each id; a controller that does not answer gives ``UNKNOWN``."""

    def findings(self, measured: Measured = NOTHING, /) -> tuple[Finding, ...]:
        """Look for settings of the site that cost ordinary jobs or us something."""

    def open_announcer(self) -> Announcer | None:
        """Return what tells of changes between two looks; None: there is no such thing.

        Raises:
            BatchSystemError: one is configured and cannot be used.
        """

    def close(self) -> None:
        """Release what the adapter holds; the cluster itself is untouched."""


def load_batch_system(name: str, options: Mapping[str, Any]) -> BatchSystem:
    """Create the named batch system from its entry point.

    Raises:
        UsageError: BFT-1201 when no such plug-in is installed.
        OptionError: with the adapter's own code, what is wrong with the options.
    """
    create = load_plugin(ENTRY_POINT_GROUP, name, what="batch system", code="BFT-1201")
    system: BatchSystem = create(dict(options))
    return system
