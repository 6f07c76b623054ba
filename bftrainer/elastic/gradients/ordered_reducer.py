"""Adds the gradients of logical workers in a fixed order: the bitwise mode.

Each worker keeps the gradients of its logical workers separate. Every member then receives one
slice of all of them, adds them in the order of the logical workers, and sends the sum to all: the
additions and their order are the same at every size, so the result is bit-identical. Buffers
(running averages) are those of logical worker 0. Memory: one copy of the gradients per logical
worker, divided among the members. It is host memory, because only gloo leaves the order of sums to
us. Used by ``run``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from bftrainer.elastic.gradients.buckets import GradientReducer
from bftrainer.elastic.gradients.comparison import StateComparison
from bftrainer.elastic.gradients.gradient_bucket import GradientBucket
from bftrainer.elastic.gradients.loss_rule import LossRule
from bftrainer.elastic.network import group as groups
from bftrainer.elastic.network.device import host_memory
from bftrainer.elastic.network.group import Broken, Group
from bftrainer.elastic.network.shards import Shards
from bftrainer.elastic.script import torch_compat
from bftrainer.elastic.state.state import pack, unpack


class SharedBuffers(NamedTuple):
    """Buffers on their way to all members."""

    values: torch.Tensor
    work: Any


class Exchange:
    """Memory for the exchange of one bucket's slices, made for one generation."""

    def __init__(self, bucket: GradientBucket, size: int, rank: int, passes: Sequence[int]) -> None:
        width = bucket.flat.numel() // size  # of a slice; buckets are padded to a multiple of size
        empty = partial(host_memory, like=bucket.flat)
        self.leaves = empty((size, passes[rank], width))  # our gradients, by adding member
        self.slices = empty((sum(passes), width))  # our slice of all logical workers, in order
        self.part = empty(width + 1)  # sum of our slice, and our vote
        self.parts = empty((size, width + 1))
        self.splits = ([count * width for count in passes], [passes[rank] * width] * size)

    def scatter(self, pg: Any) -> Any:
        """Start to send every member its slice of our gradients."""
        return pg.alltoall_base(self.slices.view(-1), self.leaves.view(-1), *self.splits)

    def add_up(self, vote: float) -> None:
        """Add the slices in the order of the logical workers."""
        total = self.part[:-1]
        total.copy_(self.slices[0])
        for leaf in self.slices[1:]:
            total.add_(leaf)
        self.part[-1] = vote


