"""The errors of milp and of its checker, with stable codes in the range 30xx.

Raised by the modules of this package, turned into user-facing errors by callers.
"""

from __future__ import annotations


class ProblemError(Exception):
    """A problem that cannot be solved as stated: code, one-sentence cause, next step.

    ``trainer_id`` and ``node`` name the one at fault, where it is a trainer or a node.
    """

    def __init__(
        self, code: str, cause: str, next_step: str, *, trainer_id: str = "", node: str = ""
    ) -> None:
        super().__init__(f"{code}: {cause} {next_step}")
        self.code = code
        self.cause = cause
        self.next_step = next_step
        self.trainer_id = trainer_id
        self.node = node


class CheckFailed(Exception):  # noqa: N818 - says what happened: the check failed
    """An allocation that breaks its problem's rules; ``violations`` names every one."""

    def __init__(self, violations: tuple[str, ...]) -> None:
        super().__init__("BFT-3090: the allocation is not valid: " + "; ".join(violations))
        self.code = "BFT-3090"
        self.violations = violations
