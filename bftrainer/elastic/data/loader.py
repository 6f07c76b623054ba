"""Reads the user's ``DataLoader``, or streams in shards, in shares of global batches.

A stream has no index, so its samples cannot be assigned exactly once. ``Sharded`` gives it one,
from what the dataset declares: the number of samples of each shard, and an iterator over a
shard from a given sample on. The order of an epoch interleaves all shards, so that workers read
different shards at the same time; after a rescale the new reader of a shard skips to where the
previous one stopped. Used in the script's ``DataLoader``.

For each position in the epoch ``Loader`` returns this worker's share of the global batch, fetched
and collated as the user's loader would. With ``num_workers`` the loader's processes read ahead for
the rest of the epoch, from the position and rank at which a generation begins; with
``persistent_workers`` they are kept.

The script may give the order of an epoch's samples: ``indices(epoch)`` returns indices of the
dataset, any number of them and also repeated ones. It is called in every worker, with random
streams seeded from run and epoch, so that it may draw from them; what it returns must be the same
everywhere. That is checked: in each worker by asking twice, between members when a generation
forms, and by joiners and resumed runs, which receive the hash of the order that the others are in.

A recurrent model that is trained on consecutive pieces of text carries a hidden state for each
row of its batch. Which worker has which rows changes with the size, so ``PerSample`` keeps the rows
of all places on all workers: each update adds up the new ones, in one reduction, before it counts.
State transfer and checkpoints then treat it like any other registered state.
"""

from __future__ import annotations

import signal
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

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

from bftrainer.elastic.data import sample_prints
from bftrainer.elastic.data.sample_prints import SamplePrint, Twice
from bftrainer.elastic.network import device
from bftrainer.elastic.network import group as groups
from bftrainer.elastic.network.group import Broken, Group
from bftrainer.elastic.script import torch_compat
from bftrainer.elastic.script.batch import BatchPiece, Cutting, EpochPlan, GlobalBatch, mix
from bftrainer.elastic.state.state import seed_everything, streams_of
from bftrainer.ground.errors import ElasticError

_unfit = partial(ElasticError, "BFT-1402")

Indices = Callable[[int], Iterable[int]]
ORDER = "bft-indices"  # key of the hash among the registered objects
_ODD = 0x1E3779B97F4A7C15
_ROW_FOR_EACH = "Give it one row for each sample of loader.batch_size, with batch=GlobalBatch()."
_OWN_ORDER = "Give Run the order of each epoch, indices=lambda epoch: loader.sampler"


def epoch_order(plan: EpochPlan, seed: int, epoch: int) -> torch.Tensor:
    """Return the epoch's order of all indices."""
    if not plan.shuffle:
        return torch.arange(plan.samples)
    generator = torch.Generator()
    generator.manual_seed(mix(seed, epoch, 1))
    return torch.randperm(plan.samples, generator=generator)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderPrint:
    """Which order an epoch has; part of the run's state, by the names of its fields."""

    seed: int
    epoch: int
    hash: int

    def is_other(self, later: OrderPrint) -> bool:
        """Return whether the same epoch has got another order."""
        if (self.seed, self.epoch) != (later.seed, later.epoch):
            return False
        return self.hash != later.hash


class OwnOrder:
    """A script's ``indices`` over a dataset of a given length."""

    def __init__(self, indices: Indices, samples: int) -> None:
        self._indices = indices
        self._samples = samples
        self._cached: tuple[int, int] | None = None  # seed, epoch
        self._order = torch.empty(0, dtype=torch.long)
        self._print: OrderPrint | None = None  # of the last order used, by us or by the others
        self.first = first = self._order_of_script(0, 0)
        self.order_id = _hash_of(first)
        if self.order_id != _hash_of(self._order_of_script(0, 0)):
            raise _unsteady(0, "when it was asked again")

    def order(self, seed: int, epoch: int) -> torch.Tensor:
        """Return the order of an epoch.

        Raises:
            ElasticError: BFT-1425, these are no indices; BFT-1426, the others have another order.
        """
        if self._cached != (seed, epoch):
            self._order = self._order_of_script(seed, epoch)
            self._cached = (seed, epoch)
            order_print = OrderPrint(seed=seed, epoch=epoch, hash=_hash_of(self._order))
            if self._print is not None and self._print.is_other(order_print):
                raise _unsteady(epoch, "than the workers that began this epoch got")
            self._print = order_print
        return self._order

    def state_dict(self) -> dict[str, int]:
        """Return which order the run is in."""
        if self._print is None:
            return {}
        return asdict(self._print)

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Take the run's order, to be compared with our own."""
        if state == self.state_dict():
            return
        self._cached = self._print = None
        if state:
            self._print = OrderPrint(**state)

    def _order_of_script(self, seed: int, epoch: int) -> torch.Tensor:
        with streams_of(seed, epoch, 7):
            indices = self._indices(epoch)
            if not isinstance(indices, torch.Tensor):
                indices = list(indices)
        try:
            order = torch.as_tensor(indices).cpu()
        except (TypeError, ValueError, RuntimeError) as problem:
            raise _refused(epoch, f"no sequence of integers ({problem})") from problem
        if order.numel() == 0:
            raise _refused(epoch, "no index")
        if order.ndim != 1 or order.is_floating_point() or order.dtype is torch.bool:
            raise _refused(epoch, f"{order.ndim} dimensions of {order.dtype}")
        order = order.long()
        if order.min() < 0 or order.max() >= self._samples:
            worst = order.max()
            if order.min() < 0:
                worst = order.min()
            raise _refused(epoch, f"the index {int(worst)} of a dataset of {self._samples} samples")
        return order


