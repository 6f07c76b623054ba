"""Assigns samples to workers and steps: pure arithmetic.

Everything follows from (seed, epoch) and the number of samples consumed so far in the epoch by
all workers together, so a rescale needs no other state: every index is in exactly one global
batch per epoch, whatever the sizes. Used by the loader.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_MIX = 0x9E3779B97F4A7C15
_MASK = (1 << 63) - 1


def mix(*numbers: int) -> int:
    """Return a 63-bit seed that depends on all numbers and their order."""
    state = 0
    for number in numbers:
        state = (state ^ (number & ((1 << 64) - 1))) * _MIX & ((1 << 64) - 1)
        state ^= state >> 29
    return state & _MASK


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPlan:
    """The division of an epoch into global batches."""

    samples: int  # in the dataset, or in an epoch of the script's own order
    batch: int  # the global batch: the loader's batch_size
    drop_last: bool
    shuffle: bool
    shards: tuple[int, ...] = ()  # lengths of a stream's shards
    own: int = 0  # hash of the script's own order of epoch 0; 0: there is none

    def order_id(self) -> int:
        """Return a number that differs if two workers' loaders use different orders."""
        numbers = (self.drop_last, self.shuffle, *self.shards)
        return mix(*numbers, self.own) if self.own else mix(*numbers)

    @property
    def epoch_samples(self) -> int:
        """Samples one epoch consumes."""
        return self.samples - self.samples % self.batch if self.drop_last else self.samples

    def global_batch(self, position: int, budget: int | None = None, whole: int = 0) -> int:
        """Return the size of the batch that starts after ``position`` samples; 0 at the end.

        ``budget``: limit, the samples that the whole run may still consume. ``whole``: samples
        of a full global batch; 0: the loader's.
        """
        left = min(whole or self.batch, self.epoch_samples - position)
        return max(0, left if budget is None else min(left, budget))


NO_PLAN = EpochPlan(samples=0, batch=0, drop_last=False, shuffle=False)


def order(plan: EpochPlan, seed: int, epoch: int) -> torch.Tensor:
    """Return the epoch's order of all indices."""
    if not plan.shuffle:
        return torch.arange(plan.samples)
    generator = torch.Generator()
    generator.manual_seed(mix(seed, epoch, 1))
    return torch.randperm(plan.samples, generator=generator)


def active(batch: int, size: int, least: int = 1) -> int:
    """Return how many of ``size`` workers get samples of a global batch: the first ones.

    ``least``: no worker gets fewer samples, unless the batch itself has fewer.
    """
    return min(size, max(1, batch // least))


def share(batch: int, size: int, rank: int, least: int = 1) -> tuple[int, int]:
    """Return the half-open range of a global batch that belongs to ``rank``.

    Shares are contiguous; the first ones may have one sample more.
    """
    size = active(batch, size, least)
    if rank >= size:
        return batch, batch
    base, extra = divmod(batch, size)
    start = rank * base + min(rank, extra)
    return start, start + base + (1 if rank < extra else 0)
