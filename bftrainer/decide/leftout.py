"""Trainers, jobs and nodes that decisions do without, because they fail on them.

Plain data, part of ``Memory``: found by ``surviving``, shown by ``status`` and ``explain``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass


class Kind(enum.StrEnum):
    """What is left out of a decision."""

    REQUEST = "request"  # of a job, which then asks for some nodes, whichever
    TRAINER = "trainer"
    JOB = "job"
    NODE = "node"
    POLICY = "policy"  # whoever is left out: nothing is allocated


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Who is left out, and why."""

    kind: Kind
    name: str  # id of a job or trainer, name of a node or policy
    reason: str  # a sentence
    since_s: float  # when it was last found to be at fault

    @property
    def key(self) -> str:
        """By which ``Memory`` knows it."""
        return f"{self.kind} {self.name}"


Known = Mapping[str, LeftOut]  # by key
WHAT_TO_DO = (
    "It gets no nodes, and the others are decided without it. It is tried again every minute;"
    " cancel it and submit it with other sizes, weight or curve."
)


def sentences(known: Known) -> tuple[str, ...]:
    """Say of each what decisions do without, and why."""
    return tuple(_sentence(one) for one in known.values())


def trouble(known: Known) -> str:
    """Say why nothing is allocated; "": something is."""
    policies = [one for one in known.values() if one.kind is Kind.POLICY]
    return _sentence(policies[0]) if policies else ""


def why_left_out(trainer_id: str, known: Known) -> tuple[str, ...]:
    """Say why a trainer gets no nodes and what to do; nothing where decisions know it."""
    one = known.get(f"{Kind.TRAINER} {trainer_id}")
    if one is None:
        return ()
    return _sentence(one), WHAT_TO_DO


def _sentence(one: LeftOut) -> str:
    match one.kind:
        case Kind.TRAINER:
            return f"BFT-2116: decisions fail on trainer {one.name} and leave it out. {one.reason}"
        case Kind.REQUEST:
            who = f"what job {one.name} asks for, and give back any nodes of its number"
        case Kind.JOB | Kind.NODE:
            who = f"{one.kind} {one.name} and leave it out"
        case Kind.POLICY:
            return f"BFT-2118: policy {one.name} gives no usable answer. {one.reason}"
    return f"BFT-2117: decisions fail on {who}. {one.reason}"