def _refused(epoch: int, what: str) -> ElasticError:
    return ElasticError(
        "BFT-1425",
        f"indices({epoch}) returned {what}.",
        "Return integers from 0 to the length of the dataset - 1, in one sequence.",
    )


def _unsteady(epoch: int, when: str) -> ElasticError:
    return ElasticError(
        "BFT-1426",
        f"indices({epoch}) returned another order {when}.",
        "Let it depend on the epoch alone. It may draw random numbers: torch, random and numpy are"
        " seeded for every call; a generator of its own must be made inside it.",
    )


def _hash_of(order: torch.Tensor) -> int:
    # On all of it and at the speed of memory; integers wrap around.
    mixed = (order + 1) * _ODD
    mixed ^= mixed >> 29
    places = torch.arange(len(order)) * 2 + 1
    return mix(len(order), int((mixed * places).sum()))


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


class OpenShard(NamedTuple):
    """A shard that is being read."""

    epoch: int
    next_number: int  # of the sample that comes next
    samples: Iterator[Any]


class SeededKeys(NamedTuple):
    """The keys of a logical worker's piece, and the seed for reading them (bitwise mode)."""

    seed: int
    keys: list[Any]


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
        self.lengths = list(map(int, source.shard_lengths()))
        if not self.lengths or min(self.lengths) < 0 or sum(self.lengths) == 0:
            raise ElasticError(
                "BFT-1429",
                f"shard_lengths() of {type(source).__name__} declares no samples.",
                "Return the number of samples of each shard.",
            )
        self._ends = list(accumulate(self.lengths))
        self._open: dict[int, OpenShard] = {}

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
        spans = self._spans(ranks.tolist())
        indices = torch.cat([torch.arange(first, end) for first, end in spans])
        # Sort by relative position: the middle of a shard comes in the middle of the epoch.
        paces = torch.cat([_paces(end - first) for first, end in spans])
        return indices[torch.sort(paces, stable=True).indices]

    def _spans(self, shards: Sequence[int]) -> list[tuple[int, int]]:
        """Return the half-open ranges of the samples in these shards, without empty ones."""
        ends, lengths = self._ends, self.lengths
        return [(ends[shard] - lengths[shard], ends[shard]) for shard in shards if lengths[shard]]

    def __getitem__(self, key: Key | int) -> Any:
        if isinstance(key, int):  # read without a Run
            key = Key(epoch=0, number=key)
        shard = bisect_right(self._ends, key.number)
        number = key.number - (self._ends[shard] - self.lengths[shard])
        reader = self._open.pop(shard, None)
        if (
            reader is None
            or reader.epoch != key.epoch
            or not 0 <= number - reader.next_number <= self._drop
        ):
            samples = iter(self.source.read_shard(shard, number, key.epoch))
            reader = OpenShard(key.epoch, number, samples)
        try:
            for _ in range(number - reader.next_number):
                next(reader.samples)
            sample = next(reader.samples)
        except StopIteration:
            raise self._too_short(shard, number) from None
        if number + 1 < self.lengths[shard]:
            while len(self._open) >= self._most_open:
                self._open.pop(next(iter(self._open)))  # the least recently read
            self._open[shard] = reader._replace(next_number=number + 1)
        return sample

    def _too_short(self, shard: int, number: int) -> ElasticError:
        return ElasticError(
            "BFT-1429",
            f"Shard {shard} ended before sample {number} of the {self.lengths[shard]} declared.",
            "Let shard_lengths() say how many samples read_shard() gives.",
        )


