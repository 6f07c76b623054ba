"""Reads from autograd's graph whether a loss is a mean or a sum over the samples.

A loss is cut into terms: what its sums and constant factors hold together. Each term names the
reductions that made it a number, from the outside to the inside. Which of them is over the samples,
and whether a factor depends on their number, one batch often leaves open; the same loss over
another number of samples decides it. What is not certain is unclear, never guessed. Used by
``loss_rule``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

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
    is_free: bool = False
    is_even: bool = True  # no weights, nothing left out


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


def together(one: Sequence[LossTerm], other: Sequence[LossTerm]) -> tuple[LossTerm, ...]:
    """Return the terms of two losses over parts of a worker's samples, which are added up."""
    pairs = list(zip(one, other, strict=False))
    if _shape(one) != _shape(other) or not all(_may_join(a, b) for a, b in pairs):
        return (*one, *other)
    return tuple(_joined(a, b) for a, b in pairs)


def _may_join(one: LossTerm, other: LossTerm) -> bool:
    return all(r.op == MEAN for r in one.reductions) or _is_close(one.factor, other.factor)


def _joined(one: LossTerm, other: LossTerm) -> LossTerm:
    if one.is_free or not one.reductions:
        return one
    is_mean = all(r.op == MEAN for r in one.reductions)
    outer, *inner = one.reductions
    return replace(
        one,
        reductions=(replace(outer, count=outer.count + other.reductions[0].count), *inner),
        factor=one.factor + other.factor if is_mean else one.factor,
        is_even=one.is_even and other.is_even,
    )


class _Walk:
    """Goes down from one loss."""

    def __init__(self, parameters: Collection[int], loss_scale: float) -> None:
        self._parameters = parameters
        self._loss_scale = loss_scale
        self._left = _MOST_NODES

    def terms(self, node: Any, so_far: LossTerm) -> Iterator[LossTerm]:
        """Yield the terms below a node."""
        while True:
            self._left -= 1
            name, below = _name(node), [child for child, _ in node.next_functions]
            inner = [child for child in below if child is not None]
            if self._left < 0:
                yield replace(so_far, reductions=())
                return
            if (fused := _fused(node)) is not None:
                reduction, is_even = fused
                yield replace(so_far, reductions=(*so_far.reductions, reduction), is_even=is_even)
                return
            if name in ("Sum", "Mean"):
                reduction = Reduction(op=name.lower(), count=_reduced(node))
                so_far = replace(so_far, reductions=(*so_far.reductions, reduction))
            elif name in ("Mul", "Div") and (factor := _constant(node, below)) is not None:
                so_far = self._scaled(so_far, 1 / factor if name == "Div" else factor)
            elif name in ("Add", "Sub", "Rsub") and not so_far.reductions:
                for child in inner:
                    yield from self.terms(child, so_far)
                return
            elif name == "Stack":  # what is reduced over has the number of its parts
                yield from dict.fromkeys(t for child in inner for t in self.terms(child, so_far))
                return
            elif name in ("Mul", "Div") and len(inner) == 2 and not so_far.reductions:
                yield from self._product(inner, so_far, is_ratio=name == "Div")
                return
            elif name not in _SAME and name != "Neg":
                yield replace(so_far, is_free=self._is_free(node))
                return
            node = inner[0]

    def _scaled(self, term: LossTerm, factor: float) -> LossTerm:
        if factor == self._loss_scale != 1.0:
            self._loss_scale = 1.0  # once
            return term
        return replace(term, factor=term.factor * factor, is_scaled=True)

    def _product(
        self, inner: Sequence[Any], so_far: LossTerm, *, is_ratio: bool
    ) -> Iterator[LossTerm]:
        """Yield the terms of a product with something that does not depend on the samples."""
        if self._is_free(inner[1]):
            yield from self.terms(inner[0], so_far)
        elif self._is_free(inner[0]) and not is_ratio:
            yield from self.terms(inner[1], so_far)
        else:
            yield so_far

    def _is_free(self, node: Any) -> bool:
        """Return whether nothing but parameters goes into a node of the graph."""
        waiting, known = [node], set()
        while waiting:
            one = waiting.pop()
            self._left -= 1
            if self._left < 0 or not all(self._is_own(t) for t in _saved_tensors(one)):
                return False
            is_custom = isinstance(one, torch.autograd.function.BackwardCFunction)
            if is_custom or (_name(one) in _SAVES_NOTHING and _has_constants(one)):
                return False  # what else goes into it is not shown
            if one not in known:
                known.add(one)
                waiting += [child for child, _ in one.next_functions if child is not None]
        return True

    def _is_own(self, saved: torch.Tensor) -> bool:
        return saved.numel() <= 1 or saved.data_ptr() in self._parameters


def _name(node: Any) -> str:
    """Return a node's name without its ending: ``MulBackward0`` is ``Mul``."""
    return str(node.name()).rstrip("0123456789").removesuffix("Backward")


def _saved_tensors(node: Any) -> list[torch.Tensor]:
    saved = [getattr(node, name) for name in dir(node) if name.startswith("_saved_")]
    listed = [one for several in saved if isinstance(several, tuple) for one in several]
    return [one for one in (*saved, *listed) if isinstance(one, torch.Tensor)]


def _has_constants(node: Any) -> bool:
    return any(child is None for child, _ in node.next_functions)


def _reduced(node: Any) -> int:
    """Return how many elements a sum or mean makes one."""
    sizes = [int(n) for n in node._saved_self_sym_sizes]  # noqa: SLF001 - how torch shows it
    dims = getattr(node, "_saved_dim", None)
    if not dims:
        return math.prod(sizes)
    wrapped = [d - (1 << 64) if d >= 1 << 63 else d for d in dims]  # torch shows them unsigned
    return math.prod(sizes[d] for d in wrapped)


