"""The parts of a paper's reproduction; papers are found by their folder, replays played.

A ``Paper`` chooses a scenario (what is replayed), and names its results. A result says which
replays it needs and computes its findings from their records. Replays are asked for by value, so
results that need the same replay share it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from bftrainer.lab import papers
from bftrainer.lab.papers.findings import Reproduced
from bftrainer.lab.parallel import play_each
from bftrainer.model.errors import UsageError

Records = Mapping[Any, Any]  # replay -> what it left


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The amount that is replayed; papers add their sweeps and spans."""

    name: str
    shortened: str = ""  # what is left out; empty: nothing


class Scenario(Protocol):
    """The scenario of a replay: a workload, and a machine where the paper has one. Pickled."""

    @property
    def is_papers(self) -> bool:
        """Return whether the paper's values can be expected."""

    def remarks(self) -> list[str]:
        """Return what a reader must know before any value."""

    def summary(self) -> str:
        """Return one sentence for the report."""

    def document(self) -> dict[str, Any]:
        """Return what the JSON document says of it, by section."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One result of a paper's evaluation.

    ``missing`` says why the available data cannot give it; then nothing is replayed.
    """

    result_id: str
    shows: str  # what the paper shows
    how: str  # how ours is computed
    why: str = ""  # lines deviate by more than the tolerance
    tolerance: float = 2.0  # points, or percent
    runs: Callable[[Any], tuple[Hashable, ...]] = lambda _: ()  # extent -> replays
    find: Callable[[Records, Any], Reproduced] | None = None  # records, extent -> finding
    missing: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """A paper's evaluation.

    ``choose_scenario`` gets the trace that the user named, the directory of original data (either
    may be None) and the extent; it raises TraceError for a file that cannot be read. ``play`` is a
    function of a module: it is sent to other processes. ``cost`` orders replays, the longest
    first.
    """

    citation: str
    section: str  # of the evaluation
    results: tuple[Result, ...]
    full: Extent
    quick: Extent
    choose_scenario: Callable[[Path | None, Path | None, Any], Scenario]
    play: Callable[[Any, Any], Any]  # scenario, replay -> record
    cost: Callable[[Any], tuple[Any, ...]] = lambda _: ()
    reads_trace: bool = True  # False: it draws what it replays, and has no use for a trace

    def choose(self, only: Iterable[str]) -> tuple[Result, ...]:
        """Return the named results in the paper's order, all if none is named.

        Raises:
            UsageError: BFT-4160, there is no such result.
        """
        wanted = {name.lower() for name in only}
        known = [result.result_id for result in self.results]
        for name in sorted(wanted - set(known)):
            raise UsageError(
                "BFT-4160", f"There is no result called {name[:60]!r}.", f"Use {', '.join(known)}."
            )
        return tuple(r for r in self.results if not wanted or r.result_id in wanted)


def names() -> list[str]:
    """Return the names of all papers, sorted; imports none of them."""
    return sorted(found.name for found in pkgutil.iter_modules(papers.__path__) if found.ispkg)


def about(name: str) -> str:
    """Return the docstring of a paper's package; imports no more than that."""
    return importlib.import_module(f"{papers.__name__}.{name}").__doc__ or ""


def load(name: str) -> Paper:
    """Return a paper by its name."""
    paper = importlib.import_module(f"{papers.__name__}.{name}.paper").PAPER
    if not isinstance(paper, Paper):
        raise TypeError(f"{papers.__name__}.{name}.paper:PAPER is not a Paper")
    return paper


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
