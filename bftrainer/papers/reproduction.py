"""Plays the replays of a paper's results and computes their findings."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

from bftrainer.papers.findings import Reproduced
from bftrainer.papers.paper import Extent, Paper, Records, Result, Scenario


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
    # The longest first, so that none is left alone at the end.
    todo = sorted(set(runs), key=paper.cost)
    records: dict[Any, Any] = {}
    if processes == 1:
        for run in todo:
            records[run] = paper.play(scenario, run)
            on_progress(len(records) / len(todo))
        return records
    with ProcessPoolExecutor(max_workers=processes) as pool:
        futures = {pool.submit(paper.play, scenario, run): run for run in todo}
        try:
            for future in as_completed(futures):
                records[futures[future]] = future.result()
                on_progress(len(records) / len(todo))
        except BaseException:
            pool.shutdown(cancel_futures=True)  # nobody needs the other replays
            raise
    return records