def _fused(node: Any) -> tuple[Reduction, bool] | None:
    """Return the reduction of a loss function that torch has as one node, and if it is even."""
    code = getattr(node, "_saved_reduction", 0)
    if code not in (1, 2):
        return None
    given, name = node._saved_self, _name(node)  # noqa: SLF001
    count = given.numel()
    if name in ("NllLoss", "NllLoss2D", "MultiMarginLoss", "MultilabelMarginLoss"):
        count //= given.shape[1] if given.dim() > 1 else count
    is_even = True
    if name.startswith("NllLoss") and code == 1:
        total = node._saved_total_weight  # noqa: SLF001
        is_even = node._saved_weight is None and float(total) == count  # noqa: SLF001
    return Reduction(op=MEAN if code == 1 else SUM, count=count), is_even


def _constant(node: Any, below: Sequence[Any]) -> float | None:
    """Return the constant of a product, or of a quotient of which it is the divisor."""
    is_other = len(below) < 2 or below[1] is None
    if below[0] is None and (not is_other and _name(node) == "Div"):
        return None
    value = getattr(node, "_saved_other" if is_other else "_saved_self", None)
    if below[0] is not None and not is_other:
        return None
    if isinstance(value, torch.Tensor):
        value = value.item() if value.numel() == 1 else None
    return float(value) if isinstance(value, int | float) and value else None


# ---- judging -----------------------------------------------------------------------------


def judge(seen: Sequence[SampleLoss]) -> Verdict:
    """Return what the newest of these losses is, with the help of the others.

    They are best over different numbers of samples.
    """
    if not seen:
        return Verdict(reason=HIDDEN)
    now, shape = seen[-1], _shape(seen[-1].terms)
    others = [one for one in seen[:-1] if _shape(one.terms) == shape]
    compared = any(one.samples != now.samples for one in others)
    most = max(Counter(now.terms).values(), default=0)
    if not compared and (
        most >= now.samples or now.samples == 1 or any(one.samples != now.samples for one in seen)
    ):
        return Verdict(reason=HIDDEN)  # a loop over samples, perhaps
    found = [
        _of_term(term, now.samples, [(one.terms[i], one.samples) for one in others])
        for i, term in enumerate(now.terms)
    ]
    if unclear := [one for one in found if not one.kind]:
        return unclear[0]
    kinds = {one.kind for one in found}
    if kinds not in ({MEAN}, {MEAN, FREE}, {SUM}):
        return Verdict(reason=MIXED)
    return Verdict(
        kind=SUM if SUM in kinds else MEAN, is_certain=all(one.is_certain for one in found)
    )


def _shape(terms: Sequence[LossTerm]) -> list[tuple[object, ...]]:
    return [
        (term.is_free, term.is_scaled, *(reduction.op for reduction in term.reductions))
        for term in terms
    ]


def _of_term(term: LossTerm, samples: int, others: Sequence[tuple[LossTerm, int]]) -> Verdict:
    """Judge one term, with the help of the same one over other batches."""
    if any(n == samples and not _is_same(one, term) for one, n in others):
        return Verdict(reason=UNEVEN)  # so it depends on more than their number
    verdicts = [
        _against(term, samples / n, *_over_samples(term, samples, one, n), one.factor)
        for one, n in others
        if n != samples
    ]
    if not verdicts:
        return _alone(term, samples)
    unclear = [one for one in verdicts if not one.kind]
    is_one = len({one.kind for one in verdicts}) == 1
    return verdicts[0] if is_one and not unclear else (*unclear, Verdict(reason=UNEVEN))[0]


def _is_same(one: LossTerm, other: LossTerm) -> bool:
    return one.reductions == other.reductions and _is_close(one.factor, other.factor)


def _over_samples(
    term: LossTerm, samples: int, other: LossTerm, other_samples: int
) -> tuple[list[Reduction], bool]:
    """Return the reductions that are over the samples, and if each has as much of every sample."""
    pairs = list(zip(term.reductions, other.reductions, strict=True))
    grown = [(now, then) for now, then in pairs if now.count != then.count]
    is_even = all(now.count * other_samples == then.count * samples for now, then in grown)
    return [now for now, _ in grown], is_even


def _against(
    term: LossTerm, samples: float, ours: Sequence[Reduction], is_even: bool, factor: float
) -> Verdict:
    """Judge a term over ``samples`` times as many samples as when its factor was ``factor``."""
    op, verdict = _op(term, ours, is_even=is_even)
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


def _alone(term: LossTerm, samples: int) -> Verdict:
    """Judge a term seen over one number of samples: only where nothing else makes sense."""
    ours = [r for r in term.reductions if not term.is_free and r.count % samples == 0]
    op, verdict = _op(term, ours, is_even=True)
    if verdict is not None:
        return verdict
    size = abs(term.factor)
    if not term.is_scaled or size == 1.0:
        is_plain = not term.is_scaled and len({r.op for r in term.reductions}) == 1
        return Verdict(kind=op, is_certain=is_plain)
    if op == MEAN and not _is_whole(size / samples):
        return Verdict(kind=MEAN)  # times its samples it would be a sum
    if op == SUM and size >= 0.5 and samples > 2:
        return Verdict(kind=SUM)  # and this a mean if divided by them
    return Verdict(reason=HIDDEN)


def _op(term: LossTerm, ours: Sequence[Reduction], *, is_even: bool) -> tuple[str, Verdict | None]:
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
