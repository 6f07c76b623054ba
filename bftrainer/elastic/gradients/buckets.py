"""Averages the gradients of all workers, overlapped with the backward pass.

Hooks copy each finished gradient, weighted as ``loss_rule`` has it, into a flat bucket; a full
bucket is reduced at once. The last bucket also carries every worker's vote to switch to a newer
generation, so all agree on the step without an extra message, and the sum of weights that the
script gives; where gradients stay on GPUs they have a bucket of their own, reduced last. When
``backward()`` returns, ``p.grad`` is the gradient of the whole batch, as with
DistributedDataParallel. In a step of several passes all but the last only accumulate; where the
script says that an update has several averaged passes, each is reduced (``averaged_passes``). Used
by ``run`` at sizes above 1, and at size 1 where a step may have several passes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from bftrainer.elastic.gradients import comparison as comparisons
from bftrainer.elastic.gradients.averaged_passes import AveragedPasses
from bftrainer.elastic.gradients.comparison import StateComparison
from bftrainer.elastic.gradients.gradient_bucket import GradientBucket, layout
from bftrainer.elastic.gradients.loss_rule import MEAN, LossRule
from bftrainer.elastic.gradients.rates import GradientSquares
from bftrainer.elastic.gradients.vote_record import DeclaredWeight, VoteLayout
from bftrainer.elastic.network import device
from bftrainer.elastic.network import group as groups
from bftrainer.elastic.network.group import Broken, Group
from bftrainer.elastic.network.shards import Cut, Shards, is_sharded, local_of
from bftrainer.elastic.script.torch_compat import at_end_of_backward
from bftrainer.ground.errors import ElasticError

FRESH_BYTES_PER_S = 2e9  # rate at which the kernel provides zeroed memory
OF_NODE = "another worker of the node could not reach the other nodes"
_FLAG_DTYPES = (torch.float32, torch.float64)


class Slot(NamedTuple):
    """The place of a parameter's gradient."""

    bucket: GradientBucket
    view: torch.Tensor


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
        self._width = 0  # of what is compared
        if comparison is not None:
            self._width = comparisons.WIDTH
        self._shards = shards
        self._rule = rule or LossRule(MEAN)
        self.works_alone = works_alone  # active at size 1 too: a step may have several passes
        self.squares: GradientSquares | None = None  # of the last step, where noise is measured
        self._measures = measures
        self._square = 0.0
        self._is_bound = False
        self._is_last = True  # this pass ends the step
        self.has_samples = True  # the script works on this step
        self._has_carry = False
        self.group: Group | None = None
        self._failed_group: Group | None = None  # the group in which a collective failed
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
        self._declared: float | None = None  # weight by the script, of this pass
        self._declared_before = DeclaredWeight()  # of the step's earlier passes
        self._handles: list[Any] = []
        self._watch()

    def _watch(self) -> None:
        """Hook the parameters that are trained now; scripts may freeze some later."""
        self._unhook()
        self._trained = self._trained_now()
        self.params = [p for p in self._all if p.requires_grad]
        self._locals = list(map(local_of, self.params))
        self._cuts = list(map(_cut_of, self.params))
        self._seen = [False] * len(self.params)
        self._carried = [False] * len(self.params)
        self._count = 0
        self._allocate()
        self._handles = []
        self._hook()

    def _trained_now(self) -> list[bool]:
        return [p.requires_grad for p in self._all]

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
        self._vote_layout = VoteLayout(
            parameters=len(self.params), compared=self._width, has_square=self._measures
        )
        last = self._locals[groups[-1][0]]
        # Half precision cannot count votes, and the host must read them.
        has_own_bucket = last.dtype not in _FLAG_DTYPES or device.is_on_device(last)
        if self._shards is not None:  # they are of all workers, not of one shard's
            has_own_bucket = True
        self.buckets = []
        for members in groups:
            n_flags = 0
            if members is groups[-1] and not has_own_bucket:
                n_flags = self._vote_layout.size
            of_node = is_whole[members[0]]
            self.buckets.append(GradientBucket(members, self._locals, n_flags, of_node=of_node))
        if has_own_bucket:
            self.buckets.append(GradientBucket([], [], self._vote_layout.size))
        self._index()

    def _replace_haunted(self) -> None:
        haunted = [b for b in self.buckets if b.is_haunted]
        if not haunted:
            return
        # A collective with a dead member ends within milliseconds, with a hung one it does
        # not. Waiting longer than it takes to get fresh memory would be useless.
        fresh_s = sum(b.flat.nbytes for b in haunted) / FRESH_BYTES_PER_S
        if self._failed_group is not None and self._failed_group.is_gone(fresh_s):
            for bucket in haunted:
                bucket.is_haunted = False
            return
        for place, bucket in enumerate(self.buckets):
            if bucket.is_haunted:
                self.buckets[place] = GradientBucket(
                    bucket.members, self._locals, len(bucket.flags), of_node=bucket.of_node
                )
        self._index()

    def _index(self) -> None:
        slots = {i: Slot(b, b.views[i]) for b in self.buckets for i in b.members}
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
        elif self._trained != self._trained_now():
            self._watch()  # the script froze some while it trained alone
        elif not self._handles:
            self._hook()
        self._vote = vote
        self._abandoned = abandoned

    def _widen(self, group: Group | None) -> None:
        """Have votes that all members can read: those of the release before compare nothing."""
        can_compare = self._comparison is not None and (group is None or group.compares)
        width = 0
        if can_compare:
            width = comparisons.WIDTH
        if width != self._width:
            self._width = width
            self._allocate()

    @property
    def _copies(self) -> Group | None:
        """The workers whose gradients are added; None: there is only one."""
        if self.group is None:
            return None
        return self.group.copies

    @property
    def _place(self) -> int:
        if self._copies is None:
            return 0
        return self._copies.rank

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
        if self._trained != self._trained_now():
            self._watch()
        self._is_last = number >= passes[self._place] - 1
        if number == 0 and self._has_carry:
            self._has_carry = False
            self._carried = [False] * len(self.params)
        self._share, self._weight = share, self._rule.weight_of(share)
        self._declared = None
        if number == 0:
            self._declared_before = DeclaredWeight()
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
                if self._shards is None:
                    at_end_of_backward(self.finish)
                else:
                    at_end_of_backward(self._finish_last)
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
        at_end_of_backward(self.finish)

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
        if self._shards is not None and self._shards.is_weighted(self.params[i]):
            weight = 1.0
        elif self._shards is not None:
            weight *= self._shards.share_of(self.params[i])
        weigh(local_of(grad), weight, self._slots[i].view)

    def _as_grad(self, i: int, view: torch.Tensor) -> Any:
        cut = self._cuts[i]
        if cut is None:
            return view
        return cut.wrap(view)

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
        marks: list[float] | None = None
        if self._count < len(self.params) or self._weight <= 0:
            marks = self._marks()
        square = 0.0
        if self._share > 0:
            square = self._square / self._share**2
        self._vote_layout.write(
            bucket.flags,
            votes=self.averaged.is_last and self._vote(),
            marks=marks,
            declared=self._declared_so_far,
            compared=self._compared(),
            square=square,
        )

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
            self._declared, self._weight = weight, weight / self._rule.unit

    @property
    def _declared_here(self) -> DeclaredWeight:
        if self._declared is None:
            return DeclaredWeight()
        return DeclaredWeight(self._declared, self._share)

    @property
    def _declared_so_far(self) -> DeclaredWeight:
        """What the script declared in this pass and in the step's earlier ones."""
        if self._declared is None:
            return self._declared_before
        return self._declared_before.plus(self._declared_here)

    def _decide(self) -> None:
        """In the first step of several parts: vote on how the loss is reduced."""
        if self._rule.kind or not self._is_bound:
            return
        is_weighted = self._declared is not None
        votes = torch.tensor(self._rule.votes(has_samples=self._share > 0, is_weighted=is_weighted))
        if self.group is not None:
            self.broken = groups.settle(self.group.control.all_reduce(votes), self._abandoned)
        if self._shards is not None and self._shards.node.any(self.broken is not None):
            self.broken = self.broken or Broken(reason=OF_NODE)
        if self.broken is not None:
            self._failed_group = self.group
            return
        self._rule.settle(votes.tolist())
        if not is_weighted:
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
            for i, has_come in enumerate(self._seen):
                if not (has_come and self._streams):
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
            gradients = bucket.flat[: bucket.count]
            if bucket.carry is None:
                bucket.carry = gradients.clone()
            elif self._has_carry:
                bucket.carry.add_(gradients)
            else:
                bucket.carry.copy_(gradients)
        self._has_carry = True
        self._declared_before = self._declared_so_far
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
        self._failed_group = group
        for p, slot in zip(self.params, self._slots, strict=True):
            if not slot.bucket.is_haunted or p.grad is None:
                continue
            if local_of(p.grad).data_ptr() == slot.view.data_ptr():
                p.grad = torch.zeros_like(p)

    def _hand_out(self) -> None:
        sums = self._vote_layout.read(self.buckets[-1].flags)
        self.votes = sums.votes
        is_heard = self._comparison is not None and self.group is not None and self._width > 0
        if self._comparison is not None and is_heard and self.averaged.is_last:
            self._comparison.heard(sums.compared)
        factor = self._rule.weigh(sums.declared.weight, sums.declared.share)
        if factor != 1.0:
            for bucket in self.buckets:
                bucket.flat[: bucket.count].mul_(factor)
        if self._measures:
            of_mean = sum(map(_square_of, self.buckets))
            self.squares = GradientSquares(of_all=sums.square * factor**2, of_mean=of_mean)
        for i, (p, mark) in enumerate(zip(self.params, sums.marks, strict=True)):
            grad: Any = None  # without a gradient on any member it keeps None, as in plain torch
            if mark:
                grad = self._as_grad(i, self._slots[i].view)
            p.grad = self.averaged.handed_out(i, p, grad)


def _cut_of(p: torch.nn.Parameter) -> Cut | None:
    if is_sharded(p):
        return Cut.of(p)
    return None


def _square_of(bucket: GradientBucket) -> float:
    gradients = bucket.flat[: bucket.count]
    return float(torch.linalg.vector_norm(gradients, dtype=torch.float64)) ** 2


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
    elif grad.requires_grad:
        torch.mul(grad.detach(), weight, out=into)
    else:
        torch.mul(grad, weight, out=into)