class OrderedReducer(GradientReducer):
    """Adds the gradients of logical workers in their order."""

    overlaps = False

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        buffers: Callable[[], list[torch.Tensor]],
        rule: LossRule | None = None,
        shards: Shards | None = None,
        comparison: StateComparison | None = None,
    ) -> None:
        self._padding = 1
        self._exchanges: dict[tuple[int, tuple[int, ...]], Exchange] = {}
        self._all_buffers = buffers
        self._before: list[torch.Tensor] = []  # buffers when the step began
        self._first: list[torch.Tensor] = []  # buffers after logical worker 0
        self._number = 0
        self._passes: tuple[int, ...] = (1,)
        super().__init__(
            parameters, rule=rule, works_alone=True, shards=shards, comparison=comparison
        )

    def _allocate(self) -> None:
        super()._allocate()
        self._exchanges = {}
        self.buckets = list(map(self._padded, self.buckets))
        self._index()

    def _padded(self, bucket: GradientBucket) -> GradientBucket:
        """Return a bucket that can be cut into slices of the same width."""
        flags = 0
        if len(bucket.flags):  # made without padding
            flags = self._vote_layout.size
        short = -(bucket.count + flags) % self._padding
        return GradientBucket(bucket.members, self._locals, flags + short, of_node=bucket.of_node)

    def bind(
        self, group: Group | None, vote: Callable[[], bool], abandoned: Callable[[], bool]
    ) -> None:
        """Attach to a new generation, with fresh memory."""
        super().bind(group, vote, abandoned)
        self._padding = self._n_copies
        self._allocate()

    def begin(self, share: float, number: int = 0, passes: Sequence[int] = (1,)) -> None:
        """Start the pass of one logical worker."""
        if number == 0:
            self._before = list(map(torch.clone, self._buffers))
            self._first = []
        else:
            self._restore(self._before)
        super().begin(share, number, passes)
        self._number, self._passes = number, tuple(passes)

    def contribute_nothing(self, passes: Sequence[int] = (1,)) -> None:
        """Take part in a step in which no logical worker is ours."""
        self.begin(0.0, passes=passes)
        self.is_listening = self.has_samples = False
        self.finish()

    @property
    def _buffers(self) -> list[torch.Tensor]:
        # Not cached: a module may replace a buffer's tensor.
        return [buffer for buffer in self._all_buffers() if buffer.numel()]

    def fail(self, broken: Broken) -> None:
        """Make the present step void; buffers are again what they were before it."""
        super().fail(broken)
        self._restore(self._before)

    def _restore(self, values: Sequence[torch.Tensor]) -> None:
        with torch.no_grad():
            for target, value in zip(self._buffers, values, strict=True):
                target.copy_(value)

    def finish(self) -> None:
        """Keep this pass's gradients; after the last one, reduce and wait."""
        if self.is_finished:
            return
        self.is_finished = True
        self.is_listening = False
        if not self._is_bound:
            return  # a rehearsal
        self._decide()
        if self.broken is not None:
            self._restore(self._before)
            return
        is_first = self.group is None or self.group.rank == 0
        if is_first and self._number == 0:
            self._first = list(map(torch.clone, self._buffers))
        if self._passes[self._place]:
            self._keep_leaves()
        if self._is_last:
            self._reduce()

    def _keep_leaves(self) -> None:
        for k, bucket in enumerate(self.buckets):
            for i in bucket.members:
                self._take(i)
            if bucket.of_node and self._shards is not None:
                self._shards.sum_over_node(bucket.flat)
            if bucket is self.buckets[-1]:  # others may have padding there
                self._carried = [False] * len(self.params)
                self._vote_layout.write(
                    bucket.flags,
                    votes=False,  # that of all passes goes with the exchange
                    marks=self._marks(),
                    declared=self._declared_here,
                    compared=self._compared_once(),
                )
            if self._copies is not None:
                exchange = self._exchange(k)
                exchange.leaves[:, self._number].copy_(bucket.flat.view(self._copies.size, -1))
            elif bucket.carry is None:
                bucket.carry = bucket.flat.clone()
            elif self._number == 0:
                bucket.carry.copy_(bucket.flat)
            else:
                bucket.carry.add_(bucket.flat)

    def _compared_once(self) -> list[float]:
        """Return it in the first pass: the sums are over all passes of all members."""
        if self._number > 0:
            return [0.0] * self._width
        return self._compared()

    @property
    def _n_copies(self) -> int:
        if self._copies is None:
            return 1
        return self._copies.size

    def _exchange(self, k: int) -> Exchange:
        key = (k, self._passes)
        if key not in self._exchanges:
            bucket = self.buckets[k]
            self._exchanges[key] = Exchange(bucket, self._n_copies, self._place, self._passes)
        return self._exchanges[key]

    def _reduce(self) -> None:
        if self._copies is None:
            for bucket in self.buckets:
                if bucket.carry is not None:
                    bucket.flat.copy_(bucket.carry)
        if self.group is None:
            self._restore(self._first)
            self._hand_out()
            return
        began_s = time.monotonic()
        self.broken = self._exchange_all(self.group)
        self.waited_s = time.monotonic() - began_s
        if self.broken is None:
            self._hand_out()
            return
        self._restore(self._before)
        # Abandoned collectives may still write to this memory.
        self._exchanges = {}

    def _exchange_all(self, group: Group) -> Broken | None:
        votes = bool(self._vote())
        pg: Any = None
        exchanges: list[Exchange] = []
        if self._copies is not None:
            pg = self._copies.pg
        if pg:
            exchanges = list(map(self._exchange, range(len(self.buckets))))
        scattered = [exchange.scatter(pg) for exchange in exchanges]
        gathered: list[Any] = []
        for exchange, work in zip(exchanges, scattered, strict=True):
            if broken := groups.settle(work, self._abandoned):
                return broken
            exchange.add_up(float(votes))
            gathered.append(torch_compat.gather_all(pg, exchange.parts.view(-1), exchange.part))
        shared = self._share_buffers(group)
        if shared is not None:
            gathered.append(shared.work)
        for work in gathered:
            if broken := groups.settle(work, self._abandoned):
                return broken
        for bucket, exchange in zip(self.buckets, exchanges, strict=False):
            bucket.flat.view(len(exchange.parts), -1).copy_(exchange.parts[:, :-1])
        if exchanges:
            self._vote_layout.put_votes(self.buckets[-1].flags, exchanges[-1].parts[:, -1].sum())
        if self._shards is not None and (broken := self._count_all(group, votes=votes)):
            return broken
        if shared is not None:
            unpack(shared.values, self._buffers)
        return None

    def _count_all(self, group: Group, *, votes: bool) -> Broken | None:
        """Sum votes and weights over all workers; those of one shard are not all."""
        layout = self._vote_layout.without_marks()
        counts = torch.empty(layout.size, dtype=torch.float64)
        layout.write(
            counts,
            votes=votes,
            marks=None,
            declared=self._declared_so_far,
            compared=self._compared(),
        )
        broken = groups.settle(group.control.all_reduce(counts), self._abandoned)
        if broken is None:
            self._vote_layout.put_counts(self.buckets[-1].flags, counts)
        return broken

    def _share_buffers(self, group: Group) -> SharedBuffers | None:
        if not self._buffers:
            return None
        values = pack(self._first or self._before)
        return SharedBuffers(values, group.control.broadcast(values, 0))
