"""The sharing of nodes among users and accounts, and times when none are lent. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from milp.portable import exp2

OTHERS = "*"  # in a limit by name: everybody who is not named


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Most nodes at once, by name; ``OTHERS``: of each that is not named."""

    # Left out of the hash, as all mappings: ``Settings`` objects are cache keys.
    by_user: Mapping[str, int] = field(default_factory=dict, hash=False)
    by_account: Mapping[str, int] = field(default_factory=dict, hash=False)
    by_partition: Mapping[str, int] = field(default_factory=dict, hash=False)
    by_type: Mapping[str, int] = field(default_factory=dict, hash=False)
    share_of_idle: float = 1.0  # of each type

    @property
    def is_of_groups(self) -> bool:
        """Return whether several trainers may share a limit."""
        return bool(self.by_user or self.by_account)

    @property
    def is_of_nodes(self) -> bool:
        """Return whether the nodes of some partition or type are limited."""
        return bool(self.by_partition or self.by_type)


def limit_of(limits: Mapping[str, int], name: str) -> int | None:
    """Return the limit of a name; None: none."""
    return limits.get(name, limits.get(OTHERS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Blackout:
    """A time in which no nodes are lent."""

    begin_s: float
    end_s: float
    name: str  # as the policy says it


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """A sum that decays, as of a moment."""

    amount: float
    at_s: float

    def now(self, now_s: float, half_life_s: float) -> float:
        """Return what is left of it."""
        return self.amount * exp2(-max(0.0, now_s - self.at_s) / half_life_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A user or trainer without nodes though it could run, or one that has waited long."""

    since_s: float
    turn_ends_s: float | None = None  # until then nobody comes before it; None: it waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Node time harvested by user and account, decayed; empty while there is no fair share."""

    at_s: float | None = None  # until when it is counted
    node_s: Mapping[str, Mapping[str, Used]] = field(default_factory=dict)  # account -> user
    waits: Mapping[str, Mapping[str, Wait]] = field(default_factory=dict)  # account -> user
    busy_s: Used = field(default_factory=lambda: Used(amount=0.0, at_s=0.0))  # anybody trained