def _paces(length: int) -> torch.Tensor:
    """Return where in a shard of this length its samples are, from 0 to 1."""
    return (torch.arange(length, dtype=torch.float64) + 0.5) / length


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
            self.plan = replace(self.plan, order_hash=self.own.order_id)
        self._order_key: tuple[int, int] | None = None
        self._order = torch.empty(0, dtype=torch.long)
        self._ahead: DataLoader[Any] | None = None  # reads ahead in worker processes
        self._ahead_batches = _BatchList()
        self._stream_key: tuple[View, int, int] | None = None
        self._stream: Iterator[Any] | None = None
        self._stream_keys: Iterator[list[Any]] = iter(())  # of its pieces
        self._keys_handed_out: list[Any] = []  # the keys of the last piece
        order: torch.Tensor | None = None
        if self.own is not None:
            order = self.own.first
        self.compared: list[int] = []  # numbers of samples; of a stream, its shards are compared
        if not isinstance(loader.dataset, Sharded):
            self.compared = sample_prints.chosen(self.plan.samples, order)
        self._prints: list[SamplePrint] | None = None

    def prints(self) -> list[SamplePrint]:
        """Return the prints of the samples ``compared``, which are read at the first call.

        Streams have none: their shards are compared.
        """
        if self._prints is None:
            with _sheltered():
                rows = Twice(self.loader.dataset, _samples)
                self._prints = sample_prints.read(rows, self.compared, self.loader)
        return self._prints

    @property
    def handed(self) -> list[int]:
        """The indices of the samples in the last piece."""
        keys = self._keys_handed_out
        if self.cutting.logical:
            (piece,) = self._keys_handed_out
            keys = piece.keys
        return list(map(_number_of, keys))

    def plan_of(self, seed: int, epoch: int) -> EpochPlan:
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
        pieces = self._pieces(view, batch)
        if self.loader.num_workers == 0:
            (keys,) = self._keys(view, position, batch, pieces[number : number + 1])
            self._keys_handed_out = keys
            return self._collate(keys)
        if self._stream is None or self._stream_key != (view, position, number):
            self._stream = self._read_ahead(view, position, budget, number)
        data, self._keys_handed_out = next(self._stream), next(self._stream_keys)
        if number + 1 < len(pieces):
            self._stream_key = (view, position, number + 1)
        else:
            self._stream_key = (view, position + batch, 0)
        return data

    def _pieces(self, view: View, batch: int) -> list[BatchPiece]:
        return [p for p in self.cutting.pieces(batch, view.size, view.rank) if p.samples]

    def rehearsal(self, samples: int) -> Any:
        """Return a batch of the first ``samples`` samples."""
        indices = list(range(min(samples, self.plan.samples)))
        return self._collate(self._keys_of(indices, epoch=0, seed=0))

    def close(self) -> None:
        """End the loader's worker processes."""
        self._stream = self._ahead = None
        self._stream_key = None

    def _keys(
        self, view: View, position: int, batch: int, pieces: Sequence[BatchPiece]
    ) -> list[list[Any]]:
        """Return the keys to read from the dataset, one list for each piece."""
        if self._order_key != (view.seed, view.epoch):
            self._order = self._order_for(view)
            self._order_key = (view.seed, view.epoch)
        whole = self._order[position : position + batch]
        if isinstance(self.loader.dataset, Sharded):
            # Sorted, so that each worker reads few shards, in order.
            whole = whole.sort().values
        return [
            self._keys_of(
                whole[p.start : p.stop].tolist(),
                epoch=view.epoch,
                seed=mix(view.seed, view.epoch, position, p.logical, 5),
            )
            for p in pieces
        ]

    def _order_for(self, view: View) -> torch.Tensor:
        dataset = self.loader.dataset
        if self.own is not None:
            return self.own.order(view.seed, view.epoch)
        if isinstance(dataset, Sharded):
            if not self.plan.shuffle:
                return dataset.order(None)
            return dataset.order(mix(view.seed, view.epoch, 1))
        return epoch_order(self.plan, view.seed, view.epoch)

    def _keys_of(self, indices: list[int], *, epoch: int, seed: int) -> list[Any]:
        keys: list[Any] = indices
        if isinstance(self.loader.dataset, Sharded):
            keys = [Key(epoch=epoch, number=i) for i in indices]
        if self.cutting.logical:
            return [SeededKeys(seed, keys)]
        return keys

    @property
    def _dataset(self) -> Any:
        # Bitwise mode: a dataset's random numbers must not depend on the reading process.
        if self.cutting.logical:
            return _Seeded(self.loader.dataset)
        return self.loader.dataset

    def _collate(self, keys: list[Any]) -> Any:
        data = self.loader.collate_fn(_samples(self._dataset, keys))
        if self.loader.pin_memory and torch.cuda.is_available():
            return torch_compat.pinned(data)
        return data

    def _read_ahead(
        self, view: View, position: int, budget: int | None, number: int
    ) -> Iterator[Any]:
        """Let the loader's processes read this rank's pieces of the rest of the epoch."""
        keys: list[list[Any]] = []
        while batch := self.batch_at(view, position, budget):
            pieces = self._pieces(view, batch)
            keys += self._keys(view, position, batch, pieces[number:])
            number = 0
            position += batch
            if budget is not None:
                budget -= batch
        self._ahead_batches.batches, self._stream_keys = keys, iter(keys)
        if self._ahead is None or not self.loader.persistent_workers:
            self._ahead = reloaded(self.loader, self._dataset, batch_sampler=self._ahead_batches)
        # With persistent workers this drops what they had read for another rank.
        with _sheltered():
            return iter(self._ahead)


