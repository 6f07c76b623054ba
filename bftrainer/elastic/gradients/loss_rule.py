"""The weights with which gradients of parts of a global batch add up to that of the whole.

A loss that is a mean over the samples weighs each part by its samples, a sum adds them up, and a
mean over something else is weighted by what the script says in ``run.weight``. The script may
declare mean or sum; otherwise its first backward passes are looked at, in the
rehearsal and where a worker trains alone, too. In the first update that several parts make, all
members vote; the outcome is part of the run's common state. Used by ``run`` and the reducers.

That is read from autograd's graph. A loss is cut into terms: what its sums and constant factors
hold together. Each term names the reductions that made it a number, from the outside to the inside.
Which of them is over the samples, and whether a factor depends on their number, one batch often
leaves open; the same loss over another number of samples decides it. What is not certain is
unclear, never guessed.
"""

from __future__ import annotations

import math
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, NoReturn

import torch

from bftrainer.elastic.script.torch_compat import all_saved, saved_of
from bftrainer.ground.errors import ElasticError

_contradicted = partial(ElasticError, "BFT-1432")

MEAN, SUM = "mean", "sum"
FREE = "free"  # does not depend on the samples, such as a penalty on parameters
UNEVEN = "it is a mean over something else than the samples"
HIDDEN = "autograd does not show how it is reduced"
MIXED = "its terms are reduced differently"
# Nodes that change no value.
_SAME = (
    *("View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "ToCopy", "Clone", "Alias"),
    *("Permute", "Transpose", "T"),
)
_SAVES_NOTHING = ("Add", "Sub", "Rsub", "Cat", "Stack")
_MOST_NODES = 4000
_NO_OPERAND = (None, 0)  # as autograd shows one without a gradient
KEY = "bft-loss"  # among the registered objects
WEIGHTED = "weighted"
_ADVICE = (
    'Declare it, elastic.Run(..., loss="mean") or loss="sum", or say what each share counts by'
    " run.weight(n); see docs/howto/train-pytorch.md, Losses."
)
_ENOUGH, _MOST = 2, 5  # losses over the same samples, and in all
_watching: list[Callable[[], None]] = []  # removes the watch of the latest run


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """One mean or sum."""

    op: str  # MEAN or SUM
    count: int  # elements that it reduces to one


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTerm:
    """A part of a loss."""

    reductions: tuple[Reduction, ...] = ()
    factor: float = 1.0  # product of all constants
    is_scaled: bool = False  # there are constants
    is_free: bool = False  # only parameters go into it, no samples
    is_even: bool = True  # no weights, nothing left out

    @property
    def ops(self) -> tuple[str, ...]:
        """What each of its reductions is, from the outside to the inside."""
        return tuple(reduction.op for reduction in self.reductions)

    @property
    def has_means_only(self) -> bool:
        """Whether none of its reductions is a sum."""
        return set(self.ops) <= {MEAN}


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLoss:
    """A loss over so many samples."""

    samples: int
    terms: tuple[LossTerm, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The reduction of a loss over the samples."""

    kind: str = ""  # MEAN, SUM, or "" if it is unclear
    is_certain: bool = False  # no other reading is possible
    reason: str = ""  # why it is unclear


# ---- reading the graph -------------------------------------------------------------------


def terms_of(root: Any, parameters: Collection[int], loss_scale: float) -> tuple[LossTerm, ...]:
    """Return the terms of a loss.

    Args:
        root: the loss tensor.
        parameters: addresses of the data of all parameters.
        loss_scale: of mixed precision; a factor of this value does not count.
    """
    if root.grad_fn is None or root.numel() != 1:
        return (LossTerm(),)
    return tuple(_Walk(parameters, loss_scale).terms(root.grad_fn, LossTerm()))


def together(first: Sequence[LossTerm], second: Sequence[LossTerm]) -> tuple[LossTerm, ...]:
    """Return the terms of two losses over parts of a worker's samples, which are added up."""
    if _shape(first) == _shape(second) and all(map(_may_join, first, second)):
        return tuple(map(_join, first, second))
    return (*first, *second)


def _may_join(first: LossTerm, second: LossTerm) -> bool:
    return first.has_means_only or _is_close(first.factor, second.factor)


def _join(first: LossTerm, second: LossTerm) -> LossTerm:
    if first.is_free or not first.reductions:
        return first
    outer, *inner = first.reductions
    second_outer, *_ = second.reductions
    factor = first.factor
    if first.has_means_only:  # two means, each divided by two, are the mean of both
        factor += second.factor
    return replace(
        first,
        reductions=(replace(outer, count=outer.count + second_outer.count), *inner),
        factor=factor,
        is_even=first.is_even and second.is_even,
    )


class _Walk:
    def __init__(self, parameters: Collection[int], loss_scale: float) -> None:
        self._parameters = parameters
        self._loss_scale = loss_scale
        self._nodes_left = _MOST_NODES  # a huge graph is not read to its end

    def terms(self, node: Any, so_far: LossTerm) -> Iterator[LossTerm]:
        """Yield the terms below a node."""
        while True:
            self._nodes_left -= 1
            name, sources = _name(node), _sources(node)
            if self._nodes_left < 0:
                yield replace(so_far, reductions=())
                return
            if (fused := _fused_reduction(node)) is not None:
                reduction, is_even = fused
                yield replace(so_far, reductions=(*so_far.reductions, reduction), is_even=is_even)
                return
            if name in ("Sum", "Mean"):
                reduction = Reduction(op=name.lower(), count=_n_reduced(node))
                so_far = replace(so_far, reductions=(*so_far.reductions, reduction))
            elif name in ("Mul", "Div") and (factor := _factor(node)) is not None:
                so_far = self._scale(so_far, factor)
            elif name in ("Add", "Sub", "Rsub") and not so_far.reductions:
                for source in sources:
                    yield from self.terms(source, so_far)
                return
            elif name == "Stack":  # what is reduced over has the number of its parts
                terms = chain.from_iterable(self.terms(source, so_far) for source in sources)
                yield from dict.fromkeys(terms)  # each term once, in their order
                return
            elif name in ("Mul", "Div") and len(sources) == 2 and not so_far.reductions:
                yield from self._product(sources, so_far, is_ratio=name == "Div")
                return
            elif name not in _SAME and name != "Neg":
                yield replace(so_far, is_free=self._is_free(node))
                return
            node, *_ = sources

    def _scale(self, term: LossTerm, factor: float) -> LossTerm:
        if factor == self._loss_scale != 1.0:
            self._loss_scale = 1.0  # once
            return term
        return replace(term, factor=term.factor * factor, is_scaled=True)

    def _product(
        self, factors: Sequence[Any], so_far: LossTerm, *, is_ratio: bool
    ) -> Iterator[LossTerm]:
        """Yield the terms of a product with something that does not depend on the samples."""
        first, second = factors
        if self._is_free(second):
            yield from self.terms(first, so_far)
        elif self._is_free(first) and not is_ratio:
            yield from self.terms(second, so_far)
        else:
            yield so_far

    def _is_free(self, node: Any) -> bool:
        """Return whether nothing but parameters goes into a node of the graph."""
        waiting, visited = [node], set()
        while waiting:
            source = waiting.pop()
            self._nodes_left -= 1
            if self._nodes_left < 0 or not all(map(self._is_own, _saved_tensors(source))):
                return False
            is_custom = isinstance(source, torch.autograd.function.BackwardCFunction)
            if is_custom or (_name(source) in _SAVES_NOTHING and _has_constants(source)):
                return False  # what else goes into it is not shown
            if source not in visited:
                visited.add(source)
                waiting += _sources(source)
        return True

    def _is_own(self, saved: torch.Tensor) -> bool:
        return saved.numel() <= 1 or saved.data_ptr() in self._parameters


def _name(node: Any) -> str:
    """Return a node's name without its ending: ``MulBackward0`` is ``Mul``."""
    return str(node.name()).rstrip("0123456789").removesuffix("Backward")


def _saved_tensors(node: Any) -> list[torch.Tensor]:
    values: list[Any] = []
    for saved in all_saved(node):
        if isinstance(saved, tuple):
            values.extend(saved)
        else:
            values.append(saved)
    return [value for value in values if isinstance(value, torch.Tensor)]


def _sources(node: Any) -> list[Any]:
    """Return the nodes that a node computes from."""
    return [source for source, _ in node.next_functions if source is not None]


def _has_constants(node: Any) -> bool:
    return len(_sources(node)) < len(node.next_functions)


def _n_reduced(node: Any) -> int:
    sizes = list(map(int, saved_of(node, "self_sym_sizes")))
    dims = saved_of(node, "dim")
    if not dims:
        return math.prod(sizes)
    return math.prod(sizes[_signed(dim)] for dim in dims)


def _signed(dim: int) -> int:
    """Return a dimension, such as -1, which torch shows as an unsigned integer."""
    if dim >= 1 << 63:
        return dim - (1 << 64)
    return dim


def _fused_reduction(node: Any) -> tuple[Reduction, bool] | None:
    """Return the reduction of a loss function that torch has as one node, and if it is even."""
    code = saved_of(node, "reduction", 0)
    if code not in (1, 2):
        return None
    inputs, name = saved_of(node, "self"), _name(node)
    count = inputs.numel()
    if name in ("NllLoss", "NllLoss2D", "MultiMarginLoss", "MultilabelMarginLoss"):
        count //= inputs.shape[1] if inputs.dim() > 1 else count
    is_even = True
    if name.startswith("NllLoss") and code == 1:
        total = saved_of(node, "total_weight")
        is_even = saved_of(node, "weight") is None and float(total) == count
    return Reduction(op=MEAN if code == 1 else SUM, count=count), is_even


def _factor(node: Any) -> float | None:
    """Return the constant by which a product or quotient multiplies; None: there is none."""
    is_quotient = _name(node) == "Div"
    (first, _), (second, _) = (*node.next_functions, _NO_OPERAND)[:2]
    if second is None:
        value = saved_of(node, "other")
    elif first is None and not is_quotient:
        value = saved_of(node, "self")
    else:
        return None
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            return None
        value = value.item()
    if not isinstance(value, int | float) or not value:
        return None
    if is_quotient:
        return 1 / float(value)
    return float(value)


# ---- judging -----------------------------------------------------------------------------


def judge(losses: Sequence[SampleLoss]) -> Verdict:
    """Return what the newest of these losses is, with the help of the others.

    They are best over different numbers of samples.
    """
    if not losses:
        return Verdict(reason=HIDDEN)
    *earlier, now = losses
    alike = [loss for loss in earlier if _shape(loss.terms) == _shape(now.terms)]
    if not any(loss.samples != now.samples for loss in alike):
        # Nothing to compare it with: a loop over the samples, perhaps.
        n_equal_terms = max(Counter(now.terms).values(), default=0)
        if n_equal_terms >= now.samples or now.samples == 1:
            return Verdict(reason=HIDDEN)
        if any(loss.samples != now.samples for loss in earlier):
            return Verdict(reason=HIDDEN)
    verdicts: list[Verdict] = []
    for place, term in enumerate(now.terms):
        terms_before = [(loss.terms[place], loss.samples) for loss in alike]
        verdicts.append(_judge_term(term, now.samples, terms_before))
    for verdict in verdicts:
        if not verdict.kind:
            return verdict
    kinds = {verdict.kind for verdict in verdicts}
    if kinds not in ({MEAN}, {MEAN, FREE}, {SUM}):
        return Verdict(reason=MIXED)
    is_certain = all(verdict.is_certain for verdict in verdicts)
    return Verdict(kind=SUM if SUM in kinds else MEAN, is_certain=is_certain)


def _shape(terms: Sequence[LossTerm]) -> list[tuple[object, ...]]:
    return [(term.is_free, term.is_scaled, *term.ops) for term in terms]


def _judge_term(term: LossTerm, samples: int, others: Sequence[tuple[LossTerm, int]]) -> Verdict:
    """Judge one term, with the help of the same one over other batches."""
    for earlier, n in others:
        if n == samples and not _is_same(earlier, term):
            return Verdict(reason=UNEVEN)  # so it depends on more than their number
    verdicts: list[Verdict] = []
    for earlier, n in others:
        if n != samples:
            ours, is_even = _reductions_over_samples(term, samples, earlier, n)
            verdicts.append(_judge_against(term, samples / n, ours, is_even, earlier.factor))
    if not verdicts:
        return _judge_alone(term, samples)
    for verdict in verdicts:
        if not verdict.kind:
            return verdict
    if len({verdict.kind for verdict in verdicts}) > 1:
        return Verdict(reason=UNEVEN)
    return verdicts[0]


def _is_same(first: LossTerm, second: LossTerm) -> bool:
    return first.reductions == second.reductions and _is_close(first.factor, second.factor)


def _reductions_over_samples(
    term: LossTerm, samples: int, other: LossTerm, other_samples: int
) -> tuple[list[Reduction], bool]:
    """Return the reductions that are over the samples, and if each has as much of every sample."""
    ours: list[Reduction] = []
    is_even = True
    for now, before in zip(term.reductions, other.reductions, strict=True):
        if now.count != before.count:
            ours.append(now)
            is_even = is_even and now.count * other_samples == before.count * samples
    return ours, is_even


def _judge_against(
    term: LossTerm, samples: float, ours: Sequence[Reduction], is_even: bool, factor: float
) -> Verdict:
    """Judge a term over ``samples`` times as many samples as when its factor was ``factor``."""
    op, verdict = _op_of_samples(term, ours, is_even=is_even)
    grown = term.factor / factor
    if verdict is not None:
        return verdict
    if _is_close(grown, 1.0):
        return Verdict(kind=op, is_certain=True)
    if op == SUM and _is_close(grown * samples, 1.0):
        return Verdict(kind=MEAN, is_certain=True)  # a sum that is divided by the samples
    if op == MEAN and _is_close(grown, samples):
        return Verdict(kind=SUM, is_certain=True)
    return Verdict(reason=UNEVEN)


def _judge_alone(term: LossTerm, samples: int) -> Verdict:
    """Judge a term seen over one number of samples: only where nothing else makes sense."""
    ours = [r for r in term.reductions if not term.is_free and r.count % samples == 0]
    op, verdict = _op_of_samples(term, ours, is_even=True)
    if verdict is not None:
        return verdict
    size = abs(term.factor)
    if not term.is_scaled or size == 1.0:
        is_plain = not term.is_scaled and len(set(term.ops)) == 1
        return Verdict(kind=op, is_certain=is_plain)
    if op == MEAN and not _is_whole(size / samples):
        return Verdict(kind=MEAN)  # a sum is a mean times a multiple of the samples
    if op == SUM and size >= 0.5 and samples > 2:
        return Verdict(kind=SUM)  # a mean is a sum times 1 / samples or less
    return Verdict(reason=HIDDEN)


def _op_of_samples(
    term: LossTerm, ours: Sequence[Reduction], *, is_even: bool
) -> tuple[str, Verdict | None]:
    """Return what reduces a term over its samples; the verdict where that settles it."""
    ops = {reduction.op for reduction in ours}
    if term.is_free and not ours:
        return "", Verdict(kind=FREE, is_certain=True)
    if len(ops) != 1:
        return "", Verdict(reason=HIDDEN)
    [op] = ops
    if op == MEAN and not (is_even and term.is_even):
        return "", Verdict(reason=UNEVEN)
    return op, None


def _is_close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-6)


def _is_whole(number: float) -> bool:
    return number > 0.5 and _is_close(number, round(number))


def weight_in(value: Any) -> float:
    """Return the weight that a script gives; a tensor of one number is one, too.

    Raises:
        ElasticError: BFT-1432, it is negative or not finite.
    """
    weight = float(value)
    if not (math.isfinite(weight) and weight >= 0.0):
        raise _contradicted(
            f"run.weight() was given {weight}.",
            "Give the finite number by which the loss was divided, 0 or more.",
        )
    return weight


class PendingTotal(NamedTuple):
    """What an update under way makes of the rule if it is committed."""

    kind: str
    total: float


class LossRule:
    """The reduction of one run's loss."""

    def __init__(
        self,
        declared: str | None = None,
        parameters: Iterable[Any] = (),
        loss_scale: Callable[[], float] = lambda: 1.0,
    ) -> None:
        """Begin with what the script declares, if anything."""
        if declared not in (None, MEAN, SUM):
            raise ElasticError(
                "BFT-1403", f"loss is {declared!r}.", 'Give loss="mean", loss="sum", or nothing.'
            )
        self._declared = declared or ""
        self._parameters = list(parameters)
        self._loss_scale = loss_scale  # of mixed precision
        self._kind = ""  # decided by committed updates
        self._total = 0.0  # of all weights in the last update, if the script gives them
        self._pending: PendingTotal | None = None  # of the update under way
        self._reason = ""  # why the mean is only assumed
        self.batch = 1  # samples of the present global batch
        self.given: float | None = None  # the script's weight of the pass in hand
        self.sum_weight = 1.0  # of a share whose loss is a sum
        self.on_loss: Callable[[float], object] | None = None  # is told each outer loss
        self.on_roots: Callable[[Sequence[Any]], object] | None = None  # the same, as tensors
        self.is_added_up = True  # the losses of several backward passes over the same samples
        self.samples = self.passes = 0  # of the pass in hand; until now
        self._terms: tuple[LossTerm, ...] = ()  # of its backward passes
        self._losses: list[SampleLoss] = []  # the last few losses
        self._is_fresh = True  # the pass in hand is to be looked at, and was not
        self._is_inside = False  # a backward pass
        self._is_looking = False

    # ---- what the reducers ask -----------------------------------------------------------

    @property
    def kind(self) -> str:
        """MEAN, SUM or WEIGHTED; "" until it is decided."""
        if self._declared:
            return self._declared
        if self._pending is not None:
            return self._pending.kind
        return self._kind

    def weight_of(self, share: float) -> float:
        """Return what the gradient of a share of the batch is multiplied by."""
        return self.sum_weight if share > 0 and self.kind == SUM else share

    @property
    def unit(self) -> float:
        """Return what the script's weights are divided by until their total is known.

        A power of two, which changes no digits.
        """
        return 2.0 ** round(math.log2(self._total)) if self._total > 0 else 1.0

    def votes(self, *, has_samples: bool, is_weighted: bool) -> list[float]:
        """Return this worker's part of a vote: mean, sum, weighted, unclear.

        Raises:
            ElasticError: BFT-1432 when the script gives weights to a sum.
        """
        if not has_samples:
            return [0.0] * 4
        verdict = self._verdict()
        if is_weighted:
            if verdict.kind == SUM and not any(term.is_scaled for term in self._terms):
                self._refuse_weight()
            return [0.0, 0.0, 1.0, 0.0]
        self._reason = verdict.reason or MIXED  # or others saw something else
        return [float(verdict.kind == kind) for kind in (MEAN, SUM, WEIGHTED, "")]

    def settle(self, votes: Sequence[float]) -> None:
        """Decide by the votes of all members, for good if the update is committed."""
        n_mean, n_sum, n_weighted, n_unclear = votes
        counts = {MEAN: n_mean, SUM: n_sum, WEIGHTED: n_weighted}
        kinds = [kind for kind, n in counts.items() if n]
        self._pending = PendingTotal(MEAN, 0.0)
        if len(kinds) == 1 and not n_unclear:
            self._reason = ""
            self._pending = PendingTotal(kinds[0], 0.0)

    def weigh(self, total: float, declared_share: float) -> float:
        """Return what the sum of all gradients is multiplied by.

        Args:
            total: of the weights that the script gave, over all members.
            declared_share: of the batch, for which it gave any.

        Raises:
            ElasticError: BFT-1432 when it gave some for a part of the batch only.
        """
        if declared_share <= 0.0 and self.kind != WEIGHTED:
            return 1.0
        if declared_share < 0.999:
            raise _contradicted(
                "run.weight() was called for a part of the batches only.",
                "Call it for every batch, before the backward pass, with 0 where nothing counts.",
            )
        unit = self.unit
        self._pending = PendingTotal(self.kind, total)
        return unit / total if total > 0 else 0.0

    # ---- what the run tells --------------------------------------------------------------

    def take(self, samples: int) -> None:
        """Note that the script now works on this many samples."""
        self.samples, self._terms, self.given = samples, (), None
        self.passes += 1
        n_seen = sum(loss.samples == samples for loss in self._losses)
        self._is_fresh = samples < self.batch or n_seen < _ENOUGH  # a share decides, or alone
        if (self._is_looking or self._has_listener()) and not _watching:
            self._watch()

    def look(self, *, has_parts: bool) -> None:
        """Look at backward passes from the next batch on, if there is something to find out.

        ``has_parts``: batches may come to be cut.
        """
        end_looking()  # of a run that this one replaces
        self._is_looking = has_parts or bool(self._declared)

    def refuse_weight(self) -> None:
        """Raise BFT-1432 if a weight contradicts what is known."""
        if self.kind == SUM:
            self._refuse_weight()

    @staticmethod
    def _refuse_weight() -> NoReturn:
        raise _contradicted(
            "run.weight() was called, but the loss is a sum over the samples.",
            "Leave it out, or divide the loss by the weight.",
        )

    def commit(self, *, is_first: bool) -> None:
        """Keep what was decided in the update that is now committed; rank 0 tells the user."""
        if self._pending is None:
            return
        is_new = not (self._kind or self._declared)
        (self._kind, self._total), self._pending = self._pending, None
        if not is_new:
            return
        self._stop()
        if is_first and self._reason:
            sys.stderr.write(
                "bftrainer: whether the loss is a mean or a sum over the samples is unclear:"
                f" {self._reason}. It is taken for a mean. {_ADVICE}\n"
            )
        elif is_first and self._kind == SUM:
            sys.stderr.write("bftrainer: the loss is a sum over the samples: shares are added up\n")

    def forget(self) -> None:
        """Discard it: the update is void."""
        self._pending = None

    @property
    def is_sum(self) -> bool:
        """Whether the loss is a sum over the samples, as far as that is known."""
        return (self.kind or self._verdict().kind) == SUM

    def is_open(self) -> bool:
        """Return whether the loss over another number of samples would help."""
        return self._is_looking and bool(self._terms) and not self._verdict().is_certain

    def state_dict(self) -> dict[str, Any]:
        """Return what is decided."""
        return {"kind": self._kind, "total": self._total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it; what the script declares goes first.

        What is pending stays: between the passes of an update the state is put back, too.
        """
        self._kind, self._total = state["kind"], state["total"]
        if self._kind and not self._declared:
            self._stop()

    # ---- looking -------------------------------------------------------------------------

    def _watch(self) -> None:
        """See the backward passes of this thread until it is decided."""
        real, thread = torch.autograd.backward, threading.get_ident()

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            is_outer = not self._is_inside and threading.get_ident() == thread
            if not is_outer:
                real(tensors, *args, **kwargs)
                return
            if self._is_looking:
                self._see(tensors)
            if self.on_roots is not None:
                self.on_roots(_roots_of(tensors))
            if self.on_loss is not None and isinstance(tensors, torch.Tensor):
                self.on_loss(float(tensors.detach().sum()) / self._loss_scale())
            self._is_inside = True  # checkpointing calls it again inside
            try:
                real(tensors, *args, **kwargs)
            finally:
                self._is_inside = False

        def end() -> None:
            self._is_looking = False
            if torch.autograd.backward is backward:
                torch.autograd.backward = real

        torch.autograd.backward = backward
        _watching.append(end)

    def _stop(self) -> None:
        self._is_looking = False
        if not self._has_listener():
            end_looking()

    def _has_listener(self) -> bool:
        return self.on_loss is not None or self.on_roots is not None

    def _see(self, tensors: Any) -> None:
        if not self._is_fresh:
            return
        addresses = {p.data_ptr() for p in self._parameters}
        terms: list[LossTerm] = []
        try:
            for root in _roots_of(tensors):
                terms.extend(terms_of(root, addresses, self._loss_scale()))
        except (RuntimeError, AttributeError, TypeError, IndexError):
            terms = [LossTerm()]  # a node that torch shows in another way
        if self._terms and self.is_added_up:  # an earlier backward pass over the same samples
            self._losses.pop()
            terms = [*together(self._terms, terms)]
        self._terms = tuple(terms)
        loss = SampleLoss(samples=self.samples, terms=self._terms)
        self._losses = [*self._losses[-_MOST:], loss]
        if self._declared:
            self._compare()

    def _verdict(self) -> Verdict:
        if not self._terms:
            return Verdict(reason=HIDDEN)
        return judge(self._losses)

    def _compare(self) -> None:
        """Refuse a declaration that is certainly not true."""
        verdict = self._verdict()
        if verdict.is_certain and verdict.kind != self._declared:
            raise _contradicted(
                f'The script declares loss="{self._declared}", and its loss is a {verdict.kind}'
                " over the samples.",
                f'Declare loss="{verdict.kind}", or nothing.',
            )
        if verdict.is_certain or len(self._losses) > _ENOUGH:
            self._stop()


def _roots_of(tensors: Any) -> Sequence[Any]:
    """Return what a backward pass begins with, one tensor or several, as several."""
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    return tensors  # type: ignore[no-any-return]


def end_looking() -> None:
    """Stop looking at backward passes: it is decided, or the run is over."""
    while _watching:
        _watching.pop()()
