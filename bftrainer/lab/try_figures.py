"""The first update in which an elastic run differs from the same script in one process.

The notes of both come in (``bftrainer/elastic/loop/try_record.py``): samples, losses, options,
gradients and parameters of each update, before it was applied. What differs first goes out, in the
order in which an update comes about, with what usually does that. Pure but for reading the files.

**Tolerance.** Half of a type's digits, so the root of its rounding unit: 3.5e-4 in float32. Shares
of a batch are added in another order than one process does it, which costs a few units (1e-6 to
1e-7); what is really another computation (another rate, a mask, a mean for a sum) is rarely below a
thousandth. Training amplifies rounding, so that it may get there in time as well: it then grows
update by update, whereas what is different jumps, by ``JUMP`` or more from one update to the next.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from bftrainer.lab.try_records import Key, key_of
from bftrainer.model.quantities import quantity

UNITS: Final = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
JUMP: Final = 10.0
MOST: Final = 1e9  # of a difference: JSON has no infinity
# Rates follow counts, or losses, whose rounding is a tenth of this.
OPTION_TOLERANCE: Final = 1e-5
NOISE_UNITS: Final = 100.0  # a gradient of so few units of all gradients is rounding alone
SMALL: Final = 1e-3  # of all parameters together: a smaller one is measured by that
RATIO_TOLERANCE: Final = 0.05
MOST_NAMED: Final = 3  # differences of one kind
# In the order in which they come about.
KINDS: Final = ("samples", "batch", "options", "scheduler", "scaler", "extra", "parameters", "loss",
                "gradients")  # fmt: skip
_PREFIXES: Final = {"optimizer.": "options", "scheduler": "scheduler", "scaler": "scaler",
                    "extra.": "extra", "counters.seed": "samples"}  # fmt: skip
_SAME: Final = "docs/howto/same-on-all-workers.md"
_TRAIN: Final = "docs/howto/train-pytorch.md"
# What usually does it, by kind.
_GROWN: Final = (
    "nothing stands out: differences of rounding have grown to this from update to update, as they"
    " do where training amplifies them."
)
_CAUSES: Final = {
    "samples": "an order, a split or a sampler that is drawn anew in every process or after a"
    f" restart, see {_TRAIN}, Seeds and Samplers.",
    "batch": "PerWorkerBatch or submit --batch, with which the batch of an update follows the"
    " workers: then runs cannot be compared update by update.",
    "options": "a schedule that follows a worker's own loss or a count of the script's own, which"
    " others do not have or a joiner begins anew: register the scheduler, use run.step_count and"
    f" run.mean(value), see {_SAME}.",
    "scaler": "the loss scaler was not given to Run (extra={'scaler': scaler}), or a worker's share"
    f" had an infinite gradient, see {_TRAIN}, Mixed precision.",
    "extra": "registered state that follows a worker's own share, a count of batches or the time,"
    f" see {_SAME}.",
    "gradients": "gradients that the script changes before run.step() by what only its own share"
    " says, backward passes that are not all averaged, or how the loss is reduced:"
    f" see {_TRAIN}, Losses.",
}
_CAUSES_TEXT_OF_SCHEDULER: Final = _CAUSES["options"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The parameters of a model, and layers whose result depends on more than a sample."""

    names: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    random: tuple[str, ...] = ()  # layers that draw random numbers
    over_batch: tuple[str, ...] = ()  # layers that normalise by the batch
    computed: tuple[str, ...] = ()  # types of what losses were computed from

    @property
    def unit(self) -> float:
        """The rounding unit of the coarsest type."""
        units = [UNITS.get(kind, 0.0) for kind in (*self.types, *self.computed)]
        return max(units, default=0.0) or UNITS["float32"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFigures:
    """The figures that one worker noted before an update."""

    size: int  # in workers
    batch: int  # samples of all workers
    leaves: Mapping[str, Any]  # options, scheduler, extra state
    norms: Any = None  # of the gradients, an array; NaN: there was none
    sketches: Sequence[Any] = ()  # of the parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateHistory:
    """All updates that the last state of a run contains, numbered from 1."""

    losses: Mapping[int, float]
    samples: Mapping[int, Sequence[int]] = field(default_factory=dict)  # indices, in order
    figures: Mapping[int, Mapping[int, UpdateFigures]] = field(default_factory=dict)  # by rank
    model: ModelFacts = ModelFacts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """One thing that differs in an update."""

    kind: str  # one of KINDS
    text: str
    amount: float = MOST  # relative; at most MOST, which is not a matter of degree
    ratio: float = 1.0  # of the elastic value to that alone


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDifference:
    """The first update that differs, what differs there, and what usually does that."""

    update: int
    size: int  # workers of the elastic run in it
    deviations: tuple[Deviation, ...]
    before: float  # the largest relative difference in the updates before
    likely: str
    is_jump: bool = True  # else the differences of rounding have grown to it

    @property
    def text(self) -> str:
        """Return it in a sentence."""
        by_kind: dict[str, list[str]] = {}
        for deviation in self.deviations:
            by_kind.setdefault(deviation.kind, []).append(deviation.text)
        parts = []
        for texts in by_kind.values():
            part = ", ".join(texts[:MOST_NAMED])
            if len(texts) > MOST_NAMED:
                part += f" and {len(texts) - MOST_NAMED} more"
            parts.append(part)
        workers = f"{self.size} worker{'s' * (self.size != 1)}"
        return f"The first difference is in update {self.update}, of {workers}: {'; '.join(parts)}."


def read_figures(
    directory: Path, made_by: Mapping[int, Key]
) -> tuple[dict[int, dict[int, UpdateFigures]], ModelFacts]:
    """Return what workers noted of the updates that count, by number and rank, and the model."""
    figures: dict[int, dict[int, UpdateFigures]] = {}
    model, computed = ModelFacts(), set[str]()
    for path in sorted(directory.glob("updates-*.jsonl")):
        leaves: dict[str, Any] = {}
        for text in path.read_bytes().split(b"\n")[:-1]:  # the last may be cut
            line = json.loads(text)
            if line["kind"] == "model":
                model = ModelFacts(**{k: tuple(v) for k, v in line.items() if k != "kind"})
                continue
            if line["kind"] == "computed":
                computed |= set(line["in"]) & UNITS.keys()
                continue
            leaves = {k: v for k, v in leaves.items() if k not in line["gone"]} | line["changed"]
            if made_by.get(line["step"] + 1) == key_of(line):
                figures.setdefault(line["step"] + 1, {})[line["rank"]] = _figures_of(line, leaves)
    return figures, replace(model, computed=tuple(sorted(computed)))


def _figures_of(line: Mapping[str, Any], leaves: Mapping[str, Any]) -> UpdateFigures:
    norms: Any = None
    if "norms" in line:
        norms = np.array(line["norms"], dtype=float)
    return UpdateFigures(
        size=line["size"],
        batch=line["batch"],
        leaves=leaves,
        norms=norms,
        sketches=[np.array(x, dtype=float) for x in line.get("sketches", ())],
    )


def not_finite_from(losses: Mapping[int, float]) -> int | None:
    """Return the update from which on no loss is a finite number; None: the last one is."""
    start = None
    for update in sorted(losses, reverse=True):
        if math.isfinite(losses[update]):
            break
        start = update
    return start


def first_difference(elastic: UpdateHistory, alone: UpdateHistory) -> FirstDifference | None:
    """Return the first update in which both differ by more than rounding; None: there is none."""
    scales = _Scales(elastic.model)
    before = 0.0
    for update in sorted(alone.losses.keys() | alone.figures.keys() | alone.samples.keys()):
        distances = list(_distances(update, elastic, alone, scales))
        deviations = [d for d, tolerance in distances if not d.amount <= tolerance]
        if deviations:
            deviations.sort(key=lambda d: (KINDS.index(d.kind), -d.amount))
            largest = max(d.amount for d in deviations)
            size = _size_of(elastic, update)
            is_jump = largest >= JUMP * max(before, scales.unit)
            likely = _GROWN
            if is_jump:
                likely = _likely(deviations[0], update, size, elastic.model)
            return FirstDifference(
                update=update,
                size=size,
                deviations=tuple(deviations),
                before=before,
                likely=likely,
                is_jump=is_jump,
            )
        before = max([before, *(d.amount for d, _ in distances)])
    return None


def _size_of(history: UpdateHistory, update: int) -> int:
    sizes = [figures.size for figures in history.figures.get(update, {}).values()]
    return max(sizes, default=1)


class _Scales:
    """The largest values so far, by which differences are measured."""

    def __init__(self, model: ModelFacts) -> None:
        self.model, self.unit = model, model.unit
        self.tolerance = math.sqrt(self.unit)
        self.loss = self.gradient = 0.0
        self._largest = np.zeros(len(model.names))  # norm of each parameter
        self._is_noise = np.zeros(len(model.names), dtype=bool)  # its gradients were
        self._has_gradient = np.zeros(len(model.names), dtype=bool)

    def see_loss(self, loss: float) -> None:
        """Take a loss of the run alone."""
        if math.isfinite(loss):
            self.loss = max(self.loss, abs(loss))

    def see_gradients(self, norms: Any) -> None:
        """Take the norms of its gradients."""
        finite = np.nan_to_num(norms, nan=0.0, posinf=0.0)
        total = float(np.sqrt((finite**2).sum()))
        self.gradient = max(self.gradient, total)
        self._has_gradient |= finite > NOISE_UNITS * self.unit * total
        self._is_noise |= finite > 0.0

    def of_parameters(self, sketches: Sequence[Any]) -> Any:
        """Take sketches of its parameters; return what each is measured by, 0: not at all.

        An optimizer such as Adam makes whole steps of gradients that are nothing but rounding, as
        those of a bias before a normalisation: such parameters differ without meaning.
        """
        norms = np.array([float(np.linalg.norm(x)) for x in sketches])
        self._largest = np.maximum(self._largest, np.nan_to_num(norms, nan=0.0, posinf=0.0))
        total = float(np.sqrt((self._largest**2).sum()))
        scales = np.maximum(self._largest, SMALL * total)
        scales[self._is_noise & ~self._has_gradient] = 0.0
        return scales

    def tolerance_of(self, number: int) -> float:
        """Return how far a parameter may be apart."""
        types = self.model.types[number], *self.model.computed
        return math.sqrt(max(UNITS.get(kind, self.unit) for kind in types))


def _distances(
    update: int, elastic: UpdateHistory, alone: UpdateHistory, scales: _Scales
) -> Iterator[tuple[Deviation, float]]:
    """Yield how far everything is apart in an update, and how far it may be."""
    ours, theirs = elastic.samples.get(update), alone.samples.get(update)
    if ours is not None and theirs is not None and sorted(ours) != sorted(theirs):
        yield Deviation(kind="samples", text=_samples_text(ours, theirs)), 0.0
    workers, single = elastic.figures.get(update, {}), alone.figures.get(update, {}).get(0)
    if single is not None:
        for rank, figures in sorted(workers.items()):
            yield from _plain_distances(figures, single, _on(rank, figures), scales.tolerance)
        yield from _tensor_distances(workers, single, scales)
    if update in elastic.losses and update in alone.losses:
        yield _loss_distance(elastic.losses[update], alone.losses[update], scales), scales.tolerance


def _on(rank: int, figures: UpdateFigures) -> str:
    """Return where a worker's figures are from; "": there is no other worker."""
    return f" on rank {rank}" if figures.size > 1 else ""


def _samples_text(ours: Sequence[int], theirs: Sequence[int]) -> str:
    extra, missing = set(ours) - set(theirs), set(theirs) - set(ours)
    parts = []
    if extra:
        parts.append(f"it took sample {min(extra)}")
    if missing:
        parts.append(f"not {min(missing)}")
    return ", ".join(parts) or f"it took {len(ours)} samples, alone {len(theirs)}"


def _plain_distances(
    figures: UpdateFigures, single: UpdateFigures, on: str, tolerance: float
) -> Iterator[tuple[Deviation, float]]:
    if figures.batch != single.batch:
        text = f"its batch has {figures.batch} samples, alone {single.batch}"
        yield Deviation(kind="batch", text=text), 0.0
    for path in sorted(single.leaves.keys() | figures.leaves.keys()):
        kind = next((k for prefix, k in _PREFIXES.items() if path.startswith(prefix)), None)
        if kind is None:  # counters, which the losses' places show
            continue
        if kind == "extra" and not (path in single.leaves and path in figures.leaves):
            continue  # members of one generation stop to look at what differs by design
        ours, theirs = figures.leaves.get(path), single.leaves.get(path)
        text = f"{path} is {_short(ours)}{on}, alone {_short(theirs)}"
        may_be = OPTION_TOLERANCE if kind == "options" else tolerance
        yield Deviation(kind=kind, text=text, amount=_apart(ours, theirs)), may_be


def _short(value: Any) -> str:
    return quantity(value, 6) if isinstance(value, float) else str(value)


def _apart(ours: Any, theirs: Any) -> float:
    """Return the relative distance of two values; ``MOST``: they are no real numbers."""
    if repr(ours) == repr(theirs):
        return 0.0
    for value in (ours, theirs):
        if not (isinstance(value, float) and math.isfinite(value)):
            return MOST
    distance: float = abs(ours - theirs) / max(abs(ours), abs(theirs))
    return distance


def _tensor_distances(
    workers: Mapping[int, UpdateFigures], single: UpdateFigures, scales: _Scales
) -> Iterator[tuple[Deviation, float]]:
    if single.norms is None:
        return
    measures = scales.of_parameters(single.sketches)
    scales.see_gradients(single.norms)
    names = scales.model.names
    for rank, figures in sorted(workers.items()):
        if figures.norms is None or len(figures.norms) != len(names):
            continue
        on = _on(rank, figures)
        for number, (ours, theirs) in enumerate(
            zip(figures.sketches, single.sketches, strict=True)
        ):
            amount = _distance(ours, theirs, measures[number])
            text = f"parameter {names[number]}{on} differs by {_amount_text(amount)} of its norm"
            text += " before it"
            yield (
                Deviation(kind="parameters", text=text, amount=amount),
                scales.tolerance_of(number),
            )
        yield from _gradient_distances(figures.norms, single.norms, on, scales)


def _gradient_distances(
    ours: Any, theirs: Any, on: str, scales: _Scales
) -> Iterator[tuple[Deviation, float]]:
    names = scales.model.names
    total = float(np.sqrt(np.nansum(ours**2)))
    total_alone = float(np.sqrt(np.nansum(theirs**2)))
    amounts = [_distance(a, b, scales.gradient) for a, b in zip(ours, theirs, strict=True)]
    worst = max(range(len(amounts)), key=amounts.__getitem__, default=0)
    lone = [n for n, a, b in zip(names, ours, theirs, strict=True) if np.isnan(a) != np.isnan(b)]
    text = f"the gradients' norm{on} is {quantity(total, 6)}, alone {quantity(total_alone, 6)}"
    if names:
        norms = f"{quantity(ours[worst], 6)}, alone {quantity(theirs[worst], 6)}"
        text += f" (most in {names[worst]}: {norms})"
    ratio = _ratio(total, total_alone)
    amount = max(amounts, default=0.0)
    if lone and amount > 0.0:
        text = f"{lone[0]}{on} has a gradient in one of both only"
    yield Deviation(kind="gradients", text=text, amount=amount, ratio=ratio), scales.tolerance


def _ratio(ours: float, theirs: float) -> float:
    """Return a value in proportion to that alone; 1: there is no such number."""
    if not theirs or not math.isfinite(ours / theirs):
        return 1.0
    return ours / theirs


def _distance(ours: Any, theirs: Any, scale: float) -> float:
    """Return how far two arrays or numbers are apart; equal where neither is a finite number."""
    ours, theirs = np.atleast_1d(ours), np.atleast_1d(theirs)
    is_both = ~np.isfinite(ours) & ~np.isfinite(theirs)
    if scale == 0.0:
        return 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        amount = float(np.linalg.norm(np.where(is_both, 0.0, ours - theirs))) / scale
    if not math.isfinite(amount):
        return MOST
    return min(amount, MOST)


def _amount_text(amount: float) -> str:
    return f"{amount:.1e}" if amount < MOST else "no finite number"


def _loss_distance(ours: float, theirs: float, scales: _Scales) -> Deviation:
    scales.see_loss(theirs)
    amount = _distance(ours, theirs, scales.loss or 1.0)
    ratio = _ratio(ours, theirs)
    text = f"its loss is {quantity(ours, 6)}, alone {quantity(theirs, 6)}"
    return Deviation(kind="loss", text=text, amount=amount, ratio=ratio)


# ---- what usually does it ----------------------------------------------------------------


def _likely(first: Deviation, update: int, size: int, model: ModelFacts) -> str:
    if first.kind in ("loss", "gradients") and (text := _of_ratio(first.ratio, size)):
        return text
    if first.kind == "loss":
        return _of_loss(size, model)
    if first.kind == "parameters":
        if update == 1:
            return (
                "initial weights that are drawn from the clock or the operating system, or loaded"
                f" in one of both only, see {_TRAIN}, Seeds."
            )
        return (
            "something beside run.step() changes parameters (an average that is swapped in, weights"
            " that are clipped or set), or the optimizer keeps what is in no state_dict()."
        )
    return _CAUSES.get(first.kind, _CAUSES_TEXT_OF_SCHEDULER)


def _of_ratio(ratio: float, size: int) -> str:
    """Return the cause of a value that is as many times too large or small as there are workers."""
    if size == 1:
        return ""
    if abs(ratio * size - 1.0) < RATIO_TOLERANCE:
        cause = (
            f'1/{size} of that alone, so a sum was taken for a mean: declare Run(..., loss="sum")'
        )
    elif abs(ratio / size - 1.0) < RATIO_TOLERANCE:
        cause = (
            f'{size} times that alone, so a mean was taken for a sum: declare Run(..., loss="mean")'
        )
    else:
        return ""
    return f"with {size} workers it is {cause}, see {_TRAIN}, Losses."


def _of_loss(size: int, model: ModelFacts) -> str:
    causes = []
    if model.random:
        causes.append(
            f"{_some(model.random)} draws other random numbers in each worker and generation"
        )
    if model.over_batch and size > 1:
        causes.append(f"{_some(model.over_batch)} normalises by each worker's share of the batch")
    if not causes and size > 1:
        causes.append(
            "a loss that is not made of each sample's own (contrastive, Dice, RMSE), or a mean over"
            f" something else than samples, which needs run.weight(n): see {_TRAIN}, Losses"
        )
    if not model.random:
        causes.append(
            "random numbers that the script or its data set draws (noise, augmentation): their"
            " streams begin anew in each generation"
        )
    return f"{'; or '.join(causes)}."


def _some(layers: Sequence[str]) -> str:
    first, *further = layers
    if not further:
        return f"layer {first}"
    return f"layer {first} and {len(further)} more"
