"""Averages the gradients of all workers, overlapped with the backward pass.

Hooks copy each finished gradient, weighted as ``loss_rule`` has it, into a flat bucket; a full
bucket is reduced at once. The last bucket also carries every worker's vote to switch to a newer
generation, so all agree on the step without an extra message, and the sum of weights that the
script gives; where gradients stay on GPUs they have a bucket of their own, reduced last. When
``backward()`` returns, ``p.grad`` is the gradient of the whole batch, as with
DistributedDataParallel. In a step of several passes all but the last only accumulate; where the
script says that an update has several averaged passes, each is reduced (``averaged_passes``). Used
by ``run`` at sizes above 1, and at size 1 where a step may have several passes.

In bitwise mode ``OrderedReducer`` adds the gradients of logical workers in a fixed order. Each
worker keeps the gradients of its logical workers separate. Every member then receives one slice of
all of them, adds them in the order of the logical workers, and sends the sum to all: the additions
and their order are the same at every size, so the result is bit-identical. Buffers (running
averages) are those of logical worker 0. Memory: one copy of the gradients per logical worker,
divided among the members. It is host memory, because only gloo leaves the order of sums to us.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.autograd import Variable

from bftrainer.elastic import comparison as comparisons
from bftrainer.elastic import device
from bftrainer.elastic import group as groups
from bftrainer.elastic.averaged_passes import AveragedPasses
from bftrainer.elastic.comparison import StateComparison
from bftrainer.elastic.device import host_memory
from bftrainer.elastic.errors import ElasticError
from bftrainer.elastic.gradient_bucket import GradientBucket, layout
from bftrainer.elastic.group import Broken, Group
from bftrainer.elastic.loss_rule import MEAN, LossRule
from bftrainer.elastic.shards import Cut, Shards, is_sharded, local_of
from bftrainer.elastic.state import pack, unpack

FRESH_BYTES_PER_S = 2e9  # rate at which the kernel provides zeroed memory
OF_NODE = "another worker of the node could not reach the other nodes"
_FLAG_DTYPES = (torch.float32, torch.float64)


class GradientReducer:
    """Averages the gradients of one model over the members of a generation."""

    overlaps = True  # reduces while the backward pass goes on

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        *,
        rule: LossRule | None = None,
        works_alone: bool = False,
        measures: bool = False,
        shards: Shards | None = None,
        comparison: StateComparison | None = None,
        averages: int = 1,
    ) -> None:
        self._all = list(parameters)
        self.averaged = AveragedPasses(averages)
        self._comparison = comparison
        self._width = 0 if comparison is None else comparisons.WIDTH  # of what is compared
        self._shards = shards
        self._rule = rule or LossRule(MEAN)
        self.works_alone = works_alone  # active at size 1 too: a step may have several passes
        self.squares: tuple[float, float] | None = None  # see _measure
        self._measures = measures
        self._square = 0.0
        self._is_bound = False
        self._is_last = True  # this pass ends the step
        self.has_samples = True  # the script works on this step
        self._has_carry = False
        self.group: Group | None = None
        self._left: Group | None = None  # the group in which a collective failed
        self.broken: Broken | None = None
        self.votes = 0
        self.waited_s = 0.0  # wait for other members in the last step
        self.is_listening = False  # hooks are active: in a batch, not under no_sync
        self.is_finished = True
        self.is_in_hand = False  # the script has a batch and has not called step() for it
        self._vote: Callable[[], bool] = lambda: False
        self._abandoned: Callable[[], bool] = lambda: False
        self._weight = 1.0
        self._share = 1.0  # of the batch, in this pass
        self._streams = True  # this pass is reduced while it goes on
        self._given: float | None = None  # weight by the script, of this pass
        self._given_before = (0.0, 0.0)  # of the step's earlier passes, and their share
        self._handles: list[Any] = []
        self._watch()

    def _watch(self) -> None:
        """Hook the parameters that are trained now; scripts may freeze some later."""
        self._unhook()
        self._trained = [p.requires_grad for p in self._all]
        self.params = [p for p in self._all if p.requires_grad]
        self._locals = [local_of(p) for p in self.params]
        self._cuts = [Cut.of(p) if is_sharded(p) else None for p in self.params]
        self._seen = [False] * len(self.params)
        self._carried = [False] * len(self.params)
        self._count = 0
        self._allocate()
        self._handles = []
        self._hook()

    def _hook(self) -> None:
        for i, p in enumerate(self.params):
            register: Any = p.register_post_accumulate_grad_hook
            self._handles.append(register(self._hook_of(i)))

    def _unhook(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _allocate(self) -> None:
        is_whole = [self._shards is not None and cut is None for cut in self._cuts]
        groups = layout(self._locals, is_whole)
        flags = self._flag_count
        last = self._locals[groups[-1][0]]
        own_flags = last.dtype not in _FLAG_DTYPES or device.is_on_device(last)
        own_flags = own_flags or self._shards is not None  # of all workers, not of one shard's
        self.buckets = [
            GradientBucket(
                members,
                self._locals,
                flags if members is groups[-1] and not own_flags else 0,
                of_node=is_whole[members[0]],
            )
            for members in groups
        ]
        if own_flags:  # half precision cannot count votes, and the host must read them
            self.buckets.append(GradientBucket([], [], flags))
        self._index()

    @property
    def _flag_count(self) -> int:
        """A vote, marks of parameters, two sums of weights, a comparison, perhaps a square."""
        return 3 + len(self.params) + self._width + self._measures

    def _replace_haunted(self) -> None:
        haunted = [b for b in self.buckets if b.is_haunted]
        if not haunted:
            return
        # A collective with a dead member ends within milliseconds, with a hung one it does
        # not. Waiting longer than it takes to get fresh memory would be useless.
        fresh_s = sum(b.flat.nbytes for b in haunted) / FRESH_BYTES_PER_S
        if self._left is not None and self._left.is_gone(fresh_s):
            for bucket in haunted:
                bucket.is_haunted = False
            return
        self.buckets = [
            GradientBucket(b.members, self._locals, len(b.flags), of_node=b.of_node)
            if b.is_haunted
            else b
            for b in self.buckets
        ]
        self._index()

    def _index(self) -> None:
        slots = {i: (b, b.views[i]) for b in self.buckets for i in b.members}
        self._slots = [slots[i] for i in range(len(self.params))]
        self._launched = 0

    def bind(
        self, group: Group | None, vote: Callable[[], bool], abandoned: Callable[[], bool]
    ) -> None:
        """Attach to a new generation; ``group`` is None at size 1."""
        if group is not None or self.works_alone:
            self._replace_haunted()
        self.group = group
        self._widen(group)
        self.broken = None
        self.votes = 0
        self._is_bound = True
        if group is None and not self.works_alone:
            self._unhook()  # at size 1 a step costs nothing extra
        elif self._trained != [p.requires_grad for p in self._all]:
            self._watch()  # the script froze some while it trained alone
        elif not self._handles:
            self._hook()
        self._vote = vote
        self._abandoned = abandoned

    def _widen(self, group: Group | None) -> None:
        """Have votes that all members can read: those of the release before compare nothing."""
        can_compare = self._comparison is not None and (group is None or group.compares)
        width = comparisons.WIDTH if can_compare else 0
        if width != self._width:
            self._width = width
            self._allocate()

    @property
    def _copies(self) -> Group | None:
        """The workers whose gradients are added; None: there is only one."""
        return None if self.group is None else self.group.copies

    @property
    def _copies_pg(self) -> Any:
        return None if self._copies is None else self._copies.pg

    @property
    def _place(self) -> int:
        return 0 if self._copies is None else self._copies.rank

    def fail(self, broken: Broken) -> None:
        """Make the present step void although its gradients were reduced."""
        self.broken = broken

    def let_go(self) -> None:
        """Drop all references to the old group: its sockets close with the last one."""
        self.group = None
        for bucket in self.buckets:
            bucket.work = None

    def begin(self, share: float, number: int = 0, passes: Sequence[int] = (1,)) -> None:
        """Start pass ``number`` of a step, over this share of the batch.

        ``passes``: number of passes of each rank in this step.
        """
        if self._trained != [p.requires_grad for p in self._all]:
            self._watch()
        self._is_last = number >= passes[self._place] - 1
        if number == 0 and self._has_carry:
            self._has_carry = False
            self._carried = [False] * len(self.params)
        self._share, self._weight = share, self._rule.weight_of(share)
        self._given = None
        if number == 0:
            self._given_before = (0.0, 0.0)
        self._streams = self._is_last and self.overlaps and bool(self._rule.kind)
        self.has_samples = True
        self.averaged.begin()
        self._arm()

    def _arm(self) -> None:
        """Have the hooks await the next backward pass."""
        self._square = 0.0
        self._seen = [False] * len(self.params)
        self._count = 0
        self._launched = 0
        for bucket in self.buckets:
            bucket.missing = len(bucket.members)
            bucket.work = None
        self.is_finished = False
        self.is_listening = True

    def _hook_of(self, i: int) -> Callable[[torch.Tensor], None]:
        def hook(p: torch.Tensor) -> None:
            is_late = self.is_finished and self.is_in_hand  # p.grad is a view of our bucket by now
            if not (self.is_listening or is_late):
                return
            if is_late or self._seen[i]:
                raise ElasticError(
                    "BFT-1404",
                    "A second backward pass reached the same parameter within one step.",
                    "Where gradients are added up, wrap all but the last backward pass in"
                    " run.no_sync() (and use checkpoint(..., use_reentrant=False)). Where the"
                    " script uses those of each, as SAM does, give Run(..., backward_passes=2)."
                    " See docs/howto/train-pytorch.md, Several models and Several gradients.",
                )
            self.averaged.require_new(i, p)
            if self._count == 0:
                # Runs at the end of this backward pass, as in DistributedDataParallel.
                _at_end(self.finish if self._shards is None else self._finish_last)
            self._count += 1
            self._seen[i] = True
            if not self._streams or self.broken is not None:
                return  # collected when the pass is complete
            bucket, view = self._slots[i]
            self._take(i)
            if self._cuts[i] is not None:
                p.grad = self._as_grad(i, view)  # FSDP2's memory is free: one copy of gradients
            bucket.missing -= 1
            if not bucket.missing:
                self._launch_ready()

        return hook

    def _finish_last(self) -> None:
        """Finish after FSDP2: of several models each reduces its last gradients at the end."""
        _at_end(self.finish)

    def _launch_ready(self) -> None:
        # All workers must start the same collectives in the same order.
        while self._launched < len(self.buckets) and self.buckets[self._launched].missing == 0:
            bucket = self.buckets[self._launched]
            if self._has_carry and bucket.carry is not None:
                bucket.flat[: bucket.count].add_(bucket.carry)
            if self._measures:
                self._square += _square_of(bucket)
            if self._launched == len(self.buckets) - 1:
                self._write_flags(bucket)
            # A separate vote bucket is reduced after the gradients: a member that has all
            # votes knows that all gradients are complete, and may leave the group.
            if bucket.of_node and self._shards is not None and self._is_bound:
                self._shards.sum_over_node(bucket.flat)
            copies = self._copies
            if copies is not None and (bucket.count or not (self._shards or copies.data)):
                bucket.work = copies.carrier_of(bucket.flat).all_reduce(bucket.flat)
            self._launched += 1

    def _take(self, i: int) -> None:
        """Copy the gradient of a parameter, weighted, into its place."""
        grad, weight = self.averaged.own(i, self.params[i]), self._weight
        if self._shards is not None:
            share = self._shards.share_of(self.params[i])
            weight = 1.0 if self._shards.is_weighted(self.params[i]) else weight * share
        weigh(local_of(grad), weight, self._slots[i][1])

    def _as_grad(self, i: int, view: torch.Tensor) -> Any:
        cut = self._cuts[i]
        return view if cut is None else cut.wrap(view)

    def pass_weight(self) -> float:
        """Return what this worker's gradients of the present pass are multiplied by.

        Decides before the first reduction of sharded gradients how the loss is reduced.
        """
        if not self.is_in_hand:
            return 1.0
        if self.broken is None:
            self._decide()
        return self._weight

    def _write_flags(self, bucket: GradientBucket) -> None:
        bucket.flags.fill_(1.0)
        bucket.flags[0] = 1.0 if self.averaged.is_last and self._vote() else 0.0
        if self._count < len(self.params) or self._weight <= 0:
            bucket.flags[1 : 1 + len(self.params)] = torch.tensor(
                self._marks(), dtype=bucket.flags.dtype
            )
        sums = zip(self._given_before, self._given_here, strict=True)
        rest = [*map(sum, sums), *self._compared()]
        if self._measures:
            rest.append(self._square / self._share**2 if self._share > 0 else 0.0)
        at = 1 + len(self.params)
        bucket.flags[at : at + len(rest)] = torch.tensor(rest, dtype=bucket.flags.dtype)

    def _compared(self) -> list[float]:
        """Return what tells the others whether this member's state is theirs."""
        if self._comparison is None or self.group is None or not self._width:
            return [0.0] * self._width
        if not self.averaged.is_last:  # the script may have changed parameters for this update
            return [0.0] * self._width
        return self._comparison.votes(has_samples=self.has_samples)

    def give(self, weight: float) -> None:
        """Multiply this pass by the script's weight instead.

        Raises:
            ElasticError: BFT-1405 when gradients of this pass were reduced already.
        """
        if self._count or self.is_finished:
            raise ElasticError(
                "BFT-1405",
                "run.weight() was called after the backward pass.",
                "Call it before loss.backward().",
            )
        if self._share > 0:
            self._given, self._weight = weight, weight / self._rule.unit

    @property
    def _given_here(self) -> tuple[float, float]:
        return (0.0, 0.0) if self._given is None else (self._given, self._share)

    def _decide(self) -> None:
        """In the first step of several parts: vote on how the loss is reduced."""
        if self._rule.kind or not self._is_bound:
            return
        own = self._rule.votes(has_samples=self._share > 0, is_weighted=self._given is not None)
        votes = torch.tensor(own)
        if self.group is not None:
            self.broken = groups.settle(self.group.control.all_reduce(votes), self._abandoned)
        if self._shards is not None and self._shards.node.any(self.broken is not None):
            self.broken = self.broken or Broken(reason=OF_NODE)
        if self.broken is not None:
            self._left = self.group
            return
        self._rule.settle(votes.tolist())
        if self._given is None:
            self._weight = self._rule.weight_of(self._share)

    def _marks(self) -> list[float]:
        """Return 1.0 for each parameter with a gradient of this worker in this step."""
        counts = self._weight > 0 or self._shards is not None
        owns = [self.averaged.own(i, p) is not None for i, p in enumerate(self.params)]
        pairs = zip(owns, self._carried, strict=True)
        return [float(carried or (counts and has_own)) for has_own, carried in pairs]

    def contribute_nothing(self, passes: Sequence[int] = (1,)) -> None:
        """Take part in a step in which this worker has no samples."""
        self.begin(0.0, passes=passes)
        self.has_samples = False
        while not self.is_finished:
            for bucket in self.buckets:
                bucket.flat.zero_()
                bucket.missing = 0
            self._decide()
            if self.broken is None:
                self._launch_ready()
            self.finish()

    def finish(self) -> None:
        """Reduce the remaining buckets and wait; sets ``broken`` and ``votes``."""
        if self.is_finished:
            return
        self._finish_pass()
        if not self.averaged.is_last:
            self.averaged.go_on(self.params if self.has_samples else ())
            self._arm()

    def _finish_pass(self) -> None:
        self.is_finished = True
        self.is_listening = False
        self._decide()
        if self.broken is not None:
            return  # the step is void
        if not self._is_last:
            self._carry()
            return
        if self._launched < len(self.buckets):
            for i, seen in enumerate(self._seen):
                if not (seen and self._streams):
                    self._take(i)
            for bucket in self.buckets:
                bucket.missing = 0
            self._launch_ready()
        if self.group is not None:
            self._await_all(self.group)
        elif self._is_bound:
            self._hand_out()

    def _carry(self) -> None:
        """Add the gradients of a pass to those of the step's earlier passes."""
        for bucket in self.buckets:
            for i in bucket.members:
                self._take(i)
            own = bucket.flat[: bucket.count]
            if bucket.carry is None:
                bucket.carry = own.clone()
            elif self._has_carry:
                bucket.carry.add_(own)
            else:
                bucket.carry.copy_(own)
        self._has_carry = True
        sums = zip(self._given_before, self._given_here, strict=True)
        self._given_before = (sum(next(sums)), sum(next(sums)))
        for i, p in enumerate(self.params):
            counts = self._weight > 0 or self._shards is not None
            self._carried[i] |= p.grad is not None and counts

    def _await_all(self, group: Group) -> None:
        began_s = time.monotonic()
        for bucket in self.buckets:
            if bucket.work is None and not bucket.members:  # the votes
                bucket.work = group.control.all_reduce(bucket.flat)
            if bucket.work is None:  # of the only node, or parameters of which we hold no row
                continue
            self.broken = groups.settle(bucket.work, self._abandoned)
            if self.broken is not None:
                break
        self.waited_s = time.monotonic() - began_s
        # An unfinished collective may still write into its bucket.
        for bucket in self.buckets:
            bucket.is_haunted = bucket.work is not None and not bucket.work.is_completed()
            bucket.work = None  # a work keeps its group's sockets open
        if self.broken is None:
            self._hand_out()
            return
        self._left = group
        for p, (bucket, view) in zip(self.params, self._slots, strict=True):
            own = None if p.grad is None else local_of(p.grad)
            if bucket.is_haunted and own is not None and own.data_ptr() == view.data_ptr():
                p.grad = torch.zeros_like(p)

    def _hand_out(self) -> None:
        votes, *marks = self.buckets[-1].flags.tolist()
        self.votes = round(votes)
        total, given_share, *rest = marks[len(self.params) :]
        sums, squares = rest[: self._width], rest[self._width :]
        is_heard = self._comparison is not None and self.group is not None and self._width > 0
        if self._comparison is not None and is_heard and self.averaged.is_last:
            self._comparison.heard(sums)
        factor = self._rule.weigh(total, given_share)
        if factor != 1.0:
            for bucket in self.buckets:
                bucket.flat[: bucket.count].mul_(factor)
        if self._measures:
            mean = sum(_square_of(bucket) for bucket in self.buckets)
            self.squares = (squares[0] * factor**2, mean)
        for i, (p, mark) in enumerate(zip(self.params, marks, strict=False)):
            # A parameter without a gradient on any member keeps None, as in plain torch.
            grad = self._as_grad(i, self._slots[i][1]) if mark else None
            p.grad = self.averaged.handed_out(i, p, grad)