@contextmanager
def _sheltered() -> Iterator[None]:
    """Start processes that SIGTERM does not end where a worker on a GPU survives it.

    See ``control.leave_end_to_agent``. They end with the worker.
    """
    if not device.is_used():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def reloaded(loader: DataLoader[Any], dataset: Any = None, **changed: Any) -> DataLoader[Any]:
    """Return a loader that reads as this one does, but for what is changed."""
    names = (
        *("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn"),
        *("prefetch_factor", "multiprocessing_context", "persistent_workers"),
    )
    settings = {name: getattr(loader, name) for name in names}
    if dataset is None:
        dataset = loader.dataset
    return DataLoader(dataset, **settings, **changed)


class _BatchList(Sampler[list[Any]]):
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

    def __getitems__(self, pieces: list[SeededKeys]) -> list[Any]:
        (piece,) = pieces
        seed_everything(piece.seed)
        return _samples(self.dataset, piece.keys)


def _number_of(key: Any) -> int:
    if isinstance(key, Key):
        return key.number
    return int(key)


def _samples(dataset: Any, keys: list[Any]) -> list[Any]:
    if getattr(dataset, "__getitems__", None):
        samples: list[Any] = dataset.__getitems__(keys)
        return samples
    return [dataset[key] for key in keys]


def _plan_of(loader: DataLoader[Any], *, has_order: bool) -> EpochPlan:
    if not isinstance(loader, DataLoader):
        raise _unfit(
            f"The loader is a {type(loader).__name__}, not a torch DataLoader.",
            "Give Run an ordinary DataLoader.",
        )
    if type(loader).__module__.startswith("accelerate."):
        raise _unfit(
            "The loader was wrapped by Accelerate's prepare().",
            "Give Run model, optimizer and loader as they were before prepare(): Run cuts the"
            " batches and writes the checkpoints.",
        )
    if isinstance(loader.dataset, IterableDataset):
        raise _unfit(
            "The loader reads an IterableDataset, whose samples have no index.",
            "Use a dataset with __getitem__ and __len__, or declare how it is cut into"
            " shards: elastic.Sharded.",
        )
    if loader.batch_size is None:
        raise _unfit(
            "The loader has its own batch_sampler or no batch size.",
            "Give the DataLoader a batch_size; it is the global batch of all workers.",
        )
    if has_order and not isinstance(loader.dataset, Sharded):
        return _plan(loader, shuffle=False)
    if has_order:
        raise _unfit(
            "Run has indices, and the loader reads a stream in shards.",
            "Leave out indices: the order within a shard is that of read_shard().",
        )
    if isinstance(loader.sampler, DistributedSampler) and loader.sampler.num_replicas == 1:
        return _plan(loader, shuffle=loader.sampler.shuffle)
    if type(loader.sampler) not in (RandomSampler, SequentialSampler):
        raise _unfit(
            f"The loader's sampler is a {type(loader.sampler).__name__}.",
            f"{_OWN_ORDER}, or shuffle=True or False; bftrainer splits the samples itself.",
        )
    if isinstance(loader.sampler, RandomSampler) and (
        loader.sampler.replacement or loader.sampler.num_samples != len(loader.sampler.data_source)
    ):
        raise _unfit(
            "The loader's RandomSampler draws with replacement or a subset.",
            f"{_OWN_ORDER}, or shuffle=True, which serves each sample exactly once per epoch.",
        )
    return _plan(loader, shuffle=isinstance(loader.sampler, RandomSampler))


