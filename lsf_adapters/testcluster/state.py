"""The state of the stand-in's server: jobs, hosts and queues, as plain data.

``batch`` changes it, ``scheduler`` and the ``show_`` modules read it, ``store`` keeps the jobs in
a file.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Self

PENDING = frozenset({"PEND", "PSUSP"})
STARTED = frozenset({"RUN", "USUSP", "SSUSP", "UNKWN"})  # they hold slots
FINISHED = frozenset({"DONE", "EXIT"})
SUSPENDED = frozenset({"USUSP", "SSUSP", "PSUSP"})


@dataclass(slots=True, kw_only=True)
class Job:
    """One job or element of an array; mutable, as the server follows its life."""

    # What was asked for.
    id: int
    index: int = 0  # of an array's element
    name: str = ""  # as shown
    is_named: bool = False
    array_spec: str = ""  # "name[1-3]"
    user: str = ""
    uid: int = 0
    gid: int = 0
    home: str = "/"
    queue: str = ""
    is_default_queue: bool = False
    project: str = "default"
    command: str = ""
    login_shell: str = ""  # -L
    min_slots: int = 1
    max_slots: int = 1
    ptile: int = 0  # span[ptile=k]
    is_one_host: bool = False  # span[hosts=1]
    res_req: str = ""
    ask_hosts: list[str] = field(default_factory=list)
    is_exclusive: bool = False
    gpus: int = 0  # per host
    limit_s: float | None = None  # -W, or the queue's default
    begin_s: float | None = None
    term_s: float | None = None
    dependency: str = ""
    is_held: bool = False  # submitted with -H
    is_rerunnable: bool = False
    output: str = ""
    error: str = ""
    input: str = ""
    cwd: str = "/"
    umask: int = 0o022
    submit_s: float = 0.0
    # What became of it.
    state: str = "PEND"
    stop_reason: str = ""  # of SSUSP: preempt, or resume if it will go on
    hosts: list[str] = field(default_factory=list)  # one per slot
    start_s: float | None = None
    end_s: float | None = None
    finish_order: int = 0
    pid: int = 0  # session and process group of the job
    wrapper_pid: int = 0
    wrapper_ticks: int = 0  # start of the wrapper, so that its id is not taken for another's
    exit_code: int | None = None
    exit_reason: str = ""
    is_backfilled: bool = False
    was_preempted: int = 0
    preempted_by: str = ""  # key of the job that gets these slots
    reserved: list[str] = field(default_factory=list)
    reserved_s: float | None = None
    estimate_s: float | None = None
    plan_hosts: list[str] = field(default_factory=list)
    ended_at_s: float | None = None  # its process was seen to be gone, the end is not known yet
    ladder: list[str] = field(default_factory=list)  # signals still to be sent
    ladder_s: float = 0.0  # when the next one is due
    start_fails_s: float | None = None  # it will wait again then: its host did not start it
    is_over_limit: bool = False
    is_killed: bool = False
    pending_reasons: list[list[str]] = field(default_factory=list)  # [text, host, ...]

    @property
    def key(self) -> str:
        """The unique key of the job: "7" or "7[2]"."""
        return f"{self.id}[{self.index}]" if self.index else str(self.id)

    @property
    def is_pending(self) -> bool:
        """Return whether it has not started."""
        return self.state in PENDING

    @property
    def holds_slots(self) -> bool:
        """Return whether it occupies slots of its hosts."""
        return self.state in STARTED

    @property
    def is_finished(self) -> bool:
        """Return whether it has ended."""
        return self.state in FINISHED

    @property
    def is_parallel(self) -> bool:
        """Return whether it has more than one slot."""
        return max(self.max_slots, len(self.hosts)) > 1

    def to_values(self) -> dict[str, Any]:
        """Return what ``store`` writes."""
        return dataclasses.asdict(self)

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> Self:
        """Return the job that ``to_values`` described."""
        return cls(**values)


@dataclass(slots=True, kw_only=True)
class Host:
    """One host."""

    name: str
    slots: int
    gpus: int = 0
    is_closed: bool = False
    comment: str = ""
    lim_dead_s: float | None = None  # since when
    sbatchd_dead_s: float | None = None
    back_s: float | None = None  # from when on it is ok again
    failing_starts: int = 0  # so many starts fail, as where sbatchd answers too late
    locked_until_s: float = 0.0  # its lim still says lockU

    @property
    def is_reachable(self) -> bool:
        """Return whether its sbatchd and lim are alive."""
        return self.sbatchd_dead_s is None and self.lim_dead_s is None


@dataclass(slots=True, kw_only=True)
class QueueState:
    """The switches of a queue that an administrator may change."""

    is_open: bool = True
    is_active: bool = True
