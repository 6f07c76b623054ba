"""The declaration of a batch by a script, and its division among the workers.

A script gives ``Run`` a ``GlobalBatch`` or a ``PerWorkerBatch``, and optionally
``LogicalWorkers``; a submission with ``--batch`` makes it a ``DecidedBatch``. From these follow
the size of each global batch and each worker's pieces of it. Which samples these are follows from
(seed, epoch) and the number of samples consumed so far in the epoch by all workers together, so a
rescale needs no other state: every index is in exactly one global batch per epoch, whatever the
sizes. Pure arithmetic, without torch: MPI programs do without; called by ``run`` and ``loader``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from typing import Literal, TypeAlias

from bftrainer.ground.errors import ElasticError

_MIX = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1
_MASK = (1 << 63) - 1


def mix(*numbers: int) -> int:
    """Return a 63-bit seed that depends on all numbers and their order."""
    state = 0
    for number in numbers:
        state = (state ^ (number & _WORD)) * _MIX & _WORD
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
    order_hash: int = 0  # of the script's own order of epoch 0; 0: there is none

    def order_id(self) -> int:
        """Return a number that differs if two workers' loaders use different orders."""
        numbers = [self.drop_last, self.shuffle, *self.shards]
        if self.order_hash:
            numbers.append(self.order_hash)
        return mix(*numbers)

    @property
    def epoch_samples(self) -> int:
        """Samples one epoch consumes."""
        if self.drop_last:
            return self.samples - self.samples % self.batch
        return self.samples

    def global_batch(self, position: int, budget: int | None = None, whole: int = 0) -> int:
        """Return the size of the batch that starts after ``position`` samples; 0 at the end.

        ``budget``: limit, the samples that the whole run may still consume. ``whole``: samples
        of a full global batch; 0: the loader's.
        """
        samples = min(whole or self.batch, self.epoch_samples - position)
        if budget is not None:
            samples = min(samples, budget)
        return max(0, samples)


NO_PLAN = EpochPlan(samples=0, batch=0, drop_last=False, shuffle=False)


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
    base, n_larger = divmod(batch, size)
    start = rank * base + min(rank, n_larger)
    return start, start + base + int(rank < n_larger)


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalBatch:
    """The loader's ``batch_size`` is the batch of all workers together, at every size.

    A worker whose share exceeds ``max_per_worker`` samples processes it in several passes
    and accumulates their gradients.
    """

    max_per_worker: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PerWorkerBatch:
    """The loader's ``batch_size`` is that of each worker; ``rule`` scales the learning rate.

    The optimizer's learning rate is meant for ``base_workers`` workers. With S times as
    many it is multiplied by S (``linear``), by its square root (``sqrt``), or by the gain
    that the gradient noise allows (``adascale``), between 1 and S.
    """

    rule: Literal["linear", "sqrt", "adascale"] = "linear"
    base_workers: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedBatch:
    """Each generation is told its global batch (``submit --batch``).

    Until it is, and by hand, that is the loader's ``batch_size``, for which the optimizer's
    learning rate is meant; ``rule`` scales the rate as in ``PerWorkerBatch``. A worker whose share
    exceeds ``max_per_worker`` samples processes it in several passes.
    """

    max_per_worker: int
    rule: Literal["linear", "sqrt", "adascale", "none"] = "adascale"


BatchRule: TypeAlias = GlobalBatch | PerWorkerBatch | DecidedBatch


