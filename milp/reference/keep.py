"""The map that stays when a solver finds nothing: the current one, made legal.

A Problem comes in, a map node -> trainer_id goes out that breaks no rule whatever has
left the pool or changed in the policy (section 3.6 of the paper: "let x be c").
"""

from __future__ import annotations

from milp.problem import Problem, ProblemTrainer


def keep_map(problem: Problem) -> dict[str, str]:
    """Current nodes that are still there, within the bounds of trainers that may run.

    A trainer above n_max gives up the nodes it settled on last, as does one above what earlier
    ones leave it of a cap; one below n_min, or beyond p_jmax, gives up all.
    """
    eligibility = {node.name: node.eligibility for node in problem.nodes}
    left = [cap.most for cap in problem.caps]
    kept: dict[str, str] = {}
    for trainer in problem.trainers[: problem.p_jmax]:
        own = [c for c, cap in enumerate(problem.caps) if trainer.trainer_id in cap.trainers]
        names = _kept(trainer, eligibility, min([left[c] for c in own], default=trainer.n_max))
        kept |= dict.fromkeys(names, trainer.trainer_id)
        for c in own:
            left[c] -= len(names)
    return kept


def _kept(trainer: ProblemTrainer, eligibility: dict[str, str], most: int) -> list[str]:
    names = [
        name
        for name in trainer.current
        if name in eligibility and (not trainer.eligible or eligibility[name] in trainer.eligible)
    ]
    if not trainer.mixes_classes:
        groups: dict[str, list[str]] = {}
        for name in names:
            groups.setdefault(eligibility[name], []).append(name)
        names = max(groups.values(), key=len, default=[])
    settled = set(trainer.settled)
    names = sorted(names, key=lambda name: name not in settled)[: min(trainer.n_max, most)]
    return names if len(names) >= trainer.n_min else []
