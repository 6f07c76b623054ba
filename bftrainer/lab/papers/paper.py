"""The parts of a paper's reproduction; papers are found by their folder, replays played.

A ``Paper`` chooses a scenario (what is replayed) and names its results. What is said of a result,
and what the paper says, is data, ``expected.json``:

    {"citation": "...", "section": "...", "inputs": INPUTS,
     "scenario": {"summary": "...", "document": {SECTION: {...}}, "assumed": {WHAT: "..."}},
     "results": {RESULT: {"shows": ..., "how": ..., "why": ..., "inputs": INPUTS, "missing": ...,
         "fitted" or "predicted": FIT, "breaks": PARAMETER,
         "lines": {LINE: {"what": ..., "unit": ..., "source": ..., "value" or "says": ...,
                          "why": ..., "is_relative": ..., "is_about": ..., "is_ours": ...,
                          "reading_of": ...}},
         "charts": {CHART: {"name": ..., "title": ..., "x_label": ..., "y_label": ...,
                            "has_bars": ..., "is_log": ...}}}},
     "fits": {FIT: {"parameters": [...], "to": ...}},
     "tables": {TABLE: {"source": ..., "columns": [...], "rows": {NAME: [...]}}}}

Numbers are written with the digits that the paper prints: these and ``inputs``, of a result or of
all, say how near ours must be (``tolerances``). One printed number has one line; a line that
compares ours with it by another reading names that line as ``reading_of`` and has no verdict.

A line with ``value`` has a number to compare with; one with ``says`` quotes a statement; one with
neither gets the published value from the code, which takes it from a table. Lines of a ``missing``
result may have several ``values``. What stands with a result as ``fitted``, ``predicted`` or
``breaks`` may stand with a line instead. ``breaks`` is MODULE:NAME of a parameter of which a change
by 20% changes the verdict *reproduced*, or MODULE:NAME*FACTOR where that takes more.

A finding is computed by a generator: it yields the replays that it needs, in dicts and lists of
any depth, and is sent the same structure with the record of each. One that needs none is a plain
function. Replays are asked for by value, so results that need the same replay share it.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections import ChainMap
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from bftrainer.lab import papers
from bftrainer.lab.papers.findings import Finding
from bftrainer.lab.papers.tolerances import Inputs, Printed
from bftrainer.lab.parallel import play_each
from bftrainer.model.errors import UsageError

Run = TypeVar("Run")
Records = Mapping[Any, Any]  # replay -> what it left
Steps = Generator[Any, Any, None]
Find = Callable[[Finding, Any], Steps | None]  # finding, extent


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The amount that is replayed; papers add their sweeps and spans, in full by default."""

    name: str = "full"
    shortened: str = ""  # what is left out; empty: nothing

    def seeds(self, number: str, first: int = 1000) -> range:
        """Return as many seeds as a field says; assumptions were chosen with smaller ones."""
        return range(first, first + getattr(self, number))


def per_seed(make: Callable[..., Run], seeds: Iterable[int]) -> list[Run]:
    """Return what a function makes of each ``seed``."""
    return [make(seed=seed) for seed in seeds]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The scenario of all replays: a workload, and a machine where the paper has one. Pickled."""

    summary: str  # one sentence for the report
    document: Mapping[str, Any]  # by section of the JSON document
    remarks: Sequence[str] = ()  # what a reader must know before any value
    is_papers: bool = True  # the paper's values can be expected
    content: Any = None  # what ``play`` gets


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One result of a paper's evaluation.

    ``missing`` says why the available data cannot give it; then nothing is replayed.
    """

    result_id: str
    shows: str  # what the paper shows
    how: str = ""  # how ours is computed
    why: str = ""  # lines deviate by more than the tolerance
    inputs: Inputs = Inputs.ASSUMED
    missing: str = ""
    lines: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    charts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    breaks: str = ""  # MODULE:NAME of a parameter that nothing here is reproduced without
    find: Find | None = None


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
    play: Callable[[Any, Any], Any]  # content of the scenario, replay -> record
    cost: Callable[[Any], tuple[Any, ...]] = lambda _: ()
    reads_trace: bool = True  # False: it draws what it replays, and has no use for a trace
    package: str = ""
    fits: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def choose(self, only: Iterable[str]) -> tuple[Result, ...]:
        """Return the named results in the paper's order, all if none is named.

        Raises:
            UsageError: BFT-4160, there is no such result.
        """
        choice = {name.lower() for name in only}
        by_id = {result.result_id: result for result in self.results}
        for name in sorted(choice - set(by_id)):
            raise UsageError(
                "BFT-4160", f"There is no result called {name[:60]!r}.", f"Use {', '.join(by_id)}."
            )
        if not choice:
            return self.results
        return tuple(result for result in self.results if result.result_id in choice)


