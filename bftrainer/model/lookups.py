"""Rows by what is theirs alone: nodes by their names, trainers, pilots and jobs by their ids.

Of rows that share a key the last one counts, as in any dictionary.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar


class _WithName(Protocol):
    @property
    def name(self) -> str: ...


class _WithNode(Protocol):
    @property
    def node(self) -> str: ...


class _WithJob(Protocol):
    @property
    def job_id(self) -> str: ...


class _WithPilot(Protocol):
    @property
    def pilot_id(self) -> str: ...


class _WithTrainer(Protocol):
    @property
    def trainer_id(self) -> str: ...


_Named = TypeVar("_Named", bound=_WithName)
_Placed = TypeVar("_Placed", bound=_WithNode)
_OfJob = TypeVar("_OfJob", bound=_WithJob)
_OfPilot = TypeVar("_OfPilot", bound=_WithPilot)
_OfTrainer = TypeVar("_OfTrainer", bound=_WithTrainer)


def by_name(rows: Iterable[_Named]) -> dict[str, _Named]:
    """Return the rows by their names."""
    return {row.name: row for row in rows}


def by_node(rows: Iterable[_Placed]) -> dict[str, _Placed]:
    """Return the rows by the node of each."""
    return {row.node: row for row in rows}


def by_job(rows: Iterable[_OfJob]) -> dict[str, _OfJob]:
    """Return the rows by their ``job_id``."""
    return {row.job_id: row for row in rows}


def by_pilot(rows: Iterable[_OfPilot]) -> dict[str, _OfPilot]:
    """Return the rows by their ``pilot_id``."""
    return {row.pilot_id: row for row in rows}


def by_trainer(rows: Iterable[_OfTrainer]) -> dict[str, _OfTrainer]:
    """Return the rows by their ``trainer_id``."""
    return {row.trainer_id: row for row in rows}
