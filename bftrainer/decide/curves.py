"""Trainer records → throughput curves and rescale costs the decision can use."""

from __future__ import annotations

from typing import NamedTuple

from bftrainer.decide.types import Settings
from bftrainer.trainer import TrainerRecord
from milp.problem import Curve, ProblemTrainer

# Conservative concave guess for an unmeasured trainer: each doubling of the size
# brings 1.75 times the throughput (Table 2 of the BFTrainer paper: most networks
# scale better than that up to 64 nodes).
GUESS_EXPONENT = 0.807


def curve_of(record: TrainerRecord) -> Curve:
    """Return the user's curve, else the measured points joined by the guess."""
    spec = record.spec
    if spec.curve is not None:
        return spec.curve
    sizes = sorted({1, *_powers_of_two(spec.n_max), spec.n_max})
    measured = dict(record.costs.samples_per_s_by_size)
    if not measured:
        return Curve(
            sizes=tuple(sizes), samples_per_s=tuple(float(n) ** GUESS_EXPONENT for n in sizes)
        )
    known = sorted(measured)
    points = sorted({*sizes, *known})
    return Curve(
        sizes=tuple(points),
        samples_per_s=tuple(_through(n, known, measured) for n in points),
    )


def _through(n: int, known: list[int], measured: dict[int, float]) -> float:
    """Value at ``n``: measured, or the guess through the nearest measured size."""
    if n in measured:
        return measured[n]
    nearest = min(known, key=lambda k: (abs(k - n), k))
    return float(measured[nearest] * (n / nearest) ** GUESS_EXPONENT)


def _powers_of_two(limit: int) -> list[int]:
    return [1 << k for k in range(limit.bit_length()) if 1 << k <= limit]


def problem_trainer(
    record: TrainerRecord,
    current: tuple[str, ...],
    settings: Settings,
    settled: tuple[str, ...] = (),
) -> ProblemTrainer:
    """Return the trainer as the allocation problem sees it."""
    key = (id(record), id(settings))
    known = _KNOWN.get(key)
    if (
        known is not None
        and known.record is record
        and known.settings is settings
        and known.made.current == current
        and known.made.settled == settled
    ):
        return known.made
    made = _make(record, current, settings, settled)
    if len(_KNOWN) >= _MOST_KNOWN:
        _KNOWN.clear()
    _KNOWN[key] = _Known(record, settings, made)
    return made


class _Known(NamedTuple):
    """What was made last of a record: most trainers are the same at the next decision."""

    record: TrainerRecord
    settings: Settings
    made: ProblemTrainer


_MOST_KNOWN = 1024
# By identity, because hashing a whole record costs more than making the trainer. The
# records in it are alive, so that no other object can have their identity.
_KNOWN: dict[tuple[int, int], _Known] = {}


def _make(
    record: TrainerRecord,
    current: tuple[str, ...],
    settings: Settings,
    settled: tuple[str, ...],
) -> ProblemTrainer:
    spec, costs = record.spec, record.costs
    limit = settings.max_nodes_per_trainer
    up, down = costs.rescale_up_s, costs.rescale_down_s
    return ProblemTrainer(
        trainer_id=record.trainer_id,
        n_min=spec.n_min,
        # Never below n_min: submissions are checked, a policy may have changed since.
        n_max=spec.n_max if limit is None else max(spec.n_min, min(spec.n_max, limit)),
        curve=curve_of(record),
        rescale_up_s=settings.rescale_up_guess_s if up is None else up,
        rescale_down_s=settings.rescale_down_guess_s if down is None else down,
        current=current,
        settled=settled,
        weight=spec.weight,
        owner=spec.user,
        utility=spec.utility,
    )
