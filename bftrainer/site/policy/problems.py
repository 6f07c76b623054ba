"""What is wrong with a policy file, with line and column; all of it at once.

``document`` and ``load`` collect problems; ``PolicyErrors`` carries them to the user.

Codes: BFT-2101 unreadable · 2102 not a regular file · 2103 writable by everyone ·
2104 too large · 2105 not text · 2106 not YAML · 2107 tab · 2108 anchor, alias or tag ·
2109 key twice · 2110 unknown key · 2111 wrong type · 2112 out of bounds ·
2113 contradiction · 2114 unknown plug-in · 2115 not one mapping.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from bftrainer.model.errors import BftError, ExitCode

MAX_PROBLEMS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyProblem:
    """One thing wrong with one place of the file."""

    code: str
    line: int  # from 1; 0: the file as a whole
    column: int
    cause: str
    next_step: str
    path: Path | None = None  # of its file; None: whoever has the problem knows

    def render(self, path: Path) -> str:
        """Return ``file:line:col: code: cause next step``; ``path``: if it has none."""
        path = self.path or path
        place = f"{path}:{self.line}:{self.column}" if self.line else str(path)
        return f"{place}: {self.code}: {self.cause} {self.next_step}"


class PolicyErrors(BftError):  # noqa: N818 - it carries several
    """A policy file that cannot be used; ``problems`` says where and why."""

    WHAT: ClassVar = "policy"
    SEVERAL: ClassVar = "BFT-2100"  # the code if there are several
    CHECK: ClassVar = "bftrainer policy check {path}"  # looks at the file again

    def __init__(self, path: Path, problems: Sequence[PolicyProblem]) -> None:
        ordered = sorted(problems, key=lambda each: (str(each.path or ""), each.line, each.column))
        self.path = path
        self.problems = tuple(ordered[:MAX_PROBLEMS])
        first = self.problems[0]
        if len(self.problems) == 1:
            where = first.path or path
            place = f"{where}:{first.line}:{first.column}" if first.line else str(where)
            code, cause, next_step = first.code, f"{place}: {first.cause}", first.next_step
        else:
            lines = "".join(f"\n  {problem.render(path)}" for problem in self.problems)
            code = self.SEVERAL
            count = len(ordered) if len(ordered) <= MAX_PROBLEMS else f"more than {MAX_PROBLEMS}"
            cause = f"The {self.WHAT} {path} has {count} problems.{lines}\n"
            next_step = f"Correct them, then: {self.CHECK.format(path=path)}"
        super().__init__(code, cause, next_step, exit_code=ExitCode.VALIDATION_FAILED)

    def cause_lines(self) -> Sequence[str]:
        """Return a line for each problem, if there are several."""
        return self.cause.rstrip().split("\n")


def nearest(name: str, known: Sequence[str], otherwise: str) -> str:
    """Return a question for the known name that may be meant, ``otherwise`` if none is near."""
    spelled = name[:80].lower().replace("-", "_") if "_" in "".join(known) else name[:80].lower()
    close = difflib.get_close_matches(spelled, known, n=1, cutoff=0.6)
    return f"Did you mean {close[0]}?" if close else otherwise
