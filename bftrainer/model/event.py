"""Changes that call for a decision, and the situation in which they are found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The state that decisions react to, as sets of names."""

    usable: frozenset[str]  # nodes idle or held
    pending: frozenset[str]  # pending ordinary jobs
    trainers: frozenset[str]  # trainers that are not final
    held: frozenset[str]  # pilots with a connected agent


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A change of pool, queue or trainers."""

    at_s: float
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    jobs_arrived: tuple[str, ...] = ()
    jobs_gone: tuple[str, ...] = ()
    trainers_arrived: tuple[str, ...] = ()
    trainers_gone: tuple[str, ...] = ()
    agents_arrived: tuple[str, ...] = ()
    agents_gone: tuple[str, ...] = ()
