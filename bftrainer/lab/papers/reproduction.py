"""Plays the replays of a paper's results and computes their findings."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from bftrainer.lab.papers.findings import Reproduced
from bftrainer.lab.papers.paper import Extent, Paper, Records, Result, Scenario
from bftrainer.lab.parallel import play_each


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """A paper's evaluation, repeated."""

    paper: Paper
    scenario: Scenario
    extent: Extent
    results: tuple[Result, ...]
    findings: Mapping[str, Reproduced]  # by result_id; none for a result that is missing


def reproduce(
    paper: Paper,
    scenario: Scenario,
    extent: Extent,
    results: Sequence[Result],
    *,
    processes: int,
    on_progress: Callable[[float], None] = lambda _: None,
) -> Reproduction:
    """Play what the results need, each replay once, and compute their findings."""
    runs = {run for result in results for run in result.runs(extent)}
    records = play_all(paper, scenario, runs, processes=processes, on_progress=on_progress)
    return Reproduction(
        paper=paper,
        scenario=scenario,
        extent=extent,
        results=tuple(results),
        findings={
            result.result_id: result.find(records, extent)
            for result in results
            if result.find is not None
        },
    )


def play_all(
    paper: Paper,
    scenario: Scenario,
    runs: Iterable[Hashable],
    *,
    processes: int,
    on_progress: Callable[[float], None] = lambda _: None,
) -> Records:
    """Play each replay once; the records do not depend on the number of processes."""
    todo = sorted(set(runs), key=paper.cost)  # the longest first
    play = partial(paper.play, scenario)
    return play_each(play, todo, processes=processes, on_progress=on_progress)
