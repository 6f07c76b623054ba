"""Section 7.4: a job that grows by one worker at a time, every 4th of which is slow.

Stragglers are found by the daemon's own detector (``decide.throughput.stragglers``), asked every
10 steps; one leaves when the worker that replaces it joins.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bftrainer.decide.throughput.stragglers import Field, entered, record_report
from bftrainer.lab.papers.elasticity.simulator import (
    BATCH,
    COMPUTE_S,
    EPOCH_OF_CIFAR,
    EVERY_STEPS,
    wait_s,
)

STEPS = 100 * EPOCH_OF_CIFAR // BATCH + 1
START, EVERY_SLOW, MOST_SLOW = 4, 4, 10  # workers at first; every 4th is slow, up to 10
BOOT_S, JOIN_S = (60.0, 120.0), 3.179
THRESHOLD = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowedOutcome:
    """The result of the job."""

    completion_s: float
    lives_s: tuple[float, ...]  # of stragglers that were replaced
    workers: int  # at the end


@dataclass(frozen=True, slots=True, kw_only=True)
class _Coming:
    ready_s: float
    name: str
    slowdown: float
    replaces: str = ""  # empty: nobody


@dataclass(slots=True, kw_only=True)
class SlowedJob:
    """The job so far."""

    slowdown: float
    replaces: bool
    chance: np.random.Generator
    now_s: float = 0.0
    spawned: int = 0
    at_size: int = 0  # steps
    slow_of: dict[str, float] = field(default_factory=dict)  # by worker
    joined_s: dict[str, float] = field(default_factory=dict)
    coming: list[_Coming] = field(default_factory=list)
    lives_s: list[float] = field(default_factory=list)
    found: Field = field(default_factory=Field)

    def run(self) -> SlowedOutcome:
        """Train to the end."""
        self.slow_of = {f"first-{i}": 1.0 for i in range(START)}
        for step in range(STEPS):
            self._train()
            if self.replaces and step % EVERY_STEPS == 0:
                self._replace()
            self._spawn()
            for one in [one for one in self.coming if one.ready_s <= self.now_s]:
                self._join(one)
        return SlowedOutcome(
            completion_s=self.now_s, lives_s=tuple(self.lives_s), workers=len(self.slow_of)
        )

    def _train(self) -> None:
        count = len(self.slow_of)
        own_s = {name: COMPUTE_S / count * slow for name, slow in self.slow_of.items()}
        self.now_s += max(own_s.values()) + wait_s(count)
        self.at_size += 1
        if not self.replaces or max(self.slow_of.values()) == 1.0:
            return  # nobody to be found
        for name, seconds in own_s.items():
            self.found = record_report(
                self.found,
                name,
                generation=self.found.generation,
                own_s=seconds,
                share=BATCH // count,
                threshold=THRESHOLD,
            )

    def _replace(self) -> None:
        named = {one.replaces for one in self.coming}
        for name in sorted(self.found.slow().keys() - named):
            new = f"{name}'"
            self.coming.append(
                _Coming(ready_s=self._boot_s(), name=new, slowdown=1.0, replaces=name)
            )

    def _spawn(self) -> None:
        is_growing = any(not one.replaces for one in self.coming)
        if is_growing or self.at_size < EVERY_STEPS or self.spawned >= EVERY_SLOW * MOST_SLOW:
            return
        self.spawned += 1
        slowdown = self.slowdown if self.spawned % EVERY_SLOW == 0 else 1.0
        name = f"new-{self.spawned}"
        self.coming.append(_Coming(ready_s=self._boot_s(), name=name, slowdown=slowdown))

    def _boot_s(self) -> float:
        return self.now_s + float(self.chance.uniform(*BOOT_S))

    def _join(self, one: _Coming) -> None:
        self.coming.remove(one)
        self.now_s += JOIN_S
        self.slow_of[one.name] = one.slowdown
        self.joined_s[one.name] = self.now_s
        if one.replaces:
            del self.slow_of[one.replaces]
            self.lives_s.append(self.now_s - self.joined_s[one.replaces])
        else:
            self.at_size = 0
        self.found = entered(self.found, self.found.generation + 1, list(self.slow_of))
