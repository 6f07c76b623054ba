"""Bitwise mode: adds the gradients of logical workers in a fixed order.

Each worker keeps the gradients of its logical workers separate. Every member then receives one
slice of all of them, adds them in the order of the logical workers, and sends the sum to all:
the additions and their order are the same at every size, so the result is bit-identical.
Buffers (running averages) are those of logical worker 0. Memory: one copy of the gradients per
logical worker, divided among the members. It is host memory, because only gloo leaves the order
of sums to us. Used by ``run`` in place of ``buckets.GradientReducer``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from bftrainer.elastic import group as groups
from bftrainer.elastic.buckets import GradientBucket, GradientReducer, weigh
from bftrainer.elastic.device import host_memory
from bftrainer.elastic.group import Broken, Group
from bftrainer.elastic.loss_rule import LossRule
from bftrainer.elastic.state import pack, unpack


class Exchange:
    """Memory for the exchange of one bucket's slices, made for one generation."""

    def __init__(self, bucket: GradientBucket, size: int, rank: int, passes: Sequence[int]) -> None:
        width = bucket.flat.numel() // size  # of a slice; buckets are padded to a multiple of size
        new = partial(host_memory, like=bucket.flat)
        self.leaves = new((size, passes[rank], width))  # our gradients, by adding member
        self.slices = new((sum(passes), width))  # our slice of all logical workers, in order
        self.part = new(width + 1)  # sum of our slice, and our vote
        self.parts = new((size, width + 1))
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
    ) -> None:
        self._padding = 1
        self._exchanges: dict[tuple[int, tuple[int, ...]], Exchange] = {}
        self._all_buffers = buffers
        self._before: list[torch.Tensor] = []  # buffers when the step began
        self._first: list[torch.Tensor] = []  # buffers after logical worker 0
        self._number = 0
        self._passes: tuple[int, ...] = (1,)
        super().__init__(parameters, rule=rule, works_alone=True)

    def _allocate(self) -> None:
        super()._allocate()
        self._exchanges = {}
        self.buckets = [self._padded(b) for b in self.buckets]
        self._index()

    def _padded(self, bucket: GradientBucket) -> GradientBucket:
        """Return a bucket that can be cut into slices of the same width."""
        flags = self._flag_count if len(bucket.flags) else 0
        short = -(bucket.count + flags) % self._padding
        return GradientBucket(bucket.members, self.params, flags + short)

    def bind(
        self, group: Group | None, vote: Callable[[], bool], abandoned: Callable[[], bool]
    ) -> None:
        """Attach to a new generation, with fresh memory."""
        super().bind(group, vote, abandoned)
        self._padding = 1 if group is None else group.size
        self._allocate()

    def begin(self, share: float, number: int = 0, passes: Sequence[int] = (1,)) -> None:
        """Start the pass of one logical worker."""
        if number == 0:
            self._before = [b.clone() for b in self._buffers]
            self._first = []
        else:
            self._restore(self._before)
        super().begin(share, number, passes)
        self._number, self._passes = number, tuple(passes)

    def contribute_nothing(self, passes: Sequence[int] = (1,)) -> None:
        """Take part in a step in which no logical worker is ours."""
        self.begin(0.0, passes=passes)
        self.is_listening = False
        self.finish()

    @property
    def _buffers(self) -> list[torch.Tensor]:
        # Not cached: a module may replace a buffer's tensor.
        return [b for b in self._all_buffers() if b.numel()]

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
        rank = 0 if self.group is None else self.group.rank
        if rank == 0 and self._number == 0:
            self._first = [b.clone() for b in self._buffers]
        if self._passes[rank]:
            self._keep_leaves()
        if self._is_last:
            self._reduce()

    def _keep_leaves(self) -> None:
        for k, bucket in enumerate(self.buckets):
            for i in bucket.members:
                weigh(self.params[i].grad, self._weight, bucket.views[i])
            if len(bucket.flags):
                self._carried = [False] * len(self.params)
                bucket.flags.zero_()
                marks = torch.tensor(self._marks(), dtype=bucket.flags.dtype)
                bucket.flags[1 : 1 + len(self.params)] = marks
                at = 1 + len(self.params)
                bucket.flags[at : at + 2] = torch.tensor(self._given_here, dtype=bucket.flags.dtype)
            if self.group is not None:
                exchange = self._exchange(k)
                exchange.leaves[:, self._number].copy_(bucket.flat.view(self.group.size, -1))
            elif bucket.carry is None:
                bucket.carry = bucket.flat.clone()
            elif self._number == 0:
                bucket.carry.copy_(bucket.flat)
            else:
                bucket.carry.add_(bucket.flat)

    def _exchange(self, k: int) -> Exchange:
        key = (k, self._passes)
        if key not in self._exchanges:
            size, rank = (1, 0) if self.group is None else (self.group.size, self.group.rank)
            self._exchanges[key] = Exchange(self.buckets[k], size, rank, self._passes)
        return self._exchanges[key]

    def _reduce(self) -> None:
        if self.group is None:
            for bucket in self.buckets:
                if bucket.carry is not None:
                    bucket.flat.copy_(bucket.carry)
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
        exchanges = [self._exchange(k) for k in range(len(self.buckets))]
        vote = 1.0 if self._vote() else 0.0
        scattered = [e.scatter(group.pg) for e in exchanges]
        gathered = []
        for exchange, work in zip(exchanges, scattered, strict=True):
            if broken := groups.settle(work, self._abandoned):
                return broken
            exchange.add_up(vote)
            gathered.append(group.pg._allgather_base(exchange.parts.view(-1), exchange.part))  # noqa: SLF001
        shared = self._share_buffers(group)
        if shared is not None:
            gathered.append(shared[1])
        for work in gathered:
            if broken := groups.settle(work, self._abandoned):
                return broken
        for bucket, exchange in zip(self.buckets, exchanges, strict=True):
            bucket.flat.view(group.size, -1).copy_(exchange.parts[:, :-1])
        self.buckets[-1].flags[0] = exchanges[-1].parts[:, -1].sum()
        if shared is not None:
            unpack(shared[0], self._buffers)
        return None

    def _share_buffers(self, group: Group) -> tuple[torch.Tensor, Any] | None:
        if not self._buffers:
            return None
        values = self._first or self._before
        flat = pack(values)
        return flat, group.control.broadcast(flat, 0)
