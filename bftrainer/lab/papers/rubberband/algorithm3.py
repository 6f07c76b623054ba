"""Which instance each GPU of a trial is on (section 4.4 of the paper, its Algorithm 3).

A trial that fits on an instance is whole on one, a larger one has whole instances first. Who has
what he is to have stays where he is, unless a larger one needs the place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Placement = Mapping[str, tuple[int, ...]]  # trial -> instance of each of its GPUs


def place(
    gpus: Mapping[str, int], last: Placement, instances: int, gpus_per_instance: int
) -> dict[str, tuple[int, ...]] | None:
    """Place all trials; None: they have more GPUs together than there are.

    Args:
        gpus: of each trial.
        last: the placement until now; its trials and instances may be gone.
        instances: 0, 1, ... are there.
        gpus_per_instance: the same for all.
    """
    if sum(gpus.values()) > instances * gpus_per_instance:
        return None
    placing = _Placing(gpus, gpus_per_instance, [gpus_per_instance] * instances)
    for trial, where in last.items():
        if gpus.get(trial) == len(where) and max(where, default=0) < instances:
            placing.put(trial, list(where))
    todo = set(gpus) - set(placing.at)
    while todo:
        trial = min(todo, key=lambda t: (-gpus[t], t))
        todo.remove(trial)
        todo |= placing.settle(trial)
    return {trial: tuple(where) for trial, where in placing.at.items()}


@dataclass(slots=True)
class _Placing:
    """A placement that is being made."""

    gpus: Mapping[str, int]
    size: int  # of an instance
    free: list[int]  # GPUs by instance
    at: dict[str, list[int]] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)  # placed in this round: they stay

    def put(self, trial: str, where: list[int]) -> None:
        """Put a trial on instances."""
        for one in where:
            self.free[one] -= 1
        self.at[trial] = where

    def settle(self, trial: str) -> set[str]:
        """Place a trial for good and return those that lost their place by it."""
        displaced: set[str] = set()
        where: list[int] = []
        while len(where) < self.gpus[trial]:
            unit = min(self.gpus[trial] - len(where), self.size)
            if max(self.free) < unit:
                displaced |= self._make_space(trial, unit)
            unit = min(unit, max(self.free))
            fits = [n for n, free in enumerate(self.free) if free >= unit]
            best = min(fits, key=lambda n: (self.free[n], n))
            self.free[best] -= unit
            where += [best] * unit
        self.at[trial] = where
        self.settled.add(trial)
        return displaced

    def _make_space(self, trial: str, unit: int) -> set[str]:
        """Displace smaller trials from the instance on which the fewest GPUs have to go."""
        plans = [self._would_go(n, trial, unit) for n in range(len(self.free))]
        possible = [(sum(self.gpus[t] for t in plan), plan) for plan in plans if plan is not None]
        going = min(possible, key=lambda one: one[0])[1] if possible else []
        for other in going:
            for instance in self.at.pop(other):
                self.free[instance] += 1
        return set(going)

    def _would_go(self, instance: int, trial: str, unit: int) -> list[str] | None:
        """Name smaller trials that would have to leave an instance; None: that is not enough."""
        movable = sorted(
            (t for t, where in self.at.items() if instance in where and self._is_movable(t, trial)),
            key=lambda t: (self.gpus[t], t),
        )
        free, going = self.free[instance], list[str]()
        for other in movable:
            if free >= unit:
                break
            free += self.at[other].count(instance)
            going.append(other)
        return going if free >= unit else None

    def _is_movable(self, other: str, trial: str) -> bool:
        return other not in self.settled and self.gpus[other] < self.gpus[trial]
