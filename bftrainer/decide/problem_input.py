"""Converts records, nodes and settings into the solver's input (``milp.problem``).

Called by ``allocation`` and ``victims``.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import lru_cache

from bftrainer.decide.throughput.curves import fitted
from bftrainer.model.decision import Settings
from bftrainer.model.trainer import MeasuredCosts, TrainerRecord, TrainerSpec
from milp.problem import ProblemNode, ProblemTrainer
from milp.worth import rate


def nodes_by_trainer(
    assignment: Mapping[str, str], names: AbstractSet[str]
) -> dict[str, tuple[str, ...]]:
    """Return each trainer's nodes among ``names``, sorted."""
    found: dict[str, list[str]] = {}
    for name in sorted(assignment.keys() & names):
        found.setdefault(assignment[name], []).append(name)
    return {trainer_id: tuple(own) for trainer_id, own in found.items()}


@lru_cache(maxsize=1 << 14)  # mostly the same nodes in every decision
def problem_node(
    name: str, gpus: int = 0, remaining_s: float | None = None, *, has_pilot: bool = False
) -> ProblemNode:
    """Return the node for the allocation problem."""
    return ProblemNode(name=name, gpus=gpus, has_pilot=has_pilot, expected_remaining_s=remaining_s)


def problem_trainer(
    record: TrainerRecord,
    current: tuple[str, ...],
    settings: Settings,
    settled: tuple[str, ...] = (),
) -> ProblemTrainer:
    """Return the trainer for the allocation problem."""
    if known := _KNOWN.get(record.trainer_id):
        spec, costs, its_settings, made = known
        is_same = spec is record.spec and costs is record.costs and its_settings is settings
        if is_same and (made.current, made.settled) == (current, settled):
            return made
    made = _make(record, current, settings, settled)
    if len(_KNOWN) >= _MOST_KNOWN:
        _KNOWN.clear()
    _KNOWN[record.trainer_id] = record.spec, record.costs, settings, made
    return made


_MOST_KNOWN = 1 << 13  # more trainers than a daemon has, studies of thousands among them
# By trainer_id the last result and what it was made of: most do not change between decisions.
# Compared by identity, because to hash or compare a whole record costs more than to make it.
_KNOWN: dict[str, tuple[TrainerSpec, MeasuredCosts, Settings, ProblemTrainer]] = {}


def _make(
    record: TrainerRecord,
    current: tuple[str, ...],
    settings: Settings,
    settled: tuple[str, ...],
) -> ProblemTrainer:
    spec, costs = record.spec, record.costs
    limit = settings.max_nodes_per_trainer
    up, down = costs.rescale_up_s, costs.rescale_down_s
    made = ProblemTrainer(
        trainer_id=record.trainer_id,
        n_min=spec.n_min,
        # Never below n_min: submissions are checked, a policy may have changed since.
        n_max=spec.n_max if limit is None else max(spec.n_min, min(spec.n_max, limit)),
        curve=fitted(record, explores=settings.explore_budget > 0.0).curve,
        rescale_up_s=settings.rescale_up_guess_s if up is None else up,
        rescale_down_s=settings.rescale_down_guess_s if down is None else down,
        current=current,
        settled=settled,
        weight=spec.weight,
        utility=spec.utility,
    )
    if not 0 < len(settled) < len(current):
        return made
    # The problem charges the rate of all that is current; only what trains pauses.
    held = rate(made, len(current), settings.objective)
    share = rate(made, len(settled), settings.objective) / held if held else 1.0
    return replace(
        made,
        rescale_up_s=made.rescale_up_s * share,
        rescale_down_s=made.rescale_down_s * share,
    )
