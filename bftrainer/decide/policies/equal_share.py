"""The paper's baseline: nodes are shared equally among the trainers that may run."""

from __future__ import annotations

from collections import Counter

from bftrainer.decide.policies.base import About, Context, Decided, Policy, Traits
from bftrainer.decide.policies.distribution import Handing
from bftrainer.decide.policies.greedy_steps import Step, admit, fill
from bftrainer.model.decision import Term
from milp.problem import Problem


def _allocate(problem: Problem, context: Context, /) -> Decided:  # noqa: ARG001
    """Equal sizes as far as the bounds allow, at any cost in rescales.

    Trainers are admitted in FCFS order while their n_min fit; then each further node goes to the
    smallest. Nodes are never exchanged.
    """
    handing = Handing(problem, is_spread=True)
    admitted = admit(handing, range(len(handing.trainers)))
    fill(admitted, lambda _, size: Step(-size, size + 1), handing.take)
    among = Counter(handing.home[j] for j in admitted)

    def terms(j: int) -> tuple[Term, ...]:
        k = handing.home[j] or 0
        count = handing.counts[k]
        return (
            Term("nodes of its type", count),
            Term("trainers that share them", among[k]),
            Term("equal share", count / max(1, among[k]), "nodes"),
            Term("can use", handing.largest(j), "nodes"),
        )

    return handing.answer(POLICY.name, terms)


POLICY = Policy(
    "equal-share",
    Traits(
        about=About(
            does="equal sizes",
            optimises="equality of sizes",
            source="Liu et al., BFTrainer, 2021 (its baseline)",
        ),
        follows_curves=False,
    ),
    _allocate,
)
