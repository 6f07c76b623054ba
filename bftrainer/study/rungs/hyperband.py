"""The rule ``hyperband``: brackets of successive halving (Li et al. 2017, Algorithm 1).

Bracket i of 0 .. s_max, with s = s_max - i, starts ceil((s_max + 1) / (s + 1) * eta**s) trials with
the budget most / eta**s. With more trials than these the brackets are repeated; the last one has
what is left. A bracket starts as soon as those before it leave room. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bftrainer.study.ladder import Rung, require
from bftrainer.study.rungs.sha import halve
from bftrainer.study.trials import Start, StudyTrial, Verdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyperband:
    """Brackets from many short trials to few full ones."""

    trials: int = 0  # in all brackets; 0: one pass
    least: int = 1
    most: int
    eta: int = 3

    def __post_init__(self) -> None:
        require(trials=(self.trials, 0))
        require(least=(self.least, 1), most=(self.most, self.least), eta=(self.eta, 2))

    @property
    def wanted(self) -> int:
        """Trials that it starts."""
        return sum(rungs[0].trials for rungs in self.brackets())

    def brackets(self) -> tuple[tuple[Rung, ...], ...]:
        """Return the rungs of each bracket, in the order in which they start."""
        s_max = 0
        while self.least * self.eta ** (s_max + 1) <= self.most:
            s_max += 1
        began = [-(-(s_max + 1) * self.eta**s // (s + 1)) for s in range(s_max, -1, -1)]
        left = self.trials or sum(began)
        brackets: list[tuple[Rung, ...]] = []
        while left > 0:
            index = len(brackets) % len(began)
            brackets.append(self._rungs(s_max - index, min(began[index], left)))
            left -= began[index]
        return tuple(brackets)

    def verdicts(self, trials: Sequence[StudyTrial], room: int) -> Verdicts:
        """Judge each bracket by itself; earlier ones take the room first."""
        grow: dict[int, int] = {}
        stop: dict[int, str] = {}
        start: list[Start] = []
        is_over = True
        own = defaultdict[int, list[StudyTrial]](list)
        for trial in trials:
            own[trial.bracket].append(trial)
        for bracket, rungs in enumerate(self.brackets()):
            left = room - len(grow) - len(start)
            found = halve(own[bracket], rungs, self.eta, left, bracket)
            grow |= found.grow
            stop |= found.stop
            start += found.start
            is_over = is_over and found.is_over
        return Verdicts(grow=grow, stop=stop, start=tuple(start), is_over=is_over)

    def describe(self) -> Mapping[str, Any]:
        """Return name and settings."""
        return {"name": "hyperband", **asdict(self)}

    def _rungs(self, s: int, began: int) -> tuple[Rung, ...]:
        """Return floor(began / eta**k) trials with the budget most / eta**(s - k), k = 0 .. s."""
        return tuple(
            Rung(trials=began // self.eta**k, budget=self.most // self.eta ** (s - k))
            for k in range(s + 1)
        )