@cache
def read_expected(package: str) -> dict[str, Any]:
    """Read the ``expected.json`` of a package."""
    text = files(package).joinpath("expected.json").read_text("utf-8")
    document: dict[str, Any] = json.loads(text, parse_float=Printed)
    return document


def paper_of(package: str, *modules: ModuleType, **parts: Any) -> Paper:
    """Return the paper of a package.

    Args:
        package: has ``expected.json``.
        modules: a result is computed by the function of its name in one of them.
        parts: of ``Paper``, those that are code.
    """
    document, finds = read_expected(package), ChainMap(*map(vars, modules))
    results = []
    for name, entry in document["results"].items():
        parts_of_result = dict(entry)
        # What is said of all lines of a result; a line may say otherwise.
        basis = {}
        for part in ("fitted", "predicted"):
            if part in parts_of_result:
                basis[part] = parts_of_result.pop(part)
        lines = parts_of_result.pop("lines", {})
        parts_of_result["lines"] = {key: basis | line for key, line in lines.items()}
        parts_of_result["inputs"] = Inputs(entry.get("inputs", document["inputs"]))
        find = None
        if "missing" not in entry:
            find = finds[name.replace("-", "_")]
        results.append(Result(result_id=name, find=find, **parts_of_result))
    return Paper(
        citation=document["citation"], section=document["section"], fits=document["fits"],
        results=tuple(results), package=package, **parts,
    )  # fmt: skip


def drawn_scenario(
    package: str, *, words: Mapping[str, Any] | None = None, **parts: Any
) -> Scenario:
    """Return a scenario that reads no file: its summary, and what is assumed.

    Args:
        package: has ``expected.json``.
        words: what placeholders in the assumptions stand for.
        parts: of ``Scenario``; remarks come before the assumptions.
    """
    entry = read_expected(package)["scenario"]
    remarks = list(parts.pop("remarks", ()))
    assumptions = {}
    for subject, template in entry["assumed"].items():
        text = template.format_map(words or {})
        assumptions[subject] = text
        remarks.append(f"Assumed, {subject}: {text}.")
    [(section, settings)] = entry["document"].items()
    document = {section: {**settings, **parts.pop("settings", {}), "assumed": assumptions}}
    return Scenario(summary=entry["summary"], document=document, remarks=remarks, **parts)


def names() -> list[str]:
    """Return the names of all papers, sorted; imports none of them."""
    return sorted(module.name for module in pkgutil.iter_modules(papers.__path__) if module.ispkg)


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
    findings: Mapping[str, Finding]  # by result_id; none for a result that is missing
    records: Records = field(default_factory=dict)


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
    findings: dict[str, Finding] = {}
    waiting: list[tuple[Steps, Any]] = []  # with the replays that it needs
    needs: set[Hashable] = set()
    for result in results:
        if result.find is not None:
            finding = Finding(known=result.lines, drawn=result.charts)
            findings[result.result_id] = finding
            if steps := result.find(finding, extent):
                runs = next(steps)
                waiting.append((steps, runs))
                needs.update(_leaves(runs))
    records = play_all(paper, scenario, needs, processes=processes, on_progress=on_progress)
    for steps, runs in waiting:
        with suppress(StopIteration):  # it has no second question
            steps.send(_filled(runs, records))
    return Reproduction(
        paper=paper, scenario=scenario, extent=extent, results=tuple(results), findings=findings,
        records=records,
    )  # fmt: skip


def _leaves(runs: Any) -> Iterator[Hashable]:
    """Yield the replays that are in dicts and lists of any depth."""
    if isinstance(runs, dict):
        parts = list(runs.values())
    elif isinstance(runs, list | tuple):
        parts = list(runs)
    else:
        yield runs
        return
    for part in parts:
        yield from _leaves(part)


def _filled(runs: Any, records: Records) -> Any:
    """Return the same dicts and lists with the record of each replay."""
    if isinstance(runs, dict):
        return {key: _filled(part, records) for key, part in runs.items()}
    if isinstance(runs, list | tuple):
        return [_filled(part, records) for part in runs]
    return records[runs]


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
    play = partial(paper.play, scenario.content)
    return play_each(play, todo, processes=processes, on_progress=on_progress)
