"""The weights with which gradients of parts of a global batch add up to that of the whole.

A loss that is a mean over the samples weighs each part by its samples, a sum adds them up, and a
mean over something else is weighted by what the script says in ``run.weight``. The script may
declare mean or sum; otherwise its first backward passes are looked at (``reduction``), in the
rehearsal and where a worker trains alone, too. In the first update that several parts make, all
members vote; the outcome is part of the run's common state. Used by ``run`` and the reducers.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import torch

from bftrainer.elastic.errors import ElasticError
from bftrainer.elastic.reduction import (
    HIDDEN,
    MEAN,
    MIXED,
    SUM,
    LossTerm,
    SampleLoss,
    Verdict,
    judge,
    terms_of,
    together,
)

KEY = "bft-loss"  # among the registered objects
WEIGHTED = "weighted"
_KINDS = ("", MEAN, SUM, WEIGHTED)
_ADVICE = (
    'Declare it, elastic.Run(..., loss="mean") or loss="sum", or say what each share counts by'
    " run.weight(n); see docs/howto/train-pytorch.md, Losses."
)
_ENOUGH, _MOST = 2, 5  # losses over the same samples, and in all
_watching: list[Callable[[], None]] = []  # removes the watch of the latest run


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
        self._pending: tuple[str, float] | None = None  # the same, of the update under way
        self._reason = ""  # why the mean is only assumed
        self.batch = 1  # samples of the present global batch
        self.given: float | None = None  # the script's weight of the pass in hand
        self.sum_weight = 1.0  # of a share whose loss is a sum
        self.on_loss: Callable[[float], object] | None = None  # is told each outer loss
        self.samples = self.passes = 0  # of the pass in hand; until now
        self._terms: tuple[LossTerm, ...] = ()  # of its backward passes
        self._seen: list[SampleLoss] = []  # the last few losses
        self._is_fresh = True  # the pass in hand is to be looked at, and was not
        self._is_inside = False  # a backward pass
        self._is_looking = False

    # ---- what the reducers ask -----------------------------------------------------------

    @property
    def kind(self) -> str:
        """MEAN, SUM or WEIGHTED; "" until it is decided."""
        return self._declared or (self._pending[0] if self._pending else self._kind)

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
        chosen = [k for k, n in zip((MEAN, SUM, WEIGHTED), votes, strict=False) if n]
        is_clear = len(chosen) == 1 and not votes[3]
        if is_clear:
            self._reason = ""
        self._pending = (chosen[0] if is_clear else MEAN, 0.0)

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
            raise ElasticError(
                "BFT-1432",
                "run.weight() was called for a part of the batches only.",
                "Call it for every batch, before the backward pass, with 0 where nothing counts.",
            )
        unit = self.unit
        self._pending = (self.kind, total)
        return unit / total if total > 0 else 0.0

    # ---- what the run tells --------------------------------------------------------------

    def take(self, samples: int) -> None:
        """Note that the script now works on this many samples."""
        self.samples, self._terms, self.given = samples, (), None
        self.passes += 1
        known = sum(one.samples == samples for one in self._seen)
        self._is_fresh = samples < self.batch or known < _ENOUGH  # a share decides, or alone
        if (self._is_looking or self.on_loss) and not _watching:
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
        raise ElasticError(
            "BFT-1432",
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
        if self.on_loss is None:
            end_looking()

    def _see(self, tensors: Any) -> None:
        if not self._is_fresh:
            return
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        own = {p.data_ptr() for p in self._parameters}
        try:
            terms = [t for root in roots for t in terms_of(root, own, self._loss_scale())]
        except (RuntimeError, AttributeError, TypeError, IndexError):
            terms = [LossTerm()]  # a node that torch shows in another way
        if self._terms:  # an earlier backward pass over the same samples
            self._seen.pop()
        self._terms = together(self._terms, terms) if self._terms else tuple(terms)
        seen = SampleLoss(samples=self.samples, terms=self._terms)
        self._seen = [*self._seen[-_MOST:], seen]
        if self._declared:
            self._compare()

    def _verdict(self) -> Verdict:
        return judge(self._seen) if self._terms else Verdict(reason=HIDDEN)

    def _compare(self) -> None:
        """Refuse a declaration that is certainly not true."""
        verdict = self._verdict()
        if verdict.is_certain and verdict.kind != self._declared:
            raise ElasticError(
                "BFT-1432",
                f'The script declares loss="{self._declared}", and its loss is a {verdict.kind}'
                " over the samples.",
                f'Declare loss="{verdict.kind}", or nothing.',
            )
        if verdict.is_certain or len(self._seen) > _ENOUGH:
            self._stop()


def end_looking() -> None:
    """Stop looking at backward passes: it is decided, or the run is over."""
    while _watching:
        _watching.pop()()
