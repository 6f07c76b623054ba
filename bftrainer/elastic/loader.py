"""Reads the user's ``DataLoader`` in shares of global batches.

For each position in the epoch it returns this worker's share of the global batch, fetched and
collated as the user's loader would. With ``num_workers`` the loader's processes read ahead for
the rest of the epoch, from the position and rank at which a generation begins; with
``persistent_workers`` they are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
)
from torch.utils.data._utils.pin_memory import pin_memory

from bftrainer.elastic import sampler
from bftrainer.elastic.batch import BatchPiece, Cutting
from bftrainer.elastic.errors import ElasticError
from bftrainer.elastic.sample_order import Indices, OwnOrder
from bftrainer.elastic.shards import Key, Sharded
from bftrainer.elastic.state import seed_everything

_OWN_ORDER = "Give Run the order of each epoch, indices=lambda epoch: loader.sampler"


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The rank for which the loader is read; changes with every generation and epoch."""

    seed: int
    epoch: int
    generation: int
    attempt: int
    rank: int
    size: int
    told: int = 0  # global batch of this generation, see ``Cutting.whole``


class Loader:
    """Serves shares of global batches from a user's ``DataLoader``."""

    def __init__(
        self,
        loader: DataLoader[Any],
        cutting: Cutting | None = None,
        indices: Indices | None = None,
    ) -> None:
        self.loader = loader
        self.cutting = cutting or Cutting()
        self.plan = _plan_of(loader, has_order=indices is not None)
        self.own: OwnOrder | None = None
        if indices is not None:
            self.own = OwnOrder(indices, self.plan.samples)
            self.plan = replace(self.plan, own=self.own.order_id)
        self._order_of: tuple[int, int] | None = None
        self._order = torch.empty(0, dtype=torch.long)
        self._ahead: DataLoader[Any] | None = None  # reads ahead in worker processes
        self._asked = _Asked()
        self._stream_of: tuple[View, int, int] | None = None
        self._stream: Iterator[Any] | None = None
        self._stream_keys: Iterator[list[Any]] = iter(())  # of its pieces
        self._handed: list[Any] = []  # the keys of the last piece

    @property
    def handed(self) -> list[int]:
        """The indices of the samples in the last piece."""
        keys = self._handed[0][1] if self.cutting.logical else self._handed
        return [key.number if isinstance(key, Key) else key for key in keys]

    def plan_of(self, seed: int, epoch: int) -> sampler.EpochPlan:
        """Return the plan of an epoch; its length may be the script's."""
        if self.own is None:
            return self.plan
        return replace(self.plan, samples=len(self.own.order(seed, epoch)))

    def batch_at(self, view: View, position: int, budget: int | None) -> int:
        """Return the size of the global batch at ``position``; 0: the epoch ends."""
        plan = self.plan_of(view.seed, view.epoch)
        whole = self.cutting.whole(plan.batch, view.size, view.told)
        return plan.global_batch(position, budget, whole)

    def fetch(
        self, view: View, position: int, batch: int, budget: int | None, number: int = 0
    ) -> Any:
        """Return this rank's piece ``number`` of the global batch at ``position``.

        Must not be called for positions at which this rank has no piece.
        """
        pieces = self.cutting.pieces(batch, view.size, view.rank)
        if self.loader.num_workers == 0:
            (keys,) = self._keys(view, position, batch, pieces[number : number + 1])
            self._handed = keys
            return self._collate(keys)
        if self._stream is None or self._stream_of != (view, position, number):
            self._stream = self._read_ahead(view, position, budget, number)
        data, self._handed = next(self._stream), next(self._stream_keys)
        if number + 1 < len(pieces):
            self._stream_of = (view, position, number + 1)
        else:
            self._stream_of = (view, position + batch, 0)
        return data

    def rehearsal(self, samples: int) -> Any:
        """Return a batch of the first ``samples`` samples."""
        indices = list(range(min(samples, self.plan.samples)))
        return self._collate(self._keys_of(indices, epoch=0, seed=0))

    def close(self) -> None:
        """End the loader's worker processes."""
        self._stream = self._ahead = None
        self._stream_of = None

    def _keys(
        self, view: View, position: int, batch: int, pieces: Sequence[BatchPiece]
    ) -> list[list[Any]]:
        """Return the keys to read from the dataset, one list for each piece."""
        if self._order_of != (view.seed, view.epoch):
            self._order = self._order_for(view)
            self._order_of = (view.seed, view.epoch)
        whole = self._order[position : position + batch]
        if isinstance(self.loader.dataset, Sharded):
            # Sorted, so that each worker reads few shards, in order.
            whole = whole.sort().values
        return [
            self._keys_of(
                whole[p.start : p.stop].tolist(),
                epoch=view.epoch,
                seed=sampler.mix(view.seed, view.epoch, position, p.logical, 5),
            )
            for p in pieces
        ]

    def _order_for(self, view: View) -> torch.Tensor:
        dataset = self.loader.dataset
        if self.own is not None:
            return self.own.order(view.seed, view.epoch)
        if isinstance(dataset, Sharded):
            seed = sampler.mix(view.seed, view.epoch, 1) if self.plan.shuffle else None
            return dataset.order(seed)
        return sampler.order(self.plan, view.seed, view.epoch)

    def _keys_of(self, indices: list[int], *, epoch: int, seed: int) -> list[Any]:
        keys: list[Any] = indices
        if isinstance(self.loader.dataset, Sharded):
            keys = [Key(epoch=epoch, number=i) for i in indices]
        return [(seed, keys)] if self.cutting.logical else keys

    @property
    def _dataset(self) -> Any:
        # Bitwise mode: a dataset's random numbers must not depend on the reading process.
        return _Seeded(self.loader.dataset) if self.cutting.logical else self.loader.dataset

    def _collate(self, keys: list[Any]) -> Any:
        data = self.loader.collate_fn(_samples(self._dataset, keys))
        if self.loader.pin_memory and torch.cuda.is_available():
            return pin_memory(data)
        return data

    def _read_ahead(
        self, view: View, position: int, budget: int | None, number: int
    ) -> Iterator[Any]:
        """Let the loader's processes read this rank's pieces of the rest of the epoch."""
        asked: list[list[Any]] = []
        while batch := self.batch_at(view, position, budget):
            pieces = self.cutting.pieces(batch, view.size, view.rank)
            asked += self._keys(view, position, batch, pieces[number:])
            number = 0
            position += batch
            budget = None if budget is None else budget - batch
        self._asked.batches, self._stream_keys = asked, iter(asked)
        if self._ahead is None or not self.loader.persistent_workers:
            self._ahead = DataLoader(
                self._dataset,
                batch_sampler=self._asked,
                num_workers=self.loader.num_workers,
                collate_fn=self.loader.collate_fn,
                pin_memory=self.loader.pin_memory,
                timeout=self.loader.timeout,
                worker_init_fn=self.loader.worker_init_fn,
                prefetch_factor=self.loader.prefetch_factor,
                multiprocessing_context=self.loader.multiprocessing_context,
                persistent_workers=self.loader.persistent_workers,
            )
        # With persistent workers this drops what they had read for another rank.
        return iter(self._ahead)


