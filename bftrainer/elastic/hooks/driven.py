"""A ``Run`` inside the loop of a framework.

The framework asks for an epoch's batches and for updates. Some work is hidden from it: a
joiner's rehearsal, all but the last pass over a batch, steps repeated because a member was
lost. This is done by two methods of the hook. A worker without a share of a batch gets
samples that do not count, so that the framework makes the same steps on all workers. The
framework's counters are part of the registered state. Used by ``huggingface`` and
``lightning``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from bftrainer.elastic.data.loader import reloaded
from bftrainer.elastic.network.shards import is_sharded
from bftrainer.elastic.run import Run
from bftrainer.elastic.script.batch import BatchPiece, GlobalBatch, LogicalWorkers
from bftrainer.elastic.script.torch_compat import tree_map
from bftrainer.ground.errors import ElasticError

_NOTHING = object()


class Counted:
    """The counters of a framework; each hook has its own, with ``state_dict`` and its inverse.

    A framework may count a batch in two parts, before and after the update. The state handed
    over must be that between two steps, even while a step is being repeated.
    """

    def remember(self) -> None:
        """Save the counters: ``state_dict`` returns them until ``forget``."""

    def forget(self) -> None:
        """Discard them: the update is done, the framework counts the second part next."""

    def begin(self) -> None:
        """Count the first part of a batch that the framework does not see."""

    def reopen(self) -> None:
        """Undo the end of an epoch, which the framework will count."""


class Driven(Run):
    """A run whose loop and step are called by a framework."""

    def __init__(
        self, *args: Any, hook: FrameworkHook, counted: Counted, extra: Any, **kwargs: Any
    ) -> None:
        super().__init__(*args, extra={"framework": counted, **extra}, **kwargs)
        self._hook, self._counted = hook, counted
        self._left_epochs = self.epochs()
        self._source: Iterator[Any] = iter(())
        self._is_fresh = False  # the run's epoch has begun, no batch was read
        self._held: Any = _NOTHING  # a batch of the next epoch, fetched in the last
        self._serving = -1
        self._sound: dict[str, Any] | None = None  # state before uncounted work
        self._buffers: list[torch.Tensor] = []  # before samples that do not count

    @property
    def is_discounted(self) -> bool:
        """Return whether the framework's present work belongs to no step of the run."""
        return self._sound is not None

    @property
    def is_trained(self) -> bool:
        """True if no step is left; a submission may request less than the framework would do."""
        counters = self._membership.counters
        after = replace(counters, epoch=counters.epoch + 1)
        return not self._next_batch() and self._length.is_done(after)

    @property
    def rehearsing(self) -> bool:
        """True if the present batch does not count: a rehearsal, or this worker has no share."""
        has_none = self._life.has_batch and not self._pieces(self._pass.batch)
        return super().rehearsing or has_none

    @property
    def goes_on(self) -> bool:
        """Return whether this worker returns from the framework's training when the run ends."""
        return self.rank < self._membership.savers and not self._life.is_rehearsing

    @property
    def is_sharded(self) -> bool:
        """Return whether the model is sharded over the workers of a node."""
        return self._shards is not None

    def of_first(self, decision: bool) -> bool:
        """Return what the node's first worker decides where all must do the same."""
        if self._shards is None:
            return decision
        return self._shards.node.sums(int(decision and self._shards.node.rank == 0))[0] > 0

    def gathered(self, tree: Any) -> Any:
        """Return a state with whole tensors in host memory, on rank 0; elsewhere they are empty.

        All workers of a node gather together where the model is sharded.
        """
        if self._shards is None or self.rank >= self._membership.savers:
            return tree

        def whole(value: Any) -> Any:
            if not is_sharded(value):
                return value
            full = value.detach().full_tensor()
            return full.cpu() if self.rank == 0 else full.new_empty(0)

        return tree_map(whole, tree)

    def open(self) -> None:
        """Begin; a script run without an agent enters its only generation here."""
        self._is_fresh = self._advance()

    def epoch_batches(self) -> Iterator[Any]:
        """Iterate over the batches of one epoch, for the framework to train and update with.

        Epochs without remaining batches are skipped, so a joiner's first batch is at the run's
        position.
        """
        self._settle()
        if self._held is _NOTHING:
            self._hold_next(may_advance=True)
        elif self._cutting.logical and (pieces := self._held_pieces()):
            self._seed(pieces[-1].logical)  # the framework may have drawn random numbers
        if self._held is _NOTHING:
            return
        self._serving = self.epoch
        while True:
            batch = self._take()
            self._counted.remember()
            yield batch
            # A generation that begins at the end of an epoch begins for all workers with the
            # next epoch; only a worker that joined in this one is asked for a batch here.
            if self.is_discounted or not self._next_batch() or not self._follow():
                return

    def step(self) -> bool:
        """As ``Run.step``; also restores the buffers after samples that do not count."""
        for buffer, value in zip(self._state.buffers(), self._buffers, strict=False):
            buffer.copy_(value)
        self._buffers = []
        return super().step()

    def update(self) -> None:
        """Apply the averaged gradients of the present batch, in place of the optimizer's step.

        Returns when the step is committed, however often it is repeated; also if the others
        had committed it and the epoch is over.
        """
        while not self.step():
            if not self._follow():
                return
            batch = self._take()
            self._counted.remember()
            self._counted.begin()
            self._hook.train(batch)
            self._hook.ready()
        self._counted.forget()

    def close(self) -> None:
        """End the run; the framework continues only where this returns, see ``Run.finish``."""
        self._settle()
        self.finish()

    def _enter_before_epoch(self) -> None:
        """Do nothing: the framework's counters of the beginning would replace those handed over."""

    def _is_in_vain(self) -> bool:
        return self.is_discounted or super()._is_in_vain()

    def _pieces(self, batch: int) -> Sequence[BatchPiece]:
        return self._cutting.pieces(batch, *self._division)

    def _held_pieces(self) -> Sequence[BatchPiece]:
        """Return this worker's pieces of the batch that it holds; it is not stepped with yet."""
        if not self._life.has_batch:
            return ()
        return self._pieces(self._pass.batch)

    def _step_without_samples(self, batch: int) -> Iterator[Any]:
        """Give the framework uncounted samples, so that it steps as on the other workers."""
        if not self._cutting.logical:  # in bitwise mode all get the buffers of the first
            self._buffers = [buffer.clone() for buffer in self._state.buffers()]
        self._pass.is_last = True
        self._take_in_hand(batch, 0)
        self._rows.serve_none()
        yield self._loader.rehearsal(self._cutting.least)
        self._require_stepped()

    def _callers(self) -> Sequence[int]:
        """Return all ranks: a framework steps on each of them."""
        return range(self.size)

    def _bring_along(self, batch: int) -> None:
        """Do nothing: all members have stepped."""
        del batch

    def _take(self) -> Any:
        batch, self._held = self._held, _NOTHING
        return batch

    def _advance(self) -> bool:
        return next(self._left_epochs, None) is not None

    def _hold_next(self, *, may_advance: bool) -> None:
        """Fetch the framework's next batch; hold nothing at the end."""
        if may_advance:
            if not self._is_fresh and not self._advance():
                return
            self._is_fresh = False
            self._source = self.batches()
        while True:
            for batch in self._source:
                if self.is_last_pass and not self._life.is_rehearsing:
                    self._held = batch
                    return
                self._hook.train(batch)
                if self._life.is_rehearsing:
                    self._hook.ready()
                self.step()
            if not may_advance or not self._advance():
                return
            self._source = self.batches()

    def _follow(self) -> bool:
        """Hold the epoch's next batch; return False if the others have ended the epoch.

        What the framework then does until it begins the next epoch is discarded.
        """
        self._hold_next(may_advance=False)
        if self._held is not _NOTHING and self.epoch == self._serving:
            return True
        self._sound = self._state.snapshot_light()
        self._counted.reopen()
        return False

    def _settle(self) -> None:
        """Undo what the framework did since its work stopped counting."""
        if self._sound is not None:
            self._state.restore_light(self._sound)
            self._sound = None


