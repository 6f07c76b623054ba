"""The protocol that every batch system implements, and the look-up of one by name.

Implementations: ``bftrainer.batch.local`` (process groups on this machine), ``slurm_plugins``
(Slurm 22.05 and later), ``lsf_adapters``; docs/howto/add-batch-system.md adds another. They share
one conformance test class, ``tests/conformance/batch_system.py``. Calls block (they run commands or
use sockets) and are made from worker threads of the daemon. All times are seconds since the epoch,
those of a snapshot by the clock of its ``taken_at_s``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from bftrainer.batch.announcer import Announcer
from bftrainer.model.cluster import EndedBy, Presence, Snapshot
from bftrainer.model.errors import ExitCode, UsageError
from bftrainer.model.parts import NodePart
from bftrainer.model.plugins import load_plugin
from bftrainer.model.site import NOTHING, Finding, Measured, ReleaseTrial, SiteFile

ENTRY_POINT_GROUP = "bftrainer.batch_systems"
ORDER_KINDS = frozenset({"submit", "cancel"})  # kinds of requests that are never delayed


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotRequest:
    """The one-node, lowest-priority job that will hold ``node`` and run our agent."""

    pilot_id: str  # ours, never reused, e.g. "p000017"; also the batch job's name
    node: str
    time_limit_s: float  # fits the gap; adapters round *down* to their granularity
    agent_argv: tuple[str, ...]  # absolute interpreter first; becomes the batch script itself
    log_path: Path
    gpus: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = ""  # runs as this one, through the submit helper; "": as the daemon
    files: Mapping[str, str] = field(default_factory=dict)  # for the pilot's directory, if so
    account: str = ""  # charged for it; "": as the site's options say
    part: NodePart | None = None  # of the node, that it asks for; None: all of it


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotObservation:
    """The batch system's report on one pilot job."""

    presence: Presence
    phase: str = ""  # "pending" | "running" | "ending" when present, else ""
    node: str | None = None
    start_s: float | None = None
    reason: str = ""  # why it ended or is pending, in the batch system's words
    # Its process ended with a non-zero status although no one cancelled it, neither the batch
    # system nor on request, and its node did not fail.
    has_failed: bool = False
    ended_by: EndedBy = EndedBy.UNKNOWN
    end_s: float | None = None  # None: unknown, or it has not ended


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionProblem:
    """A fault of one option of a batch system, or of a policy."""

    path: tuple[str | int, ...]  # its name, then the path inside its value; (): all options
    cause: str
    next_step: str


class OptionError(UsageError):
    """Unknown or malformed options of a plug-in, all at once."""

    def __init__(self, code: str, problems: Sequence[OptionProblem]) -> None:
        cause = " ".join(problem.cause for problem in problems)
        next_step = problems[0].next_step
        super().__init__(code, cause, next_step, exit_code=ExitCode.VALIDATION_FAILED)
        self.problems = tuple(problems)


class BatchSystem(Protocol):
    """Source of nodes, and where pilots run; derive from it to inherit the last nine methods."""

    name: str
    idle_confirmations: int  # consecutive idle snapshots before a node counts as idle
    cycle_s: float  # longest time between two complete passes of its scheduler
    runs_as_users: bool = False  # whether pilots can run as other users (policy ``run_as``)
    lends_parts: bool = False  # whether pilots can have GPUs of a node without the others

    def snapshot(self, *, wants_cycle: bool = True) -> Snapshot:
        """Poll once; never raises for a failing source (that part is ``None``).

        Nodes are read before jobs and compared with them (``not_idle_where_jobs_run``), so that no
        job is on an "idle" node. A node of which a job has a part is allocated, whatever the batch
        system calls it.

        Args:
            wants_cycle: False: the last known scheduler cycle suffices, if reading it costs
                another request.
        """

    def request_counts(self) -> Mapping[str, int]:
        """Return the number of requests to the controller so far, by kind."""

    def launch_pilot(self, request: PilotRequest) -> str:
        """Submit the pilot and return its batch job id.

        Raises:
            UnansweredError: it is not known whether it was submitted: the queue will show it.
            BatchSystemError: refused, or there is no such node.
        """

    def cancel_pilots(self, job_ids: Sequence[str], *, force: bool = False) -> None:
        """Ask the pilots to leave now; ids already gone are not an error.

        Their agents get SIGTERM; with ``force`` they are gone within seconds. Neither counts as a
        failure of the pilot.
        """

    def pilot_states(self, job_ids: Sequence[str]) -> Mapping[str, PilotObservation]:
        """Observe each id; ``UNKNOWN`` if the controller does not answer."""

    def forget_pilot(self, user: str, pilot_id: str) -> None:
        """Remove what the launch of a pilot that has no job left with its user, if it can."""
        del user, pilot_id

    def findings(self, measured: Measured = NOTHING, /) -> tuple[Finding, ...]:
        """Check for site settings that harm ordinary jobs or cost us nodes; (): none are known."""
        del measured
        return ()

    def open_announcer(self) -> Announcer | None:
        """Return the source of notifications; None: there is none.

        Raises:
            BatchSystemError: one is configured but cannot be used.
        """
        return None

    def told_counts(self) -> Mapping[str, int]:
        """Return what came through relays so far, by kind; {}: there are none."""
        return {}

    def pilot_hosts(self) -> tuple[str, ...]:
        """Return names or addresses of hosts where pilots run; (): unknown."""
        return ()

    def pilots_are_in(self, directory: Path) -> None:
        """Learn where the daemon keeps its pilots' folders; called before anything else.

        Several daemons of one user may share a queue, and each numbers its pilots from 1.
        """
        del directory

    def site_files(self) -> tuple[SiteFile, ...]:
        """Return what an administrator installs here, the checklist last.

        Raises:
            UsageError: BFT-1248, this batch system needs none.
            BatchSystemError: the settings cannot be read.
        """
        raise UsageError(
            "BFT-1248",
            f"The batch system {self.name} needs no files of an administrator.",
            "Use --batch-system slurm or lsf.",
        )

    def try_release(self) -> ReleaseTrial:
        """Try the batch system's release with one pilot on one idle node.

        Raises:
            UsageError: BFT-1574, this batch system has no such trial.
            BatchSystemError: BFT-1573, no node is idle.
        """
        raise UsageError(
            "BFT-1574",
            f"The releases of the batch system {self.name} cannot be tried.",
            "Use --batch-system slurm.",
        )

    def close(self) -> None:
        """Release the adapter's resources; the cluster is untouched."""
        return


def observed_only(what: str, page: str) -> str:
    """Return the sentence about a batch system of an unknown kind or release.

    Args:
        what: says which it is and which are known.
        page: with the remedy.
    """
    return f"{what}: it is observed, and no pilot is started ({page})."


def load_batch_system(name: str, options: Mapping[str, Any]) -> BatchSystem:
    """Create the named batch system from its entry point.

    Raises:
        UsageError: BFT-1201, no such plug-in is installed.
        OptionError: invalid options, with the adapter's own code.
    """
    create = load_plugin(ENTRY_POINT_GROUP, name, what="batch system", code="BFT-1201")
    system: BatchSystem = create(dict(options))
    return system
