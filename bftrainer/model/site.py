"""Plain data on a site: findings of ``doctor``, files to install, limits of a user's own daemon.

Adapters make findings (``BatchSystem.findings``); ``bftrainer doctor`` prints them and the daemon
logs them at start. The limits of a user's own daemon are made by the batch system's plug-in
(``bftrainer.site.own.plan``) and used by ``bftrainer up``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from bftrainer.model.parts import Lend


class Weight(enum.StrEnum):
    """The parties that a finding affects, worst first."""

    STOP = "stop"  # we get no node
    HARM = "harm"  # ordinary jobs
    UNKNOWN = "unknown"  # could not be checked: perhaps ordinary jobs
    LOSS = "loss"  # we get fewer nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class GapTrial:
    """What other settings would have lent of the idle time, at most."""

    min_gap_s: float
    gap_margin_s: float
    more_node_h: float  # than with the settings in force
    more_pilots: int  # for that: each is a node more to give back


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortGaps:
    """The idle time in gaps that are too short to be lent (``bftrainer.decide.short_gaps``)."""

    hours: float  # observed
    idle_node_h: float
    near_node_h: float  # of it, in such gaps
    min_gap_s: float  # in force, and the next one, too
    gap_margin_s: float
    trials: tuple[GapTrial, ...]
    cycle_s: float | None = None  # of the scheduler; None: a trace does not tell

    @property
    def near_share(self) -> float:
        """Return the share of the idle node-time."""
        return self.near_node_h / self.idle_node_h if self.idle_node_h else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Values that a daemon has measured here and uses; None: none yet, or no daemon."""

    end_s: float | None = None  # from a pilot's cancel request until its node is usable
    start_s: float | None = None  # from a pilot's start until its agent connected
    promise_s: float = 1.0  # promised time until a released node is free
    max_nodes: int | None = None  # the policy's limit of nodes at once; None: there is none
    t_fwd_s: float | None = None  # in force: how far decisions look ahead
    rescale_s: float | None = None  # the longest pause of a rescale of a trainer that has not ended
    short_gaps: ShortGaps | None = None  # since the daemon's start


NOTHING = Measured()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One setting that should be changed."""

    code: str  # stable
    weight: Weight
    setting: str  # as the batch system writes it, with its value
    cost: str  # one sentence; figures in it are measured
    remedy: str  # the line to change; further lines are to be copied as they are
    command: str = ""  # to type next; "": that which explains the code


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStep:
    """One step of a trial of the batch system's release."""

    what: str
    seen: str  # or why it failed
    is_passed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseTrial:
    """What a release of the batch system did on one node."""

    release: str
    accept: str  # line of the policy that accepts it; "": it is known
    steps: tuple[TrialStep, ...]  # up to the first that failed

    @property
    def is_passed(self) -> bool:
        """Whether all steps passed."""
        return all(step.is_passed for step in self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFile:
    """One file, and what the administrator does with it."""

    name: str  # without a directory
    text: str
    about: str  # one line: where it belongs
    is_executable: bool = False
    path: str = ""  # where it is installed as it is; "": it is merged into another file, or read
    without: str = ""  # what happens where it is missing; "": that shows otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The options of ``bftrainer up``; "" and None: the site's default."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    max_nodes: int | None = None
    time_limit_s: float | None = None  # of a pilot
    job_partition: str = ""  # of the daemon's own job
    preamble: str = ""  # path of the shell file under which agents run
    is_as_job: bool = False  # the daemon runs in a job of its own
    lend: Lend = Lend.AUTO  # what pilots hold
    network: str = ""  # that daemon, agents and workers use alone; "": any
    ports: str = ""  # that they listen on alone; "": any
    sbatch_options: tuple[str, ...] = ()  # further ones for pilots, as the batch system takes them


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLimit:
    """A limit of the site on what one user may have, in nodes of the partition."""

    n_nodes: int
    words: str  # whose limit, and as the batch system writes it


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnSite:
    """A partition whose jobs can be preempted, as one user may use it."""

    cluster: str
    partition: str
    n_nodes: int
    n_floor: int = 0  # nodes of the user's own allocation, beside those
    preemption: str  # as the batch system calls it, e.g. REQUEUE
    about_preemption: tuple[str, ...] = ()  # what that means for pilots, a sentence each
    grace_s: float = 0.0  # between the notice of a preemption and the end
    time_limit_s: float | None = None  # longest of a job; None: none
    time_limit_words: str = ""  # where that limit is from
    limits: tuple[NodeLimit, ...] = ()
    unread: tuple[str, ...] = ()  # what could not be read, a sentence each
    batch_options: Mapping[str, object] = field(default_factory=dict)  # for the daemon


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonJob:
    """The batch job in which a user's own daemon runs."""

    job_id: str
    state: str  # as the batch system calls it, in small letters: pending, running
    reason: str = ""  # why it is pending
    node: str = ""
