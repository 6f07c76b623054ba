"""Plain data of ``bftrainer account`` and of the document ``/v1/account``.

``bftrainer.daemon.accounting`` makes it, the API transfers it, the command line prints it. Imports
nothing that would slow down a verb's start.
"""

from __future__ import annotations

from dataclasses import dataclass

COLUMNS = ("user", "account", "trainer", "day")  # by which lines can be told apart


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTime:
    """What became of the time of nodes; node-seconds, and numbers of pilots."""

    trained_s: float = 0.0  # forward
    redone_s: float = 0.0  # until a trainer was again as far as it once had been
    warm_up_s: float = 0.0  # from a pilot's start, or a new trainer, until its worker trained
    idle_s: float = 0.0  # without a trainer
    returned_s: float = 0.0  # what ordinary jobs' nodes still had of their pilots' time limits
    pilots: int = 0  # ended
    given_back: int = 0  # of these: by us, for an ordinary job
    preempted: int = 0  # by the batch system, for one

    @property
    def lost_s(self) -> float:
        """What was harvested and did not bring a trainer forward."""
        return self.redone_s + self.warm_up_s + self.idle_s

    @property
    def harvested_s(self) -> float:
        """The time of pilots from start to end, as the batch system's accounting has it."""
        return self.trained_s + self.lost_s

    def __add__(self, other: NodeTime) -> NodeTime:
        """Add each figure."""
        return NodeTime(
            trained_s=self.trained_s + other.trained_s,
            redone_s=self.redone_s + other.redone_s,
            warm_up_s=self.warm_up_s + other.warm_up_s,
            idle_s=self.idle_s + other.idle_s,
            returned_s=self.returned_s + other.returned_s,
            pilots=self.pilots + other.pilots,
            given_back=self.given_back + other.given_back,
            preempted=self.preempted + other.preempted,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Whose:
    """Whose time it was, on what, on which day."""

    day: str  # of the site, "2026-11-24"
    user: str = ""  # "": nobody's: a pilot that never had a trainer
    account: str = ""  # "": the user's default
    trainer_id: str = ""  # "": several, or nobody's
    node_type: str = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a report is to show."""

    by: tuple[str, ...] = ("user",)  # of ``COLUMNS``
    since: str = ""  # first day; "": the first that is known
    until: str = ""  # last day; "": today
    user: str = ""  # only his rows; "": everybody's


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountLine:
    """A line of the report; what it does not tell apart is ""."""

    user: str = ""
    account: str = ""
    trainer: str = ""
    day: str = ""
    harvested_h: float = 0.0  # node-hours, of which were lost:
    lost_h: float = 0.0
    redone_h: float = 0.0
    warm_up_h: float = 0.0
    idle_h: float = 0.0
    given_back_h: float = 0.0  # to ordinary jobs: what was left of the pilots' time limits
    pilots: int = 0
    pilots_given_back: int = 0
    pilots_preempted: int = 0
    energy_kwh: float | None = None  # estimate; None: the policy does not say what nodes draw


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountReport:
    """Who used what, from one day to another."""

    by: tuple[str, ...]  # of ``COLUMNS``
    since: str  # first day
    until: str  # last day
    complete_since_s: float  # nothing is known of the time before
    counted_until_s: float
    lines: tuple[AccountLine, ...]
    total: AccountLine
    user: str = ""  # whose rows these are; "": everybody's