def _plan(loader: DataLoader[Any], *, shuffle: bool) -> EpochPlan:
    return EpochPlan(
        samples=len(loader.dataset),  # type: ignore[arg-type]  # Sized, checked by DataLoader
        batch=loader.batch_size or 1,
        drop_last=loader.drop_last,
        shuffle=shuffle,
        shards=tuple(loader.dataset.lengths) if isinstance(loader.dataset, Sharded) else (),
    )


def least_share(model: torch.nn.Module) -> int:
    """Return the number of samples that the model needs at least in a share."""
    # Batch normalisation over one sample raises.
    return 2 if any(isinstance(m, torch_compat.BATCH_NORM) for m in model.modules()) else 1


class PerSample:
    """One row for each place of the global batch; register it in ``extra``.

    ``rows`` are those of the present batch's samples. Those that the script sets are taken when
    ``run.step()`` commits the update.
    """

    def __init__(self, rows: torch.Tensor) -> None:
        """Begin with these rows, one for each sample of ``loader.batch_size``."""
        self._device = rows.device
        self._all = rows.detach().cpu().clone()
        self._new = torch.zeros_like(self._all)  # of our places; zero elsewhere
        self._first = self._last = 0

    @property
    def rows(self) -> torch.Tensor:
        """The rows of the present batch, in the order of its samples."""
        return self._all[self._first : self._last].to(self._device, copy=True)

    @rows.setter
    def rows(self, rows: torch.Tensor) -> None:
        shape = self._all[self._first : self._last].shape
        if rows.shape != shape:
            raise ElasticError(
                "BFT-1427",
                f"Rows of the shape {tuple(rows.shape)} were set for a batch that has"
                f" {tuple(shape)}.",
                "Set one row for each sample of the batch, of the shape given to PerSample.",
            )
        self._new[self._first : self._last] = rows.detach().cpu()

    def clear(self) -> None:
        """Set all rows to zero, as at the beginning of an epoch."""
        self._all = torch.zeros_like(self._all)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the rows of all places."""
        return {"rows": self._all}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take the rows of all places."""
        self._all = state["rows"].detach().cpu().clone()

    # ---- for the run -------------------------------------------------------------------

    @property
    def places(self) -> int:
        """Number of rows."""
        return len(self._all)

    def serve(self, first: int, last: int, *, is_new: bool) -> None:
        """Serve these places; ``is_new``: it is the first pass over the batch."""
        if is_new:
            self._new.zero_()
        self._first, self._last = first, last
        self._new[first:last] = self._all[first:last]  # if the script sets none

    def add_up(
        self, group: Group | None, batch: int, abandoned: Callable[[], bool]
    ) -> Broken | None:
        """Take the new rows of all members."""
        new_rows = self._new.clone()  # an abandoned reduction may still write into it
        if group is not None:
            broken = groups.settle(group.control.all_reduce(new_rows), abandoned)
            if broken is not None:
                return broken
        self._all = torch.cat([new_rows[:batch], self._all[batch:]])
        return None


class PerSampleStates:
    """All ``PerSample`` among the registered objects, in one order on all members."""

    def __init__(self, registered: Mapping[str, object], batch: int, cutting: Cutting) -> None:
        """Find them; ``batch`` is the loader's."""
        self._stores = [thing for thing in registered.values() if isinstance(thing, PerSample)]
        for store in self._stores:
            if store.places != batch:
                raise ElasticError(
                    "BFT-1427",
                    f"PerSample has {store.places} rows, the global batch {batch} samples.",
                    _ROW_FOR_EACH,
                )
        if self._stores and not isinstance(cutting.rule, GlobalBatch):
            raise ElasticError(
                "BFT-1427",
                "PerSample needs a global batch that is the same at every size.",
                _ROW_FOR_EACH,
            )

    @property
    def is_used(self) -> bool:
        """Return whether there are any."""
        return bool(self._stores)

    def serve(self, piece: BatchPiece, number: int = 0) -> None:
        """Serve the rows of a pass."""
        for store in self._stores:
            store.serve(piece.start, piece.stop, is_new=number == 0)

    def serve_none(self) -> None:
        """Begin a batch of which this worker has no samples."""
        self.serve(BatchPiece(start=0, stop=0))

    def add_up(
        self, group: Group | None, batch: int, abandoned: Callable[[], bool]
    ) -> Broken | None:
        """Take the new rows of all members."""
        for store in self._stores:
            if (broken := store.add_up(group, batch, abandoned)) is not None:
                return broken
        return None
