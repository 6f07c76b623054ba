"""The verdicts on published numbers: by rule, from full runs, and refuted by a broken model."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bftrainer.cli.reproduce import DATA_VARIABLE
from bftrainer.lab.papers.findings import ValueLine
from bftrainer.lab.papers.paper import Paper, Result, load, names, read_expected, reproduce
from bftrainer.lab.papers.verdicts import FullRun, NumberVerdict, counts, judged, verdict_of
from tests.support.machine import ROOT

PAPERS = [load(name) for name in names()]
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
        ({}, None),
    ],
)
def test_a_verdict_follows_from_basis_and_nearness(about: dict[str, Any], verdict: str) -> None:
    line = ValueLine(what="", ours=101.0, **about)
    assert verdict_of(line, Result(result_id="x", shows="", tolerance=2.0)) == verdict


def test_what_is_not_attempted_counts_each_published_number() -> None:
    lines: dict[str, Any] = {
        "a": {"what": "a", "values": [1.0, 2.0]},
        "b": {"what": "b", "says": "more"},
    }
    result = Result(result_id="x", shows="", missing="not published", lines=lines)
    [paper, *_] = PAPERS
    made = reproduce(paper, paper.choose_scenario(None, None, paper.quick), paper.quick, [result],
                     processes=1)  # fmt: skip
    assert counts(verdict for _, _, verdict in judged(made))[NumberVerdict.UNTRIED] == 3


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
def test_the_readme_counts_the_verdicts_of_the_last_full_run(paper: Paper) -> None:
    """``write_reproductions.py`` was run since results, values, bounds or fits have changed."""
    full = FullRun.read(paper.package)
    assert full is not None
    assert full.ours.keys() == {one.result_id for one in paper.results if not one.missing}
    known = {(one.result_id, key) for one in paper.results for key in one.lines if not one.missing}
    kept = {(name, line["key"]) for name, lines in full.ours.items() for line in lines}
    assert kept == known
    found = counts(verdict for *_, verdict in full.judged(paper))
    shown = " ".join((ROOT / "README.md").read_text().split())
    assert " ".join(map(str, found.values())) in shown


def reproduced() -> Iterator[Any]:
    """Yield the results of which a number is reproduced."""
    for name, paper in zip(names(), PAPERS, strict=True):
        full = FullRun.read(paper.package)
        judged_ = () if full is None else full.judged(paper)
        found = {
            one.result_id for one, _, verdict in judged_ if verdict == NumberVerdict.REPRODUCED
        }
        for result in paper.choose(found):
            if found:
                yield pytest.param(paper, result, id=f"{name}-{result.result_id}")


@pytest.mark.long
@pytest.mark.parametrize(("paper", "result"), list(reproduced()))
def test_nothing_is_reproduced_by_a_broken_model(
    paper: Paper, result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each parameter that is named is changed by a fifth, and its numbers are missed."""
    lines = read_expected(paper.package)["results"][result.result_id]["lines"]
    sound = _reproduced(paper, result)
    for breaks in {line.get("breaks", result.breaks) for line in lines.values()} - {""}:
        with monkeypatch.context() as patch:
            module_name, _, name = breaks.partition(":")
            module = importlib.import_module(f"{paper.package}.{module_name}")
            patch.setattr(module, name, 1.2 * getattr(module, name))
            sound &= _reproduced(paper, result)
    assert not sound


def _reproduced(paper: Paper, result: Result) -> set[str]:
    data = os.environ.get(DATA_VARIABLE)
    scenario = paper.choose_scenario(None, Path(data) if data else None, paper.quick)
    if not scenario.is_papers:
        pytest.skip(f"{DATA_VARIABLE} is not set: no original data")
    made = reproduce(paper, scenario, paper.quick, [result], processes=1)
    return {line.what for _, line, verdict in judged(made) if verdict == NumberVerdict.REPRODUCED}
