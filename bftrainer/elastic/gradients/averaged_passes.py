"""The backward passes of an update of which each is averaged over all workers.

Sharpness-aware minimisation moves the parameters along the gradient of the whole batch, takes
another gradient there, moves them back and updates with that (Foret et al., ICLR 2021, algorithm
1). So a script says how many such passes an update has, ``Run(..., backward_passes=2)``, and all
members reduce as often, also those without samples. Used by the reducers.

A pass that is not the last hands out copies, since the next one is reduced in the same memory. It
carries no votes: nobody leaves a generation within an update. Where the update is void, the
parameters are again what they were before the script moved them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bftrainer.elastic.script.batch import Cutting
from bftrainer.ground.errors import ElasticError


def averages_of(count: object, cutting: Cutting, *, is_sharded: bool) -> int:
    """Return how many backward passes of an update are averaged.

    Raises:
        ElasticError: BFT-1403, it is no such number; BFT-1452, the gradient of a whole batch does
            not exist within an update.
    """
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ElasticError(
            "BFT-1403",
            f"backward_passes is {count!r}.",
            "Give the number of backward passes in an update of which each is averaged, 1 or more.",
        )
    if count > 1 and (cutting.is_parted or is_sharded):
        obstacle = "a worker takes its share in several parts"
        if is_sharded:
            obstacle = "the model is sharded"
        raise ElasticError(
            "BFT-1452",
            f"backward_passes is {count}, and {obstacle}: the average over the whole batch is not"
            " there before the update.",
            "Leave out max_per_worker, --batch, bitwise and fully_shard, or backward_passes.",
        )
    return count


def not_stepped() -> ElasticError:
    """Return BFT-1406: the script took a batch and made no update of it."""
    return ElasticError(
        "BFT-1406",
        "run.batches() was asked for another batch without run.step() in between.",
        "Call run.step() for every batch. Instead of accumulating over K of them, give the loader a"
        " K times larger batch_size, and where memory is short Run(...,"
        " batch=elastic.GlobalBatch(max_per_worker=N)): see docs/howto/train-pytorch.md,"
        " Accumulation.",
    )


class AveragedPasses:
    """The averaged backward passes of one update."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._number = 0  # of the present one, from 0
        self._handed_out: list[torch.Tensor | None] = []  # gradients of the pass before
        self._parameters: Sequence[torch.Tensor] = ()
        self._originals: list[torch.Tensor] = []  # their values before the update

    @property
    def is_last(self) -> bool:
        """Whether the update follows the present pass."""
        return self._number >= self._count - 1

    def begin(self) -> None:
        """Begin the first pass of an update."""
        self._number = 0
        if self._count > 1:
            self._handed_out, self._parameters, self._originals = [], (), []

    def go_on(self, parameters: Sequence[torch.Tensor]) -> None:
        """Begin the next pass.

        Args:
            parameters: those that the script may move until then.
        """
        if self._number == 0:
            self._parameters = parameters
            self._originals = [p.detach().clone() for p in parameters]
        self._number += 1
        self._handed_out = [p.grad for p in parameters]

    def own(self, place: int, p: torch.Tensor) -> torch.Tensor | None:
        """Return this worker's gradient of the present pass; that of the one before is none."""
        return None if self._is_of_before(place, p) else p.grad

    def require_new(self, place: int, p: torch.Tensor) -> None:
        """Require that this pass was not added to the averages of the one before.

        Raises:
            ElasticError: BFT-1453.
        """
        if self._is_of_before(place, p):
            raise ElasticError(
                "BFT-1453",
                "A backward pass was added to the averaged gradients of the one before.",
                "Call optimizer.zero_grad() between the backward passes of an update, with"
                " set_to_none=True, its default; keep gradients that are still needed elsewhere.",
            )

    def handed_out(
        self, place: int, p: torch.Tensor, grad: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Return what the script is to see of an average; None: no member has one."""
        if grad is None:
            return p.grad if self._is_of_before(place, p) else None
        if self.is_last:
            return grad
        return grad.clone()  # the next pass is reduced in the memory of this one

    def put_back(self) -> None:
        """Give the parameters the values they had before the update, which is void."""
        with torch.no_grad():
            for p, value in zip(self._parameters, self._originals, strict=True):
                p.copy_(value)

    def _is_of_before(self, place: int, p: torch.Tensor) -> bool:
        if place >= len(self._handed_out) or p.grad is None:
            return False
        return self._handed_out[place] is p.grad
