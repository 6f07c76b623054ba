"""Datasets that are read as streams, in shards: files, tar balls, table partitions.

A stream has no index, so its samples cannot be assigned exactly once. ``Sharded`` gives it one,
from what the dataset declares: the number of samples of each shard, and an iterator over a
shard from a given sample on. The order of an epoch interleaves all shards, so that workers read
different shards at the same time; after a rescale the new reader of a shard skips to where the
previous one stopped. Used in the script's ``DataLoader``; ``loader`` asks for the order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import torch
from torch.utils.data import Dataset

from bftrainer.elastic.errors import ElasticError


class ShardedSource(Protocol):
    """The interface of a dataset that is read in shards."""

    def shard_lengths(self) -> Sequence[int]:
        """Return the number of samples in each shard: the same on all workers."""

    def read_shard(self, shard: int, skip: int, epoch: int) -> Iterator[Any]:
        """Return the samples of ``shard`` from number ``skip`` on.

        Their order may depend on ``epoch`` only, not on the process, the time or random
        streams. At least the declared number must come.
        """


class Key(NamedTuple):
    """A sample of a sharded dataset in one epoch."""

    epoch: int
    number: int


class Sharded(Dataset[Any]):
    """A stream in shards as a dataset with an index.

    ``shuffle=True`` of the loader shuffles how shards are interleaved; samples within a shard
    are shuffled by the source, if at all. A gap of up to ``drop`` samples is read and dropped;
    for a wider one the shard is reopened.
    """

    def __init__(self, source: ShardedSource, *, drop: int = 64, most_open: int = 256) -> None:
        self.source = source
        self._drop = drop
        self._most_open = most_open
        self.lengths = [int(n) for n in source.shard_lengths()]
        if not self.lengths or min(self.lengths) < 0 or sum(self.lengths) == 0:
            raise ElasticError(
                "BFT-1429",
                f"shard_lengths() of {type(source).__name__} declares no samples.",
                "Return the number of samples of each shard.",
            )
        self._ends = list(accumulate(self.lengths))
        self._open: dict[int, tuple[int, int, Iterator[Any]]] = {}  # shard: epoch, next, samples

    def __len__(self) -> int:
        return self._ends[-1]

    def __getstate__(self) -> dict[str, Any]:
        """Omit open shards: another process must open its own."""
        return {**self.__dict__, "_open": {}}

    def order(self, seed: int | None) -> torch.Tensor:
        """Return the order of all indices: shards interleaved in proportion to their length."""
        generator = torch.Generator()
        count = len(self.lengths)
        ranks = torch.arange(count)
        if seed is not None:
            generator.manual_seed(seed)
            ranks = torch.randperm(count, generator=generator)
        indices = torch.cat([torch.arange(e - n, e) for e, n in self._spans(ranks.tolist())])
        # Sort by relative position: the middle of a shard comes in the middle of the epoch.
        paces = torch.cat(
            [
                (torch.arange(n, dtype=torch.float64) + 0.5) / n
                for _, n in self._spans(ranks.tolist())
            ]
        )
        return indices[torch.sort(paces, stable=True).indices]

    def _spans(self, shards: Sequence[int]) -> list[tuple[int, int]]:
        return [(self._ends[s], self.lengths[s]) for s in shards if self.lengths[s]]

    def __getitem__(self, key: Key | int) -> Any:
        if isinstance(key, int):  # read without a Run
            key = Key(epoch=0, number=key)
        shard = bisect_right(self._ends, key.number)
        number = key.number - (self._ends[shard] - self.lengths[shard])
        epoch, at, samples = self._open.pop(shard, (-1, 0, iter(())))
        if epoch != key.epoch or not 0 <= number - at <= self._drop:
            samples, at = iter(self.source.read_shard(shard, number, key.epoch)), number
        try:
            for _ in range(number - at):
                next(samples)
            sample = next(samples)
        except StopIteration:
            raise self._too_short(shard, number) from None
        if number + 1 < self.lengths[shard]:
            while len(self._open) >= self._most_open:
                self._open.pop(next(iter(self._open)))  # the least recently read
            self._open[shard] = (key.epoch, number + 1, samples)
        return sample

    def _too_short(self, shard: int, number: int) -> ElasticError:
        return ElasticError(
            "BFT-1429",
            f"Shard {shard} ended before sample {number} of the {self.lengths[shard]} declared.",
            "Let shard_lengths() say how many samples read_shard() gives.",
        )