def _at_end(action: Callable[[], None]) -> None:
    """Run an action at the end of this backward pass, after those that were asked for before."""
    Variable._execution_engine.queue_callback(action)  # noqa: SLF001 - as torch's own modules do


def _square_of(bucket: GradientBucket) -> float:
    own = bucket.flat[: bucket.count]
    return float(torch.linalg.vector_norm(own, dtype=torch.float64)) ** 2


def weigh(grad: torch.Tensor | None, weight: float, into: torch.Tensor) -> None:
    """Write the weighted gradient, zeros if there is none."""
    if grad is None or weight <= 0:  # not a product with zero: NaN times zero is NaN
        into.zero_()
    elif grad.layout != torch.strided:
        raise ElasticError(
            "BFT-1401",
            "A parameter has a sparse gradient.",
            "Build the embedding with sparse=False.",
        )
    else:
        torch.mul(grad.detach() if grad.requires_grad else grad, weight, out=into)


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
        self.buckets = [self._padded(b) for b in self.buckets]
        self._index()

    def _padded(self, bucket: GradientBucket) -> GradientBucket:
        """Return a bucket that can be cut into slices of the same width."""
        flags = self._flag_count if len(bucket.flags) else 0  # made without padding
        short = -(bucket.count + flags) % self._padding
        return GradientBucket(bucket.members, self._locals, flags + short, of_node=bucket.of_node)

    def bind(
        self, group: Group | None, vote: Callable[[], bool], abandoned: Callable[[], bool]
    ) -> None:
        """Attach to a new generation, with fresh memory."""
        super().bind(group, vote, abandoned)
        self._padding = 1 if self._copies is None else self._copies.size
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
        self.is_listening = self.has_samples = False
        self.finish()

    @property
    def _buffers(self) -> list[torch.Tensor]:
        # Not cached: a module may replace a buffer's tensor.
        return [b for b in self._all_buffers() if b.numel()]

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
        rank = 0 if self.group is None else self.group.rank
        if rank == 0 and self._number == 0:
            self._first = [b.clone() for b in self._buffers]
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
                bucket.flags.zero_()
                marks = torch.tensor(self._marks(), dtype=bucket.flags.dtype)
                bucket.flags[1 : 1 + len(self.params)] = marks
                at = 1 + len(self.params)
                rest = [*self._given_here, *self._compared_once()]
                bucket.flags[at : at + len(rest)] = torch.tensor(rest, dtype=bucket.flags.dtype)
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
        return self._compared() if self._number == 0 else [0.0] * self._width

    def _exchange(self, k: int) -> Exchange:
        key = (k, self._passes)
        if key not in self._exchanges:
            size = 1 if self._copies is None else self._copies.size
            self._exchanges[key] = Exchange(self.buckets[k], size, self._place, self._passes)
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
        vote, pg = 1.0 if self._vote() else 0.0, self._copies_pg
        exchanges = [self._exchange(k) for k in range(len(self.buckets))] if pg else []
        scattered = [e.scatter(pg) for e in exchanges]
        gathered = []
        for exchange, work in zip(exchanges, scattered, strict=True):
            if broken := groups.settle(work, self._abandoned):
                return broken
            exchange.add_up(vote)
            gathered.append(pg._allgather_base(exchange.parts.view(-1), exchange.part))  # noqa: SLF001
        shared = self._share_buffers(group)
        if shared is not None:
            gathered.append(shared[1])
        for work in gathered:
            if broken := groups.settle(work, self._abandoned):
                return broken
        for bucket, exchange in zip(self.buckets, exchanges, strict=False):
            bucket.flat.view(len(exchange.parts), -1).copy_(exchange.parts[:, :-1])
        if exchanges:
            self.buckets[-1].flags[0] = exchanges[-1].parts[:, -1].sum()
        if self._shards is not None and (broken := self._count_all(group, vote)):
            return broken
        if shared is not None:
            unpack(shared[0], self._buffers)
        return None

    def _count_all(self, group: Group, vote: float) -> Broken | None:
        """Sum votes and weights over all workers; those of one shard are not all."""
        sums = zip(self._given_before, self._given_here, strict=True)
        rest = [*map(sum, sums), *self._compared()]
        own = torch.tensor([vote, *rest], dtype=torch.float64)
        broken = groups.settle(group.control.all_reduce(own), self._abandoned)
        if broken is None:
            at, flags = 1 + len(self.params), self.buckets[-1].flags
            flags[0] = own[0]
            flags[at : at + len(rest)] = own[1:]
        return broken

    def _share_buffers(self, group: Group) -> tuple[torch.Tensor, Any] | None:
        if not self._buffers:
            return None
        values = self._first or self._before
        flat = pack(values)
        return flat, group.control.broadcast(flat, 0)
