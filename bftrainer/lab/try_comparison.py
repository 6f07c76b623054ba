"""Two trainings side by side, elastic and in one process: what they came to, and how far apart."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bftrainer.ground import files
from bftrainer.lab.try_figures import FirstDifference
from bftrainer.model.quantities import quantity

ROUNDING = 1e-3  # differences below come from the order of sums in float32, and grow with updates
_KINDS = {"float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}
_MOST = 1 << 22  # elements compared at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOutcome:
    """The result of one way of training."""

    seconds: float
    updates: int
    samples: int
    loss: float | None  # of the last update
    metric: float | None  # reported last


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Both ways, and how far they are apart."""

    elastic: TrainingOutcome
    alone: TrainingOutcome
    # Largest difference of a parameter to the largest of its tensor; None: not comparable.
    parameters: float | None
    losses: float | None  # the same of the updates' losses to the largest of them
    first: FirstDifference | None = None
    # The updates from which on no loss is a finite number.
    nan_elastic: int | None = None
    nan_alone: int | None = None


def outcome(
    directory: Path, seconds: float, losses: Mapping[int, float], metric: float | None
) -> TrainingOutcome:
    """Return the outcome of a training whose last checkpoint is in ``directory``."""
    found = files.newest_first(directory)
    counters = files.peek(found[0])["counters"] if found else {}
    return TrainingOutcome(
        seconds=seconds,
        updates=counters.get("step", 0),
        samples=counters.get("samples", 0),
        loss=losses[max(losses)] if losses else None,
        metric=metric,
    )


def loss_difference(one: Mapping[int, float], other: Mapping[int, float]) -> float | None:
    """Return the largest difference of an update's loss, relative to the largest loss.

    Where neither is a finite number they are equal, where one is not the difference is infinite.
    """
    both = sorted(one.keys() & other.keys())
    pairs = [(one[step], other[step]) for step in both]
    largest = max((abs(y) for _, y in pairs if math.isfinite(y)), default=0.0)
    apart = [abs(x - y) for x, y in pairs if math.isfinite(x) and math.isfinite(y)]
    if any(math.isfinite(x) != math.isfinite(y) for x, y in pairs):
        return math.inf
    return max(apart) / largest if largest else None


def parameter_difference(one: Path, other: Path) -> float | None:
    """Return how far the last checkpoints in two directories are apart.

    None: they are not comparable; NaN: neither has finite numbers alone; infinite: one has.
    """
    newest = [path for directory in (one, other) for path in files.newest_first(directory)[:1]]
    headers = [files.peek(path) for path in newest]
    if len(newest) < 2 or headers[0]["layout"] != headers[1]["layout"]:
        return None
    largest = 0.0
    if not all(name in _KINDS for name, _ in _described(headers[0])):
        return None
    for a, b in zip(*map(_parameters, newest, headers), strict=True):
        scale = difference = 0.0
        for first in range(0, len(a), _MOST):
            x, y = (_values(each[first : first + _MOST]) for each in (a, b))
            apart = float(np.abs(x - y).max())
            if not math.isfinite(apart):
                are_broken = [not np.isfinite(each).all() for each in (x, y)]
                return math.nan if all(are_broken) else math.inf
            scale, difference = max(scale, float(np.abs(y).max())), max(difference, apart)
        largest = max(largest, difference / scale if scale else difference)
    return largest


def _described(header: Mapping[str, Any]) -> list[tuple[str, list[int]]]:
    """Return type and shape of each parameter; they come first."""
    rest = dict(header["structure"]["d"])
    return [(name, shape) for name, shape in header["tensors"][: len(rest["trained"]["l"])]]