class _Asked(Sampler[list[Any]]):
    """Batch sampler of the loader that reads ahead; replaced between two iterations."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []

    def __iter__(self) -> Iterator[list[Any]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class _Seeded(Dataset[Any]):
    """A dataset that seeds the random streams for each piece before reading it."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitems__(self, asked: list[tuple[int, list[Any]]]) -> list[Any]:
        ((seed, keys),) = asked
        seed_everything(seed)
        return _samples(self.dataset, keys)


def _samples(dataset: Any, keys: list[Any]) -> list[Any]:
    if getattr(dataset, "__getitems__", None):
        samples: list[Any] = dataset.__getitems__(keys)
        return samples
    return [dataset[key] for key in keys]


def _plan_of(loader: DataLoader[Any], *, has_order: bool) -> sampler.EpochPlan:
    if not isinstance(loader, DataLoader):
        raise ElasticError(
            "BFT-1402",
            f"The loader is a {type(loader).__name__}, not a torch DataLoader.",
            "Give Run an ordinary DataLoader.",
        )
    if isinstance(loader.dataset, IterableDataset):
        raise ElasticError(
            "BFT-1402",
            "The loader reads an IterableDataset, whose samples have no index.",
            "Use a dataset with __getitem__ and __len__, or declare how it is cut into"
            " shards: elastic.Sharded.",
        )
    if loader.batch_size is None:
        raise ElasticError(
            "BFT-1402",
            "The loader has its own batch_sampler or no batch size.",
            "Give the DataLoader a batch_size; it is the global batch of all workers.",
        )
    if has_order and not isinstance(loader.dataset, Sharded):
        return _plan(loader, shuffle=False)
    if has_order:
        raise ElasticError(
            "BFT-1402",
            "Run has indices, and the loader reads a stream in shards.",
            "Leave out indices: the order within a shard is that of read_shard().",
        )
    if isinstance(loader.sampler, DistributedSampler) and loader.sampler.num_replicas == 1:
        return _plan(loader, shuffle=loader.sampler.shuffle)
    if type(loader.sampler) not in (RandomSampler, SequentialSampler):
        raise ElasticError(
            "BFT-1402",
            f"The loader's sampler is a {type(loader.sampler).__name__}.",
            f"{_OWN_ORDER}, or shuffle=True or False; bftrainer splits the samples itself.",
        )
    if isinstance(loader.sampler, RandomSampler) and (
        loader.sampler.replacement or loader.sampler.num_samples != len(loader.sampler.data_source)
    ):
        raise ElasticError(
            "BFT-1402",
            "The loader's RandomSampler draws with replacement or a subset.",
            f"{_OWN_ORDER}, or shuffle=True, which serves each sample exactly once per epoch.",
        )
    return _plan(loader, shuffle=isinstance(loader.sampler, RandomSampler))


def _plan(loader: DataLoader[Any], *, shuffle: bool) -> sampler.EpochPlan:
    return sampler.EpochPlan(
        samples=len(loader.dataset),  # type: ignore[arg-type]  # Sized, checked by DataLoader
        batch=loader.batch_size or 1,
        drop_last=loader.drop_last,
        shuffle=shuffle,
        shards=tuple(loader.dataset.lengths) if isinstance(loader.dataset, Sharded) else (),
    )


def least_share(model: torch.nn.Module) -> int:
    """Return the number of samples that the model needs at least in a share."""
    needs_two = torch.nn.modules.batchnorm._BatchNorm  # noqa: SLF001 - the common base
    # Batch normalisation over one sample raises.
    return 2 if any(isinstance(m, needs_two) for m in model.modules()) else 1
