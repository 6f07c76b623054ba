"""The user's ``DataLoader`` as the elastic runtime reads it.

A loader comes in once; for each step a position comes in and this worker's share of
the global batch goes out, fetched and collated as the user's loader would. With
``num_workers`` a loader over the rest of the epoch is built per generation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)
from torch.utils.data._utils.pin_memory import pin_memory

from bftrainer.elastic import sampler
from bftrainer.elastic.errors import ElasticError


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """From which seat the loader is read: changes with every generation and epoch."""

    seed: int
    epoch: int
    generation: int
    attempt: int
    rank: int
    size: int


class Loader:
    """Serves shares of global batches from a user's ``DataLoader``."""

    def __init__(self, loader: DataLoader[Any], least: int = 1) -> None:
        self.loader = loader
        self.least = least  # samples in a share, see sampler.active
        self.plan = _plan_of(loader)
        self._order_of: tuple[int, int] | None = None
        self._order = torch.empty(0, dtype=torch.long)
        self._stream_of: tuple[View, int] | None = None
        self._stream: Iterator[Any] | None = None

    def fetch(self, view: View, position: int, batch: int, budget: int | None) -> Any:
        """Return this rank's share of the global batch that starts at ``position``.

        The caller skips positions at which this rank has no share.
        """
        if self.loader.num_workers == 0:
            return self._collate(self._indices(view, position, batch))
        if self._stream is None or self._stream_of != (view, position):
            self._stream = iter(self._worker_loader(view, position, budget))
        data = next(self._stream)
        self._stream_of = (view, position + batch)
        return data

    def rehearsal(self, samples: int) -> Any:
        """Return a batch of the first ``samples`` samples."""
        return self._collate(list(range(min(samples, self.plan.samples))))

    def close(self) -> None:
        """End the loader's worker processes."""
        self._stream = None
        self._stream_of = None

    def _indices(self, view: View, position: int, batch: int) -> list[int]:
        if self._order_of != (view.seed, view.epoch):
            self._order = sampler.order(self.plan, view.seed, view.epoch)
            self._order_of = (view.seed, view.epoch)
        start, stop = sampler.share(batch, view.size, view.rank, self.least)
        indices: list[int] = self._order[position + start : position + stop].tolist()
        return indices

    def _collate(self, indices: list[int]) -> Any:
        dataset: Any = self.loader.dataset
        if hasattr(dataset, "__getitems__") and dataset.__getitems__:
            samples = dataset.__getitems__(indices)
        else:
            samples = [dataset[i] for i in indices]
        data = self.loader.collate_fn(samples)
        if self.loader.pin_memory and torch.cuda.is_available():
            return pin_memory(data)
        return data

    def _worker_loader(self, view: View, position: int, budget: int | None) -> DataLoader[Any]:
        shares: list[list[int]] = []
        while batch := self.plan.global_batch(position, budget):
            indices = self._indices(view, position, batch)
            if indices:
                shares.append(indices)
            position += batch
            budget = None if budget is None else budget - batch
        return DataLoader(
            self.loader.dataset,
            batch_sampler=shares,
            num_workers=self.loader.num_workers,
            collate_fn=self.loader.collate_fn,
            pin_memory=self.loader.pin_memory,
            timeout=self.loader.timeout,
            worker_init_fn=self.loader.worker_init_fn,
            prefetch_factor=self.loader.prefetch_factor,
            multiprocessing_context=self.loader.multiprocessing_context,
        )


def _plan_of(loader: DataLoader[Any]) -> sampler.Plan:
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
            "Use a dataset with __getitem__ and __len__.",
        )
    if loader.batch_size is None:
        raise ElasticError(
            "BFT-1402",
            "The loader has its own batch_sampler or no batch size.",
            "Give the DataLoader a batch_size; it is the global batch of all workers.",
        )
    if type(loader.sampler) not in (RandomSampler, SequentialSampler):
        raise ElasticError(
            "BFT-1402",
            f"The loader's sampler is a {type(loader.sampler).__name__}.",
            "Use shuffle=True or shuffle=False; bftrainer splits the samples itself.",
        )
    if isinstance(loader.sampler, RandomSampler) and (
        loader.sampler.replacement or loader.sampler.num_samples != len(loader.sampler.data_source)
    ):
        raise ElasticError(
            "BFT-1402",
            "The loader's RandomSampler draws with replacement or a subset.",
            "Use shuffle=True, which serves each sample exactly once per epoch.",
        )
    return sampler.Plan(
        samples=len(loader.dataset),  # type: ignore[arg-type]  # Sized, checked by DataLoader
        batch=loader.batch_size,
        drop_last=loader.drop_last,
        shuffle=isinstance(loader.sampler, RandomSampler),
    )


def least_share(model: torch.nn.Module) -> int:
    """Return how many samples a share must have for the model to take it."""
    needs_two = torch.nn.modules.batchnorm._BatchNorm  # noqa: SLF001 - the common base
    # Normalising over one sample raises, at the end of an epoch of all places.
    return 2 if any(isinstance(m, needs_two) for m in model.modules()) else 1