def _parameters(path: Path, header: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the numbers of each parameter of a checkpoint, of a sharded model's put together."""
    parts = [files.part_of(path, number) for number in range(header.get("parts", 1))]
    headers = [header, *map(files.peek, parts[1:])]
    columns = map(_stored, parts, headers)
    for i, pieces in enumerate(zip(*columns, strict=True)):
        boxes: list[Any] = [told["boxes"][i] if "boxes" in told else None for told in headers]
        found = pieces[0]
        if boxes[0] is not None:
            found = np.empty(boxes[0][0], dtype=found.dtype)
            for piece, (_, shape, offset) in zip(pieces, boxes, strict=True):
                place = tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))
                found[place] = piece.reshape(shape)
        if found.size:
            yield found.reshape(-1)


def _stored(path: Path, header: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the numbers of each parameter in one file."""
    with path.open("rb") as file:
        file.seek(len(files.MAGIC))
        start = len(files.MAGIC) + 8 + int.from_bytes(file.read(8), "little")
    for name, shape in _described(header):
        kind, count = np.dtype(_KINDS[name]), math.prod(shape)
        if count:
            yield np.memmap(path, dtype=kind, mode="r", offset=start, shape=(count,))
        else:
            yield np.empty(0, dtype=kind)
        start += count * kind.itemsize


def _values(stored: Any) -> Any:
    if stored.dtype == np.uint16:  # the upper half of a float32
        return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return stored.astype(np.float64)


def comparison_text(comparison: Comparison) -> list[str]:
    """Return the lines of the page."""
    lines = [f"    {'':12}{'elastic':>14}{'one process':>14}"]
    for label, name, digits in (
        ("updates", "updates", 1),
        ("samples", "samples", 1),
        ("seconds", "seconds", 1),
        ("last loss", "loss", 7),
        ("reported", "metric", 7),
    ):
        values = [getattr(way, name) for way in (comparison.elastic, comparison.alone)]
        texts = ["-" if value is None else quantity(value, digits) for value in values]
        if texts != ["-", "-"]:
            lines.append(f"    {label:12}{texts[0]:>14}{texts[1]:>14}")
    return ["  compared", *lines, *(f"    {line}" for line in _verdict(comparison))]


def _verdict(comparison: Comparison) -> list[str]:
    first = comparison.first
    began = [] if first is None else [first.text, f"Likely: {first.likely}"]
    if nan := _nan_text(comparison):
        return [nan, *began]
    if comparison.parameters is None:
        text = "The parameters cannot be compared: the models, or what was saved, differ."
        return [text, *began]
    losses = "" if comparison.losses is None else f", losses by {comparison.losses:.1e}"
    apart = f"parameters differ by {comparison.parameters:.1e} of the largest{losses}"
    is_small = all(x <= ROUNDING for x in (comparison.parameters, comparison.losses or 0.0))
    if is_small and (first is None or not first.is_jump):
        return [f"Elastic training changed nothing but the order of sums: {apart}."]
    return [f"Elastic training changed something: {apart}.", *(began or [_UNSEEN])]


_UNSEEN = (
    "No update stands out: differences of rounding have grown to this, or what differs is not among"
    " the records (buffers, parts of a sharded model, updates beyond the first 32 MB of records)."
)


def _nan_text(comparison: Comparison) -> str:
    """Return the sentence on numbers that are not finite; "": there are none."""
    here, alone = comparison.nan_elastic, comparison.nan_alone
    first, parameters = comparison.first, comparison.parameters
    if here is None and alone is None:
        if parameters is not None and math.isnan(parameters):
            return (
                "The final parameters of both runs are NaN or infinite: the script itself diverges."
            )
        return ""
    if here is None or alone is None:
        which, other, since = ("elastic run", "run alone", here)
        if here is None:
            which, other, since = other, which, alone
        return (
            f"The loss of the {which} is NaN or infinite from update {since} on, not the {other}'s."
        )
    when = f"update {here} on"
    if here != alone:
        when += f" in the elastic run, from update {alone} on alone"
    same = ""
    if first is None or first.update >= min(here, alone):
        same = " Until then elastic training changed nothing but the order of sums."
    return (
        f"The losses of both runs are NaN or infinite, from {when}: the script itself diverges"
        f" (lower the learning rate, clip gradients).{same}"
    )
