"""What a policy is, and how one is found by name.

Takes a name from the administrator's policy file, returns the object that an installed
package declares for it in the entry point group ``bftrainer.policies``.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Protocol, runtime_checkable

from bftrainer.errors import UsageError
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
    return sorted({entry.name for entry in entry_points(group=ENTRY_POINT_GROUP)})


def load_policy(name: str) -> Policy:
    """Load a policy by its name.

    Raises:
        UsageError: no installed package declares that name, or what it declares is no
            policy.
    """
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        if entry.name != name:
            continue
        policy = entry.load()
        if not isinstance(policy, Policy):
            raise UsageError(
                "BFT-3051",
                f"The policy {name} ({entry.value}) has no name and allocate.",
                "Correct the package that declares it, or choose another policy.",
            )
        return policy
    raise UsageError(
        "BFT-3050",
        f"There is no policy called {name!r}.",
        f"Choose one of: {', '.join(policy_names())}.",
    )
