"""The data of a study's pictures: summary and events put in order. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bftrainer.study.configurations import Parameter
from bftrainer.study.outcome import StudySummary, TrialRow
from bftrainer.study.trials import TrialStage

_ENDS = {str(stage) for stage in TrialStage if stage.is_over}
_UNITS = ((2 * 86400.0, 86400.0, "days"), (2 * 3600.0, 3600.0, "hours"), (120.0, 60.0, "minutes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedValue:
    """A value that a trial reported."""

    at_s: float  # since the study began, as all times here
    trial: int
    units: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """A time in which a trial was active, or waited at its rung."""

    trial: int
    begin_s: float
    end_s: float
    budget: int
    is_active: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOfTrial:
    """A trial's end."""

    at_s: float
    trial: int
    stage: TrialStage


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """All that there is to draw."""

    summary: StudySummary
    parameters: Mapping[str, Parameter]
    reported: tuple[ReportedValue, ...]  # in order of time
    stays: tuple[Stay, ...]
    ended: tuple[EndOfTrial, ...]
    pool: tuple[tuple[float, int], ...]  # since when so many nodes were the daemon's or idle
    duration_s: float

    @property
    def is_maximized(self) -> bool:
        """Return whether great values are good."""
        return self.summary.direction == "maximize"

    @property
    def with_values(self) -> list[TrialRow]:
        """Trials that have reported a number, best last."""
        rows = [r for r in self.summary.trials if r.value is not None and math.isfinite(r.value)]
        sign = 1.0 if self.is_maximized else -1.0
        return sorted(rows, key=lambda row: sign * (row.value or 0.0))

    @property
    def clock(self) -> tuple[float, str]:
        """Seconds of the unit in which times are shown, and its name."""
        found = [(unit_s, name) for least, unit_s, name in _UNITS if self.duration_s >= least]
        return found[0] if found else (1.0, "seconds")


def material(
    summary: StudySummary, parameters: Mapping[str, Parameter], events: Iterable[Mapping[str, Any]]
) -> Material:
    """Put a study's events in order.

    After a crash of its loop one of them may be missing, or be there twice.
    """
    began_s = summary.created_s
    ordered = sorted(events, key=lambda event: float(event["at_s"]))
    last_s = max([summary.at_s, *(float(event["at_s"]) for event in ordered[-1:])])
    reported = {
        (event["trial"], event["units"]): ReportedValue(
            at_s=event["at_s"] - began_s,
            trial=event["trial"],
            units=event["units"],
            value=event["value"],
        )
        for event in reversed(ordered)
        if event["event"] == "reported" and math.isfinite(event["value"])
    }
    ended = {
        event["trial"]: EndOfTrial(
            at_s=event["at_s"] - began_s, trial=event["trial"], stage=TrialStage(event["event"])
        )
        for event in reversed(ordered)
        if event["event"] in _ENDS
    }
    over_s = max((one.at_s for one in ended.values()), default=0.0)
    is_over = summary.state in ("over", "stopped")
    duration_s = over_s if is_over and over_s > 0 else last_s - began_s
    return Material(
        summary=summary,
        parameters=parameters,
        reported=tuple(sorted(reported.values(), key=lambda one: one.at_s)),
        stays=_stays(ordered, began_s, duration_s, summary.rule.get("most")),
        ended=tuple(ended.values()),
        pool=tuple((e["at_s"] - began_s, e["nodes"]) for e in ordered if e["event"] == "pool"),
        duration_s=max(1.0, duration_s),
    )


def _stays(
    ordered: Sequence[Mapping[str, Any]], began_s: float, duration_s: float, most: int | None
) -> tuple[Stay, ...]:
    """Return when each trial trained and waited; after the full budget none waits."""
    since: dict[int, tuple[float, int, bool]] = {}  # trial -> begin, budget, is active
    stays: list[Stay] = []

    def leave(trial: int, now_s: float) -> None:
        begin_s, budget, is_active = since.pop(trial, (now_s, 0, False))
        if begin_s < now_s:
            stays.append(
                Stay(
                    trial=trial,
                    begin_s=begin_s,
                    end_s=now_s,
                    budget=budget,
                    is_active=is_active,
                )
            )

    for event in ordered:
        what, now_s = event["event"], event["at_s"] - began_s
        if what in ("started", "grown"):
            leave(event["trial"], now_s)
            since[event["trial"]] = now_s, event["budget"], True
        elif what == "reported":
            _, budget, is_active = since.get(event["trial"], (now_s, 0, False))
            if is_active and event["units"] >= budget and budget != most:
                leave(event["trial"], now_s)
                since[event["trial"]] = now_s, budget, False
        elif what in _ENDS:
            leave(event["trial"], now_s)
    for trial in list(since):
        leave(trial, duration_s)
    return tuple(stays)
