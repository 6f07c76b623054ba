"""The verdicts on published numbers: by rule, from full runs, and refuted by a broken model."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import pytest

from bftrainer.lab.papers.findings import ValueLine
from bftrainer.lab.papers.paper import Paper, Result, load, names, reproduce
from bftrainer.lab.papers.tolerances import Inputs
from bftrainer.lab.papers.verdicts import (
    FullRun,
    NumberVerdict,
    counts,
    judged,
    missing_lines,
    verdict_of,
)
from bftrainer.lab.verbs.reproduce import DATA_VARIABLE
from tests.support.machine import ROOT

PAPERS = [load(name) for name in names()]
FIFTH_MORE = 1.2
by_paper = pytest.mark.parametrize("paper", PAPERS, ids=names())


@pytest.mark.parametrize(
    ("about", "verdict"),
    [
        ({"paper": 100.0}, "reproduced"),
        ({"paper": 100.0, "predicted": "F"}, "predicted"),
        ({"paper": 100.0, "fitted": "F"}, "fitted"),
        ({"paper": 100.0, "holds": False}, "not reproduced"),
        ({"paper": 50.0}, "not reproduced"),
        ({"paper": 50.0, "fitted": "F"}, "not reproduced"),
        ({"paper": 50.0, "holds": True}, "order only"),
        ({"says": "more", "holds": True}, "order only"),
        ({"says": "more", "holds": False}, "not reproduced"),
        ({"says": "more", "holds": True, "is_ours": True}, None),
        ({"paper": 100.0, "reading_of": "x"}, None),
        ({"paper": 100.0, "missing": "no file"}, "not attempted"),
        ({}, None),
    ],
)
def test_a_verdict_follows_from_basis_and_nearness(about: dict[str, Any], verdict: str) -> None:
    line = ValueLine(what="", ours=101.0, **about)
    assert verdict_of(line, Result(result_id="x", shows="", inputs=Inputs.PUBLISHED)) == verdict


def test_what_is_not_attempted_counts_each_published_number() -> None:
    lines: dict[str, Any] = {
        "a": {"what": "a", "values": [1.0, 2.0]},
        "b": {"what": "b", "says": "more"},
    }
    result = Result(result_id="x", shows="", missing="not published", lines=lines)
    assert [verdict_of(line, result) for line in missing_lines(result)] == ["not attempted"] * 3


def full_run(paper: Paper) -> FullRun:
    """Return the last full run, which every paper has."""
    full = FullRun.read(paper.package)
    assert full is not None
    return full


@by_paper
def test_fits_are_named_with_their_parameters(paper: Paper) -> None:
    used = {
        line[way]
        for result in paper.results
        for line in result.lines.values()
        for way in ("fitted", "predicted")
        if line.get(way)
    }
    assert used == paper.fits.keys()
    assert all(fit["parameters"] and fit["to"] for fit in paper.fits.values())


@by_paper
def test_the_results_count_the_verdicts_of_the_last_full_run(paper: Paper) -> None:
    """``write_reproductions.py`` was run since results, values, bounds or fits have changed."""
    full = full_run(paper)
    assert full.ours.keys() == {one.result_id for one in paper.results if not one.missing}
    known = {(one.result_id, key) for one in paper.results for key in one.lines if not one.missing}
    kept = {(name, line["key"]) for name, lines in full.ours.items() for line in lines}
    assert kept == known
    found = counts(verdict for *_, verdict in full.judged(paper))
    shown = " ".join((ROOT / "docs" / "results.md").read_text().split())
    assert " ".join(map(str, found.values())) in shown


def reproduced() -> list[Any]:
    """Return what each parameter breaks: the reproduced numbers of a result by its name."""
    found: dict[tuple[str, str, str], set[str]] = {}
    for paper in PAPERS:
        for result, line, verdict in full_run(paper).judged(paper):
            # What is counted has no parameter.
            if verdict == NumberVerdict.REPRODUCED and result.inputs != Inputs.COUNTED:
                breaks = result.lines[line.key].get("breaks", result.breaks)
                key = (paper.package, result.result_id, breaks)
                found.setdefault(key, set()).add(line.what)
    return [
        pytest.param(package, result_id, breaks, numbers, id=f"{result_id}-{breaks}")
        for (package, result_id, breaks), numbers in found.items()
    ]


@pytest.mark.long
@pytest.mark.timeout(1800)  # up to 15 replays of a week
@pytest.mark.parametrize(("package", "result_id", "breaks", "numbers"), reproduced())
def test_nothing_is_reproduced_by_a_broken_model(
    package: str, result_id: str, breaks: str, numbers: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is missed, in full as it was met, when its parameter is changed so much."""
    paper = load(package.rpartition(".")[2])
    data = os.environ.get(DATA_VARIABLE)
    scenario = paper.choose_scenario(None, Path(data) if data else None, paper.full)
    if not scenario.is_papers:
        pytest.skip(f"{DATA_VARIABLE} is not set: no original data")
    module_name, _, name = breaks.partition(":")
    module = importlib.import_module(f"{package}.{module_name}")
    name, _, factor = name.partition("*")
    monkeypatch.setattr(module, name, float(factor or FIFTH_MORE) * getattr(module, name))
    made = reproduce(paper, scenario, paper.full, paper.choose([result_id]), processes=1)
    judged_ = {line.what: verdict for _, line, verdict in judged(made)}
    assert {what: judged_[what] for what in numbers} == dict.fromkeys(numbers, "not reproduced")
