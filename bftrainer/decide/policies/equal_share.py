"""The paper's baseline: nodes are shared equally among the trainers that may run."""

from __future__ import annotations

from bftrainer.decide.policies.base import AllocationPolicy, Context, Decided, Traits
from bftrainer.decide.policies.distribution import ClassShares, share_out
from bftrainer.model.decision import Term
from milp.problem import Problem


class EqualSharePolicy:
    """Equal sizes as far as the bounds allow, at any cost in rescales.

    Trainers are admitted in FCFS order while their n_min fit; then each further node goes to the
    smallest. Nodes are never exchanged.
    """

    name = "equal-share"
    traits = Traits(follows_curves=False)

    def allocate(self, problem: Problem, context: Context, /) -> Decided:  # noqa: ARG002
        """Share the pool, class by class."""
        shares = share_out(problem)
        sizes = [0] * len(shares.classes)
        among = [0] * len(shares.pool.counts())
        for k, count in enumerate(shares.pool.counts()):
            members = [j for j, chosen in enumerate(shares.classes) if chosen == k]
            for j, size in _share(shares, members, count).items():
                sizes[j] = size
                among[k] += 1

        def terms(j: int) -> tuple[Term, ...]:
            k = shares.classes[j]
            count = shares.pool.counts()[k]
            return (
                Term("nodes of its type", count),
                Term("trainers that share them", among[k]),
                Term("equal share", count / max(1, among[k]), "nodes"),
                Term("can use", shares.largest(j), "nodes"),
            )

        return shares.answer(sizes, self.name, terms)


def _share(shares: ClassShares, members: list[int], count: int) -> dict[int, int]:
    """Sizes of the admitted trainers of one class."""
    sizes: dict[int, int] = {}
    left = count
    for j in members:
        n_min = shares.pool.trainers[j].n_min
        if n_min <= min(left, shares.largest(j)):
            sizes[j] = n_min
            left -= n_min
    while left:
        growing = [j for j in sizes if sizes[j] < shares.largest(j)]
        if not growing:
            break
        j = min(growing, key=lambda j: (sizes[j], j))
        sizes[j] += 1
        left -= 1
    return sizes


POLICY: AllocationPolicy = EqualSharePolicy()
