"""Durations in a physical replay, in seconds, and slow nodes.

``measured.json`` is what ``scripts/bench_rescale.py --json`` writes.

A share of the trace's nodes, drawn once by the seed, reaches only a fraction of the usual
throughput. A trainer is as fast as its slowest node; a slow node is detected after its trainer
has trained with other nodes for a while. Used by ``physical`` and ``session``.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from statistics import mean
from typing import Any

from bftrainer.decide.throughput.stragglers import ALPHA
from bftrainer.model.errors import UsageError


@dataclass(frozen=True, slots=True)
class Quantity:
    """A duration in seconds: one value, or one drawn from measured values."""

    values_s: tuple[float, ...]

    def draw_s(self, chance: random.Random) -> float:
        """Return one duration."""
        return self.values_s[0] if len(self.values_s) == 1 else chance.choice(self.values_s)

    @property
    def mean_s(self) -> float:
        """Return the mean duration, which decisions use."""
        return mean(self.values_s)

    def __str__(self) -> str:
        """Return it in words."""
        if len(self.values_s) == 1:
            return f"{self.mean_s:g} s"
        return f"{self.mean_s:.3g} s (mean of {len(self.values_s)} measured)"


def constant(value_s: float) -> Quantity:
    """Return a duration that is always the same."""
    return Quantity((value_s,))


FREE = constant(0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhysicalCosts:
    """Durations of the effects of a decision; none has one unless given."""

    detection: Quantity = FREE  # change of the pool -> the daemon sees it
    claim: Quantity = FREE  # pilot requested -> its agent is connected
    warm_up: Quantity = FREE  # node given to a trainer -> its worker can join
    pause_up: Quantity = FREE  # pause of the members when others join
    pause_down: Quantity = FREE  # pause of the others when members leave
    pause_loss: Quantity = FREE  # the same when they are lost without notice
    checkpoint_interval: Quantity = FREE  # losing all nodes costs half of it on average
    resume: Quantity = FREE  # reading the checkpoint when coming from size 0

    def by_name(self) -> dict[str, list[float]]:
        """Return the durations in seconds, as a file may have them."""
        return {one.name: list(getattr(self, one.name).values_s) for one in fields(self)}

    def __str__(self) -> str:
        """Return them in words."""
        return ", ".join(f"{one.name} {getattr(self, one.name)}" for one in fields(self))


# The pauses are the limits of scripts/bench_rescale.py with 200 MB of state (docs/results.md);
# measured pauses are shorter. Detection is half a poll interval
# of 1 s. Claim: half of Slurm's default backfill interval of 30 s, and 5 s for the pilot.
# Checkpoints: a quarter of a trainer's default (ADR 23). Warm-up and resume depend on the
# user's script.
MEASURED = PhysicalCosts(
    detection=constant(0.5),
    claim=constant(20.0),
    warm_up=constant(5.0),
    pause_up=constant(0.3),
    pause_down=constant(0.1),
    pause_loss=constant(0.5),
    checkpoint_interval=constant(15.0),
    resume=constant(2.0),
)


def costs_from_mapping(
    data: Mapping[str, Any], where: str, base: PhysicalCosts = MEASURED
) -> PhysicalCosts:
    """Read durations by name: a number, or a list of measured ones; the others are ``base``'s.

    Raises:
        UsageError: BFT-4101 for an unknown name, BFT-4102 for what is not a duration.
    """
    known = {f.name for f in fields(PhysicalCosts)}
    found: dict[str, Quantity] = {}
    for name, value in data.items():
        key = name.removesuffix("_s")
        if key not in known:
            raise UsageError(
                "BFT-4101",
                f"{where}: unknown cost {name!r}.",
                f"Choose from {', '.join(sorted(known))}.",
            )
        values = value if isinstance(value, list) else [value]
        if not values or not all(_is_duration(v) for v in values):
            raise UsageError(
                "BFT-4102",
                f"{where}: {name} is not a number of seconds, nor a list of them.",
                "Give seconds >= 0.",
            )
        found[key] = Quantity(tuple(map(float, values)))
    return replace(base, **found)


def _is_duration(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9


# transition in the benchmark's file -> the duration it measures
_OF_TRANSITION = {
    "1->2": "pause_up",
    "2->4": "pause_up",
    "4->2": "pause_down",
    "rank 0 leaves": "pause_down",
    "SIGKILL": "pause_loss",
}


def costs_from_file(path: Path) -> PhysicalCosts:
    """Read a file of durations, or what ``bench_rescale.py --json`` wrote (its big model).

    Raises:
        UsageError: BFT-4103, the file cannot be read; BFT-4101 and BFT-4102 as above.
    """
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as problem:
        raise UsageError(
            "BFT-4103", f"{path} cannot be read: {problem}.", "Give a JSON file of durations."
        ) from problem
    if not isinstance(data, dict):
        raise UsageError("BFT-4102", f"{path} is not a JSON object.", 'Write e.g. {"claim_s": 20}.')
    if data.get("benchmark") != "rescale":
        return costs_from_mapping(data, str(path))
    models = data.get("models", {})
    model: Mapping[str, Any] = models.get("big", models.get("small", {}))
    pauses: Sequence[Mapping[str, Any]] = model.get("pauses", [])
    found: dict[str, list[float]] = {}
    if warm_up := model.get("warm_up_s"):
        found["warm_up"] = list(map(float, warm_up))
    for pause in pauses:
        if name := _OF_TRANSITION.get(str(pause.get("kind"))):
            found.setdefault(name, []).append(max(0.0, float(pause["pause_s"])))
    return costs_from_mapping(found, str(path))


def chosen_costs(path: Path | None, given: Sequence[str]) -> PhysicalCosts:
    """Return ``MEASURED``, but what a file names, but what is given as ``NAME=SECONDS``.

    Raises:
        UsageError: as above.
    """
    durations: dict[str, Any] = {}
    for one in given:
        name, _, text = one.partition("=")
        try:
            durations[name] = float(text)
        except ValueError:
            durations[name] = text  # refused with its name
    base = MEASURED if path is None else costs_from_file(path)
    return costs_from_mapping(durations, "--cost", base)


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """The share of slow nodes and their speed, as the user chooses them."""

    share: float  # of the nodes, 0 to 1
    fraction: float  # of the usual throughput, in (0, 1)


@dataclass(slots=True, kw_only=True)
class SlowNodes:
    """The slow nodes of one replay, and what has been found of them."""

    fractions: Mapping[str, float] = field(default_factory=dict)
    threshold: float = 0.0  # 0: nobody looks
    report_s: float = 0.5  # between two reports of a worker
    _since_s: dict[tuple[str, str], float] = field(default_factory=dict)  # (trainer, node)

    def pace(self, nodes: Iterable[str]) -> float:
        """Return the fraction of its usual throughput that a trainer on these nodes reaches."""
        return min([self.fractions.get(node, 1.0) for node in nodes], default=1.0)

    def look(self, training: Mapping[str, str], now_s: float) -> None:
        """Note which slow nodes train, beside others, since when."""
        if not self.fractions:
            return
        sizes: dict[str, int] = {}
        for trainer_id in training.values():
            sizes[trainer_id] = sizes.get(trainer_id, 0) + 1
        here = {
            (trainer_id, node)
            for node, trainer_id in training.items()
            if node in self.fractions and sizes[trainer_id] > 1
        }
        self._since_s = {pair: self._since_s.get(pair, now_s) for pair in here}

    def speeds(self, now_s: float) -> dict[str, float]:
        """The slow nodes that were found, with their fractions."""
        return {
            node: self.fractions[node]
            for (trainer_id, node), since_s in self._since_s.items()
            if now_s >= since_s + self.found_after_s(node)
        }

    def next_found_s(self, now_s: float) -> float:
        """Return the time at which the next slow node is found."""
        times = [since_s + self.found_after_s(node) for (_, node), since_s in self._since_s.items()]
        return min([at_s for at_s in times if at_s > now_s], default=math.inf)

    def found_after_s(self, node: str) -> float:
        """Return how long the moving average needs to fall below the threshold."""
        fraction = self.fractions[node]
        if fraction >= self.threshold:
            return math.inf
        left = (self.threshold - fraction) / (1.0 - fraction)
        return self.report_s * math.ceil(math.log(left) / math.log(1.0 - ALPHA))


def draw(
    names: Sequence[str], injection: Injection | None, threshold: float, seed: int
) -> SlowNodes:
    """Choose the slow nodes of a trace."""
    if injection is None:
        return SlowNodes()
    chance = random.Random(seed)  # noqa: S311 - a replay, reproducible by its seed
    chosen = chance.sample(sorted(names), round(injection.share * len(names)))
    return SlowNodes(fractions=dict.fromkeys(chosen, injection.fraction), threshold=threshold)