class Batches:
    """The loader given to the framework: its length is the updates of an epoch."""

    def __init__(self, loader: DataLoader[Any], run: Callable[[], Driven]) -> None:
        self.dataset = loader.dataset
        self.batch_size = loader.batch_size
        self._updates = len(loader)
        self._run = run  # a callable: the run is built after the framework takes its loader

    def __len__(self) -> int:
        return self._updates

    def __iter__(self) -> Iterator[Any]:
        yield from self._run().epoch_batches()


class FrameworkHook:
    """The common part of the callbacks: a run, and a framework's loader as the run's batches."""

    run: Driven | None = None
    not_started: tuple[str, str]  # cause and next step where the framework trains without us
    _loader: DataLoader[Any] | None = None
    _passes = 1  # a pass of ours is a batch for the framework; we do the accumulation
    _bitwise: LogicalWorkers | None
    _report: str | None
    _loss: str | None
    _equal: str

    def train(self, batch: Any) -> None:
        """Clear the gradients and run the model forward and backward, unseen by the framework."""
        raise NotImplementedError

    def ready(self) -> None:
        """Do what comes between backward and update: clip."""
        raise NotImplementedError

    def batches_of(self, loader: Any) -> Batches:
        """Return our batches in place of the framework's loader."""
        self._loader = plain_loader(loader, passes=self._passes)
        return Batches(self._loader, self.started)

    def build(
        self, model: Any, optimizer: Any, counted: Counted, extra: Any, **options: Any
    ) -> Driven:
        """Return the run of the objects that the framework has built."""
        loader, batch = self._loader, None
        if loader is None:
            raise unusable(*self.not_started)
        if self._passes > 1 and self._bitwise is None and loader.batch_size:
            batch = GlobalBatch(max_per_worker=loader.batch_size // self._passes)
        options |= {"batch": batch, "bitwise": self._bitwise, "loss": self._loss, "hook": self}
        options |= {"equal": self._equal}
        extra = {name: thing for name, thing in extra.items() if thing}
        self.run = Driven(model, optimizer, loader, counted=counted, extra=extra, **options)
        return self.run

    def started(self) -> Driven:
        """Return the run; raise BFT-1420 before it is built."""
        if self.run is None:
            raise unusable(*self.not_started)
        return self.run

    def may_log(self) -> bool:
        """Return whether what the framework logs now goes to trackers that only rank 0 has."""
        return self.run is None or not self.run.is_first or self.run.should_log()

    def report_from(self, metrics: Mapping[str, Any]) -> None:
        """Report a framework's metric if it is among these."""
        if self.run is not None and self._report is not None and self._report in metrics:
            self.run.report(metrics[self._report])

    def close(self) -> None:
        """End the run; only rank 0 continues, and its node's workers if the model is sharded."""
        if self.run is not None:
            self.run.close()


def unusable(cause: str, next_step: str) -> ElasticError:
    """Return the error of an unsupported set-up of a framework."""
    return ElasticError("BFT-1420", cause, next_step)


def plain_loader(loader: Any, *, passes: int) -> DataLoader[Any]:
    """Return a framework's loader as a plain one, with the batch of a whole update.

    ``passes``: how many of the framework's batches make an update. A sampler that cannot be
    split is kept, for ``Run`` to refuse.
    """
    batching = loader.batch_sampler
    sampler = getattr(batching, "sampler", loader.sampler)
    size = loader.batch_size or getattr(batching, "batch_size", None)
    if isinstance(sampler, RandomSampler) and not sampler.replacement:
        order: dict[str, Any] = {"shuffle": True}  # replaces the framework's own sampler
    elif isinstance(sampler, SequentialSampler):
        order = {"shuffle": False}
    else:
        order = {"sampler": sampler}
    return reloaded(
        loader,
        batch_size=None if size is None else size * passes,
        drop_last=bool(getattr(batching, "drop_last", False)),
        **order,
    )
