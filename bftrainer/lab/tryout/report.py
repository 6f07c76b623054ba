"""The findings of a try, also beside the same script in one process."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bftrainer.elastic import files
from bftrainer.lab.tryout.records import EpochUse, SpeedBySize
from bftrainer.model.errors import BftError, ExitCode
from bftrainer.model.trainer import TrainerState

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
    """Return the largest difference of an update's loss, relative to the largest loss."""
    both = one.keys() & other.keys()
    largest = max((abs(other[step]) for step in both), default=0.0)
    return max(abs(one[step] - other[step]) for step in both) / largest if largest else None


def parameter_difference(one: Path, other: Path) -> float | None:
    """Return how far the last checkpoints in two directories are apart; None: not comparable."""
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
                return math.inf
            scale, difference = max(scale, float(np.abs(y).max())), max(difference, apart)
        largest = max(largest, difference / scale if scale else difference)
    return largest


def _described(header: Mapping[str, Any]) -> list[tuple[str, list[int]]]:
    """Return type and shape of each parameter; they come first."""
    rest = dict(header["structure"]["d"])
    return [(name, shape) for name, shape in header["tensors"][: len(rest["trained"]["l"])]]


def _parameters(path: Path, header: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the numbers of each parameter of a checkpoint."""
    with path.open("rb") as file:
        file.seek(len(files.MAGIC))
        start = len(files.MAGIC) + 8 + int.from_bytes(file.read(8), "little")
    for name, shape in _described(header):
        kind, count = np.dtype(_KINDS[name]), math.prod(shape)
        if count:
            yield np.memmap(path, dtype=kind, mode="r", offset=start, shape=(count,))
        start += count * kind.itemsize


def _values(stored: Any) -> Any:
    if stored.dtype == np.uint16:  # the upper half of a float32
        return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return stored.astype(np.float64)


def comparison_text(found: Comparison) -> list[str]:
    """Return the lines of the page."""
    rows = [
        ("", "elastic", "one process"),
        ("updates", *(str(o.updates) for o in (found.elastic, found.alone))),
        ("samples", *(str(o.samples) for o in (found.elastic, found.alone))),
        ("seconds", *(f"{o.seconds:.0f}" for o in (found.elastic, found.alone))),
        ("last loss", *(_number(o.loss) for o in (found.elastic, found.alone))),
        ("reported", *(_number(o.metric) for o in (found.elastic, found.alone))),
    ]
    lines = [f"    {a:12}{b:>14}{c:>14}" for a, b, c in rows if b != "-" or c != "-"]
    return ["  compared", *lines, f"    {_verdict(found)}"]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.7g}"


def _verdict(found: Comparison) -> str:
    if found.parameters is None:
        return "The parameters cannot be compared: the models, or what was saved, differ."
    losses = "" if found.losses is None else f", losses by {found.losses:.1e}"
    apart = f"parameters differ by {found.parameters:.1e} of the largest{losses}"
    if all(x <= ROUNDING for x in (found.parameters, found.losses or 0.0)):
        return f"Elastic training changed nothing but the order of sums: {apart}."
    return (
        f"Elastic training changed something: {apart}. Dropout, noise and batch normalisation"
        " do; if there is none, see docs/howto/train-pytorch.md, Losses."
    )


NOT_ELASTIC = "BFT-1423"  # the worker's error


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerKill:
    """The worker that was killed."""

    at_s: float  # since the submission
    rank: int
    size: int  # in workers
    step: int  # the newest that it had made


@dataclass(frozen=True, slots=True, kw_only=True)
class TryReport:
    """All results of a try."""

    script: str
    state: str
    reason: str
    seconds: float
    nodes: int
    failures: int  # the worker that was killed is one of them
    rescales: int
    pauses_s: tuple[float, ...]
    kill: WorkerKill | None
    speeds: tuple[SpeedBySize, ...]
    epochs: tuple[EpochUse, ...]
    last_lines: tuple[str, ...]  # that the script printed
    comparison: Comparison | None = None  # with one process


def wrong(report: TryReport) -> BftError | None:
    """Return what a user must look at, None if the script finished and used all samples once."""
    if NOT_ELASTIC in report.reason:
        return BftError(
            "BFT-1057",
            f"{report.script} ended without training with bftrainer.elastic.",
            "Make its loop elastic: docs/howto/train-pytorch.md shows the five lines.",
        )
    if report.state == TrainerState.FAILED:
        return BftError(
            "BFT-1053",
            f"{report.script} failed: {report.reason}",
            "Correct the script and try again; the end of its log is above.",
        )
    is_finished = report.state == TrainerState.FINISHED
    said = _uses(report.epochs)
    if is_finished and not report.epochs:
        said = ["no update was recorded"]
    if said:
        return BftError(
            "BFT-1054",
            f"Not every sample was used exactly once: {said[0]}.",
            "If the script leaves its loop over run.batches() early, let it end the epoch;"
            " otherwise this is a defect of bftrainer: report it with the directory.",
            exit_code=ExitCode.VALIDATION_FAILED,
        )
    if not is_finished:
        return BftError(
            "BFT-1055",
            f"{report.script} had not finished after {report.seconds:.0f} s.",
            "Give more --seconds or fewer --epochs.",
        )
    return None


def _uses(epochs: Sequence[EpochUse]) -> list[str]:
    """Return a sentence for each epoch that is not as it should be; the last may be cut."""
    said = []
    for use in epochs:
        name = f"epoch {use.epoch}"
        if use.twice:
            said.append(f"{name} used sample {use.twice[0]} more than once")
        elif not use.is_once:
            said.append(f"{name} used {use.repeated} samples again and left out {use.missed}")
        elif use is not epochs[-1] and use.used < use.of:
            said.append(f"{name} ended after {use.used} of its {use.of} samples")
    return said


def as_text(report: TryReport) -> str:
    """Return the page that is printed at the end."""
    lines = [f"{report.script} {report.state} after {report.seconds:.0f} s, {report.nodes} nodes"]
    if (failures := report.failures - (report.kill is not None)) > 0:
        lines.append(f"  failures    {failures}")
    if report.epochs:
        lines += [f"  rescales    {_rescales(report)}", f"  killed      {_kill(report.kill)}"]
        speeds = ", ".join(f"{s.samples_per_s:.0f} with {_workers(s.size)}" for s in report.speeds)
        lines += [f"  samples/s   {speeds}", f"  samples     {_samples(report)}"]
    if report.comparison is not None:
        lines += comparison_text(report.comparison)
    if report.last_lines:
        lines += ["  it printed at last", *(f"    {line}" for line in report.last_lines)]
    return "\n".join(lines)


def _rescales(report: TryReport) -> str:
    if not report.rescales:
        return "none; it ended before nodes came or went: more --epochs would show it"
    return (
        f"{report.rescales}, pauses of {statistics.median(report.pauses_s):.2f} s (median) to"
        f" {max(report.pauses_s):.2f} s"
    )


def _kill(kill: WorkerKill | None) -> str:
    if kill is None:
        return "nobody; two nodes never trained together for some updates"
    return f"rank {kill.rank} of {kill.size} workers after step {kill.step}, at {kill.at_s:.1f} s"


def _workers(size: int) -> str:
    return "1 worker" if size == 1 else f"{size} workers"


def _samples(report: TryReport) -> str:
    if said := _uses(report.epochs):
        return "; ".join(said[:3])
    last = report.epochs[-1]
    full = sum(use.used == use.of for use in report.epochs)
    text = f"every one exactly once in each of {full} epochs" if full else ""
    if last.used < last.of:
        cut = f"{last.used} of {last.of} in the last"
        text = f"{text}; {cut}" if text else cut
    return text
