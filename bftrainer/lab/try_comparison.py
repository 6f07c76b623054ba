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
_UNSEEN = (
    "No update stands out: differences of rounding have grown to this, or what differs is not among"
    " the records (buffers, parts of a sharded model, updates beyond the first 32 MB of records)."
)


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
    checkpoints = files.newest_first(directory)
    counters: Mapping[str, int] = {}
    if checkpoints:
        counters = files.peek(checkpoints[0])["counters"]
    return TrainingOutcome(
        seconds=seconds,
        updates=counters.get("step", 0),
        samples=counters.get("samples", 0),
        loss=losses[max(losses)] if losses else None,
        metric=metric,
    )


def loss_difference(elastic: Mapping[int, float], alone: Mapping[int, float]) -> float | None:
    """Return the largest difference of an update's loss, relative to the largest loss.

    Where neither is a finite number they are equal, where one is not the difference is infinite.
    """
    largest = apart = 0.0
    for step in elastic.keys() & alone.keys():
        x, y = elastic[step], alone[step]
        if math.isfinite(x) != math.isfinite(y):
            return math.inf
        if math.isfinite(y):
            largest = max(largest, abs(y))
            apart = max(apart, abs(x - y))
    return apart / largest if largest else None


def parameter_difference(elastic: Path, alone: Path) -> float | None:
    """Return how far the last checkpoints in two directories are apart.

    None: they are not comparable; NaN: neither has finite numbers alone; infinite: one has.
    """
    newest = [*files.newest_first(elastic)[:1], *files.newest_first(alone)[:1]]
    headers = list(map(files.peek, newest))
    if len(newest) < 2 or headers[0]["layout"] != headers[1]["layout"]:
        return None
    largest = 0.0
    if not all(name in _KINDS for name, _ in _described(headers[0])):
        return None
    for a, b in zip(*map(_parameters, newest, headers), strict=True):
        scale = difference = 0.0
        for first in range(0, len(a), _MOST):
            x, y = _values(a[first : first + _MOST]), _values(b[first : first + _MOST])
            apart = float(np.abs(x - y).max())
            if not math.isfinite(apart):
                has_finite = np.isfinite(x).all() or np.isfinite(y).all()
                return math.inf if has_finite else math.nan
            scale, difference = max(scale, float(np.abs(y).max())), max(difference, apart)
        if scale:
            difference /= scale
        largest = max(largest, difference)
    return largest


def _described(header: Mapping[str, Any]) -> list[tuple[str, list[int]]]:
    """Return type and shape of each parameter; they come first."""
    structure = dict(header["structure"]["d"])
    return [(name, shape) for name, shape in header["tensors"][: len(structure["trained"]["l"])]]


def _parameters(path: Path, header: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the numbers of each parameter of a checkpoint, of a sharded model's put together."""
    parts = [files.part_of(path, number) for number in range(header.get("parts", 1))]
    headers = [header, *map(files.peek, parts[1:])]
    columns = map(_stored, parts, headers)
    for i, pieces in enumerate(zip(*columns, strict=True)):
        values = pieces[0]
        if "boxes" in header and header["boxes"][i] is not None:
            boxes: list[Any] = [part_header["boxes"][i] for part_header in headers]
            whole_shape, _, _ = boxes[0]
            values = np.empty(whole_shape, dtype=values.dtype)
            for piece, (_, shape, offset) in zip(pieces, boxes, strict=True):
                place = tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))
                values[place] = piece.reshape(shape)
        if values.size:
            yield values.reshape(-1)


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
        elastic = _cell(getattr(comparison.elastic, name), digits)
        alone = _cell(getattr(comparison.alone, name), digits)
        if (elastic, alone) != ("-", "-"):
            lines.append(f"    {label:12}{elastic:>14}{alone:>14}")
    return ["  compared", *lines, *map("    {}".format, _verdict(comparison))]


def _cell(value: float | None, digits: int) -> str:
    return "-" if value is None else quantity(value, digits)


def _verdict(comparison: Comparison) -> list[str]:
    first = comparison.first
    hints = []
    if first is not None:
        hints = [first.text, f"Likely: {first.likely}"]
    if nan := _nan_text(comparison):
        return [nan, *hints]
    if comparison.parameters is None:
        text = "The parameters cannot be compared: the models, or what was saved, differ."
        return [text, *hints]
    apart = f"parameters differ by {comparison.parameters:.1e} of the largest"
    if comparison.losses is not None:
        apart += f", losses by {comparison.losses:.1e}"
    is_small = comparison.parameters <= ROUNDING and (comparison.losses or 0.0) <= ROUNDING
    if is_small and (first is None or not first.is_jump):
        return [f"Elastic training changed nothing but the order of sums: {apart}."]
    return [f"Elastic training changed something: {apart}.", *(hints or [_UNSEEN])]


def _nan_text(comparison: Comparison) -> str:
    """Return the sentence on numbers that are not finite; "": there are none."""
    elastic, alone = comparison.nan_elastic, comparison.nan_alone
    first, parameters = comparison.first, comparison.parameters
    if elastic is None and alone is None:
        if parameters is not None and math.isnan(parameters):
            return (
                "The final parameters of both runs are NaN or infinite: the script itself diverges."
            )
        return ""
    if elastic is None or alone is None:
        broken, sound, since = ("elastic run", "run alone", elastic)
        if elastic is None:
            broken, sound, since = sound, broken, alone
        text = f"The loss of the {broken} is NaN or infinite from update {since} on"
        return f"{text}, not the {sound}'s."
    when = f"update {elastic} on"
    if elastic != alone:
        when += f" in the elastic run, from update {alone} on alone"
    until_then = ""
    if first is None or first.update >= min(elastic, alone):
        until_then = " Until then elastic training changed nothing but the order of sums."
    return (
        f"The losses of both runs are NaN or infinite, from {when}: the script itself diverges"
        f" (lower the learning rate, clip gradients).{until_then}"
    )
