"""Tetris: trainers that fit well into what is free, and short ones, come first.

Source: Grandl et al., "Multi-resource packing for cluster schedulers" (SIGCOMM'14), section 3:
the score is the alignment of demand and free resources, both as shares of the pool, less
epsilon times the work left; epsilon is the mean alignment over the mean work left. Here a resource
is a class of nodes, the demand is what a rigid trainer requests (``queueing``), its work left are
the node-seconds it needs at that size. Unlike a task of the paper a trainer can be displaced.
"""

from __future__ import annotations

from collections.abc import Sequence

from bftrainer.decide.policies.base import AllocationPolicy, Context, Decided, Traits
from bftrainer.decide.policies.handing import Handing, seconds
from milp.problem import Problem

LONGEST_S = 1e9  # of a trainer whose rate is 0


def alignment(demand: Sequence[float], free: Sequence[float], total: Sequence[float]) -> float:
    """Return the product of demand and what is free, as shares of each resource, summed."""
    rows = zip(demand, free, total, strict=True)
    return sum([(some / most) * (left / most) for some, left, most in rows if most])


def exchange_rate(alignments: Sequence[float], work_left: Sequence[float]) -> float:
    """Return epsilon: how much alignment a unit of work left is worth."""
    return sum(alignments) / sum(work_left) if sum(work_left) > 0.0 else 0.0


class TetrisPolicy:
    """The trainer of the best score among those that fit is next."""

    name = "tetris"
    traits = Traits(follows_curves=False, admits=True, reads_rates=True)

    def allocate(self, problem: Problem, context: Context, /) -> Decided:
        """Serve one by one."""
        handing = Handing(problem, admits=True)
        queue = [j for j in range(len(handing.trainers)) if handing.largest(j)]
        work = _work_left(handing, context, queue)
        worth = exchange_rate([_aligned(handing, j)[0] for j in queue], list(work.values()))
        served: list[int] = []
        while queue and len(served) < problem.p_jmax:
            scores = {}
            for j in queue:
                aligned, at = _aligned(handing, j)
                scores[j] = aligned - worth * work[j], -j, at
            for j in sorted(queue, key=scores.__getitem__, reverse=True):
                need = max(handing.trainers[j].n_min, handing.largest(j))
                if handing.settle(j, need, scores[j][2]) and handing.take(j, need):
                    served.append(j)
                    break
            else:
                break  # nobody fits
            queue.remove(served[-1])
        waiting = [j for j in range(len(handing.trainers)) if j not in served]
        return handing.answer(self.name, [*served, *waiting])


def _work_left(handing: Handing, context: Context, queue: Sequence[int]) -> dict[int, float]:
    """Node-seconds left at the requested size; without a goal as for the one with most."""
    work: dict[int, float] = {}
    for j in queue:
        left, size = (
            context.trainers[handing.trainers[j].trainer_id].left_samples,
            handing.largest(j),
        )
        if left is not None:
            work[j] = size * min(seconds(left, handing.rate(j, size)), LONGEST_S)
    most = max(work.values(), default=0.0)
    return {j: work.get(j, most) for j in queue}


def _aligned(handing: Handing, j: int) -> tuple[float, int]:
    """Alignment of what a trainer requests, and the class in which it is best."""
    size, total, home = handing.largest(j), handing.counts, handing.home[j]
    classes = handing.accepted(j)
    if handing.pool.mixes[j]:  # of each class in proportion
        share = size / sum(total[k] for k in classes)
        demand = [share * count * (k in classes) for k, count in enumerate(total)]
        return alignment(demand, handing.free, total), classes[0]
    options = []
    for k in classes if home is None else [home]:
        demand = [float(size * (k == i)) for i in range(len(total))]
        options.append((alignment(demand, handing.free, total), -k))
    best, at = max(options)
    return best, -at


POLICY: AllocationPolicy = TetrisPolicy()
