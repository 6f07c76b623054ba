"""The question to constraints on the pool, and their answer. Plain data, and pure.

The pool itself and all that the decision depends on are in the question, so that such a constraint
may go by anything that the decision knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TypeAlias

from bftrainer.decide.constraints.chain import Constraint
from bftrainer.decide.policies.base import AllocationPolicy, Decided
from bftrainer.decide.problem import of_pool
from bftrainer.model.decision import DecisionInput, Memory, Pool
from milp.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The pool that is to be allocated, and what the decision depends on."""

    given: DecisionInput
    memory: Memory  # with what this decision has observed
    pool: Pool
    policy: AllocationPolicy | None  # None: every trainer keeps its nodes
    names: AbstractSet[str]  # the nodes of the pool that trainers may have
    kept_nodes: Mapping[str, str] = field(
        default_factory=dict
    )  # of them: node -> trainer that keeps it

    def problem(self) -> Problem | None:
        """State the allocation problem of what nobody keeps; ``None``: nothing to allocate."""
        names = self.names - self.kept_nodes.keys()
        return of_pool(self.given, self.memory, self.pool, self.policy, names, self.kept_nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """The answer to an offer."""

    assignment: Mapping[str, str]  # node -> trainer
    memory: Memory
    decided: Decided | None = None  # the policy's answer; None: it was not asked
    swaps: Mapping[str, str] = field(default_factory=dict)  # node of another user -> trainer


AskOffer: TypeAlias = Callable[[Offer], Settlement]
OnPool: TypeAlias = Constraint[Offer, Settlement]
