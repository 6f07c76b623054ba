"""What a try found: figures, the sentences that are printed, and what is wrong."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bftrainer.lab.tryout import baseline
from bftrainer.lab.tryout.baseline import Comparison
from bftrainer.lab.tryout.records import EpochUse, SizeSpeed
from bftrainer.model.errors import BftError, ExitCode
from bftrainer.model.trainer import TrainerState

NOT_ELASTIC = "BFT-1423"  # the worker's error


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
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
    kill: Kill | None
    speeds: tuple[SizeSpeed, ...]
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
        lines += baseline.as_text(report.comparison)
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


def _kill(kill: Kill | None) -> str:
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