@dataclass(frozen=True, slots=True)
class LogicalWorkers:
    """Bitwise mode: every step is computed as if by ``count`` workers, at every size.

    Each logical worker has its own share and random streams; gradients are added in their
    order.
    """

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Batch and learning rate of a generation; printed when it begins."""

    batch: int = 0  # effective global batch
    scale: float = 1.0  # of the batch, to the one that the learning rate is meant for
    lr_factor: float = 1.0  # at the beginning; adascale changes it later
    shares: tuple[int, ...] = ()  # samples of each rank in a full batch
    passes: tuple[int, ...] = ()  # number of passes of each rank


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPiece:
    """Samples of a global batch that one worker takes in one pass."""

    start: int
    stop: int
    logical: int = 0  # the logical worker they belong to

    @property
    def samples(self) -> int:
        """Number of samples."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutting:
    """Cuts global batches for one run."""

    rule: BatchRule = GlobalBatch()
    logical: int = 0  # logical workers, 0 = not in bitwise mode
    least: int = 1  # samples in a piece at least, see active
    parts: int = 0  # of a node's samples where models are sharded, see node_pieces; 0: they are not

    @property
    def is_parted(self) -> bool:
        """Return whether a step may have several passes."""
        return bool(self.logical) or self.most is not None

    @property
    def most(self) -> int | None:
        """Samples that a worker takes in one pass."""
        if isinstance(self.rule, PerWorkerBatch):
            return None
        return self.rule.max_per_worker

    def whole(self, batch: int, size: int, told: int = 0) -> int:
        """Return the global batch, of the loader's and the one this generation is told."""
        if isinstance(self.rule, DecidedBatch):
            return told or batch
        if isinstance(self.rule, PerWorkerBatch):
            return batch * size
        return batch

    def scale(self, batch: int, size: int, told: int = 0) -> float:
        """Return how many times the batch that the learning rate is meant for this is."""
        if isinstance(self.rule, PerWorkerBatch):
            return size / self.rule.base_workers
        return self.whole(batch, size, told) / batch

    def active(self, batch: int, size: int) -> int:
        """Return how many of ``size`` workers take part in a step: the first ones."""
        if self.parts:
            return size
        if self.logical:
            return min(size, active(batch, self.logical, self.least))
        return active(batch, size, self.least)

    def pieces(self, batch: int, size: int, rank: int) -> tuple[BatchPiece, ...]:
        """Return the pieces of a global batch that ``rank`` processes, one per pass.

        Where models are sharded ``size`` and ``rank`` count the parts of all nodes.
        """
        if self.parts:
            node, part = divmod(rank, self.parts)
            return _node_pieces(self, batch, size // self.parts, node)[part]
        return _pieces(self, batch, size, rank)

    def terms(self, batch: int, size: int, lr_factor: float, told: int = 0) -> Terms:
        """Return the terms of a generation of ``size`` workers; ``batch``: the loader's."""
        whole = self.whole(batch, size, told)
        shares: list[int] = []
        passes: list[int] = []
        for rank in range(size):
            pieces = self.pieces(whole, size, rank)
            shares.append(sum(piece.samples for piece in pieces))
            passes.append(len(pieces))
        return Terms(
            batch=whole,
            scale=self.scale(batch, size, told),
            lr_factor=lr_factor,
            shares=tuple(shares),
            passes=tuple(passes),
        )

    def rehearsal(self, batch: int, shares: int = 2) -> int:
        """Return the number of samples of a joiner's rehearsal.

        ``shares``: into how many the smallest generation cuts a batch; there may be no memory for
        more than one of them.
        """
        samples = -(-batch // max(2, shares))
        if self.logical:
            samples = -(-batch // self.logical)
        elif isinstance(self.rule, PerWorkerBatch):
            samples = batch
        elif self.most is not None:
            samples = min(samples, self.most)
        return max(samples, self.least)


@lru_cache(maxsize=4096)  # called several times per step with equal arguments
def _pieces(cutting: Cutting, batch: int, size: int, rank: int) -> tuple[BatchPiece, ...]:
    if cutting.logical:
        count = active(batch, cutting.logical, cutting.least)
        return _logical_pieces(cutting, batch, range(*share(count, size, rank)))
    first, last = share(batch, size, rank, cutting.least)
    if first == last:
        return ()
    passes = 1
    if cutting.most is not None:
        passes = -(-(last - first) // cutting.most)
    pieces: list[BatchPiece] = []
    for number in range(passes):
        start, stop = share(last - first, passes, number, cutting.least)
        if start < stop:
            pieces.append(BatchPiece(start=first + start, stop=first + stop))
    return tuple(pieces)


def _logical_pieces(cutting: Cutting, batch: int, workers: range) -> tuple[BatchPiece, ...]:
    """Return the pieces of these logical workers."""
    pieces: list[BatchPiece] = []
    for worker in workers:
        start, stop = share(batch, cutting.logical, worker, cutting.least)
        pieces.append(BatchPiece(start=start, stop=stop, logical=worker))
    return tuple(pieces)


@lru_cache(maxsize=4096)
def _node_pieces(
    cutting: Cutting, batch: int, nodes: int, node: int
) -> tuple[tuple[BatchPiece, ...], ...]:
    """Return the pieces of each part of a node: equally many, some perhaps without samples.

    A model that is sharded over a node's workers computes only if all of them do. In bitwise mode
    the parts of a node compute the logical workers of one group at a time, so that their gradients
    are added in the same order on every node.
    """
    parts = cutting.parts
    by_part: list[tuple[BatchPiece, ...]] = []
    if not cutting.logical:
        plain = replace(cutting, parts=0)
        ranks = range(node * parts, (node + 1) * parts)
        by_part = [_pieces(plain, batch, nodes * parts, rank) for rank in ranks]
    else:
        count = active(batch, cutting.logical, cutting.least)
        first, last = share(-(-count // parts), nodes, node)
        for part in range(parts):
            workers = range(first * parts + part, last * parts + part, parts)
            by_part.append(_logical_pieces(cutting, batch, workers))
    passes = max(1, *map(len, by_part))
    nothing = BatchPiece(start=0, stop=0)
    return tuple((*[nothing] * (passes - len(pieces)), *pieces) for pieces in by_part)


def in_words(terms: Terms, attempt: str, backend: str = "") -> str:
    """Return the log line that describes a generation's terms."""
    size = len(terms.shares)
    text = f"generation {attempt}: {size} worker{'s' if size > 1 else ''}"
    text += f", global batch {terms.batch} = {_runs(terms.shares)}"
    if max(terms.passes, default=1) > 1:
        text += f", in passes {_runs(terms.passes)}"
    text += f", learning rate x {terms.lr_factor:.4g}"
    if backend:
        text += f", {backend}"
    return text


def _runs(numbers: tuple[int, ...]) -> str:
    """Return a sum as text, runs of equal numbers as ``COUNT x NUMBER``."""
    texts = []
    for number, run in groupby(numbers):
        count = len(list(run))
        texts.append(f"{count} x {number}" if count > 1 else str(number))
    return " + ".join(texts)


def cutting_of(
    batch: object,
    bitwise: object,
    *,
    loader_batch: int,
    least: int,
    decided: DecidedBatch | None = None,
    parts: int = 0,
) -> Cutting:
    """Return the ``Cutting`` of a script's declarations; raise BFT-1403 if it is impossible.

    ``decided``: what the submission says. ``parts``: see ``Cutting``.
    """
    rule = GlobalBatch() if batch is None else batch
    if not isinstance(rule, GlobalBatch | PerWorkerBatch):
        raise _refused(
            f"batch is a {type(rule).__name__}",
            "Give elastic.GlobalBatch(...) or elastic.PerWorkerBatch(...)",
        )
    if bitwise is not None and not isinstance(bitwise, LogicalWorkers):
        raise _refused(
            f"bitwise is a {type(bitwise).__name__}", "Give elastic.LogicalWorkers(COUNT)"
        )
    logical = 0 if bitwise is None else bitwise.count
    _check(rule, bitwise, loader_batch, least)
    if decided is not None:
        rule = _decided(rule, bitwise, decided, least)
    if parts and logical % parts:
        raise _refused(
            f"{logical} logical workers cannot be divided over the {parts} workers of a node, over"
            " which the model is sharded",
            f"Use a multiple of {parts}",
        )
    return Cutting(rule=rule, logical=logical, least=least, parts=parts)


def _decided(
    rule: GlobalBatch | PerWorkerBatch,
    bitwise: LogicalWorkers | None,
    decided: DecidedBatch,
    least: int,
) -> DecidedBatch:
    if bitwise is not None or isinstance(rule, PerWorkerBatch):
        declared = "PerWorkerBatch" if bitwise is None else "bitwise"
        raise _refused(
            f"The script declares {declared}, and was submitted with --batch",
            "Leave out one of them",
        )
    max_per_worker = min(decided.max_per_worker, rule.max_per_worker or decided.max_per_worker)
    if max_per_worker < 2 * least - 1:
        raise _refused(
            f"--batch-per-worker {max_per_worker} is too small for this model",
            f"Allow at least {2 * least - 1}",
        )
    return replace(decided, max_per_worker=max_per_worker)


def _check(
    rule: GlobalBatch | PerWorkerBatch,
    bitwise: LogicalWorkers | None,
    loader_batch: int,
    least: int,
) -> None:
    if isinstance(rule, PerWorkerBatch):
        if rule.rule not in ("linear", "sqrt", "adascale") or rule.base_workers < 1:
            raise _refused(
                f"PerWorkerBatch cannot have rule={rule.rule!r}, base_workers={rule.base_workers}",
                "Use linear, sqrt or adascale, and at least one worker",
            )
        if bitwise is not None:
            raise _refused(
                "bitwise=LogicalWorkers needs the same global batch at every size",
                "Use it with batch=GlobalBatch()",
            )
        return
    max_per_worker = rule.max_per_worker
    if max_per_worker is not None and max_per_worker < 2 * least - 1:
        # Pieces of at most `max_per_worker` samples must not have fewer than `least`.
        raise _refused(
            f"max_per_worker={max_per_worker} is too small for this model",
            f"Allow at least {2 * least - 1}",
        )
    if bitwise is None:
        return
    if bitwise.count < 1 or bitwise.count * least > loader_batch:
        raise _refused(
            f"A batch of {loader_batch} cannot be cut for {bitwise.count} logical workers",
            f"Use 1 to {max(1, loader_batch // least)} of them",
        )
    share = -(-loader_batch // bitwise.count)
    if max_per_worker is not None and share > max_per_worker:
        raise _refused(
            f"A logical worker's share of {share} samples exceeds max_per_worker={max_per_worker}",
            "Use more logical workers: their shares may not depend on the size",
        )


def _refused(cause: str, next_step: str) -> ElasticError:
    return ElasticError("BFT-1403", f"{cause}.", f"{next_step}.")
