"""What a policy is, and how one is found by name.

Takes a name from the administrator's policy file, returns the object that an installed
package declares for it in the entry point group ``bftrainer.policies``.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from bftrainer.errors import UsageError
from bftrainer.plugins import load_plugin, plugin_names
from milp.problem import Allocation, Problem

ENTRY_POINT_GROUP = "bftrainer.policies"


@runtime_checkable
class Policy(Protocol):
    """Turns a problem into an allocation; pure and deterministic.

    Every allocation keeps the problem's rules (``milp.check.find_violations`` finds
    none), whatever it aims at.
    """

    @property
    def name(self) -> str:
        """The name users choose it by."""

    def allocate(self, problem: Problem) -> Allocation:
        """Decide who gets which node.

        Raises:
            milp.errors.ProblemError: the problem is malformed.
        """


def policy_names() -> list[str]:
    """Names of all installed policies, sorted."""
    return plugin_names(ENTRY_POINT_GROUP)


def load_policy(name: str) -> Policy:
    """Load a policy by its name.

    Raises:
        UsageError: BFT-3050, no installed package declares that name; BFT-3051, what it
            declares is no policy.
    """
    policy = load_plugin(ENTRY_POINT_GROUP, name, what="policy", code="BFT-3050")
    if not isinstance(policy, Policy):
        raise UsageError(
            "BFT-3051",
            f"The policy {name} has no name and allocate.",
            "Correct the package that declares it, or choose another policy.",
        )
    return policy
