"""The frame of the reproductions: a paper is a folder, whatever it replays."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bftrainer.cli.main import main
from bftrainer.lab import papers
from bftrainer.lab.papers import paper as registry
from bftrainer.lab.papers.findings import Finding, ValueLine
from bftrainer.lab.papers.paper import Extent, Paper, Result, Scenario, Steps

EXPECTED = """\
{"citation": "Doe, Queues", "inputs": "assumed",
 "section": "section 1",
 "scenario": {"summary": "Equal jobs.", "document": {"jobs": {"seconds": 2.0}},
              "assumed": {"machines": "{machines}"}},
 "fits": {}, "results": {"wait": {"shows": "Table 1", "how": "played", "lines": {
   "mean": {"what": "mean wait, {jobs} jobs", "value": 4.0, "unit": "s", "source": "Table 1"},
   "growth": {"what": "wait of the last job", "unit": "s", "says": "it grows", "source": "Fig. 2"}
 }}},
 "tables": {}}
"""
PAPER = '''
"""A queue of equal jobs on one machine."""

import sys

from bftrainer.lab.papers.paper import Extent, drawn_scenario, paper_of


def play(seconds, n_jobs):
    return [seconds * k for k in range(n_jobs)]


def wait(found, _):
    waits = yield 5
    found.line("mean", sum(waits) / len(waits), jobs=5)
    found.line("growth", waits[-1], holds=waits[-1] > waits[0])


PAPER = paper_of(
    __package__,
    sys.modules[__name__],
    full=Extent(),
    quick=Extent(name="quick", shortened="nothing"),
    choose_scenario=lambda *_: drawn_scenario(__package__, words={"machines": 1}, content=2.0),
    play=play,
)
'''


def test_a_new_paper_needs_nothing_but_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "queues"
    folder.mkdir()
    (folder / "__init__.py").write_text('"""Replay a queue."""\n')
    (folder / "paper.py").write_text(PAPER)
    (folder / "expected.json").write_text(EXPECTED)
    monkeypatch.setattr(papers, "__path__", [*papers.__path__, str(tmp_path)])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert {"bftrainer", "queues"} <= set(registry.names())
    assert main(["reproduce", "--help"]) == 0
    assert "Replay a queue." in capsys.readouterr().out
    assert main(["reproduce", "queues", "--processes", "1", "--json", "-"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["paper"], made["jobs"]["seconds"]) == ("Doe, Queues", 2.0)
    assert made["remarks"] == ["Assumed, machines: 1."]
    mean, growth = made["results"][0]["lines"]
    assert (mean["what"], mean["ours"], mean["paper"]) == ("mean wait, 5 jobs", 4.0, 4.0)
    assert (mean["deviation"], mean["why"]) == (0.0, "")
    assert (growth["ours"], growth["holds"], growth["says"]) == (8.0, True, "it grows")
    assert main(["reproduce", "queues", "--quick", "--processes", "1"]) == 0
    out = capsys.readouterr().out
    assert "Shortened (--quick): nothing" in out
    assert "as in the paper" in out


@pytest.mark.parametrize("name", registry.names())
def test_every_paper_is_whole(name: str) -> None:
    paper = registry.load(name)
    assert registry.about(name)
    for result in paper.results:
        assert bool(result.missing) != (result.find is not None)
        assert result.lines, result.result_id
        assert all(one.get("is_ours") or one["source"] for one in result.lines.values())
    expected = registry.read_expected(f"{papers.__name__}.{name}")
    assert all(table["source"] for table in expected["tables"].values())


def test_replays_come_back_in_the_structure_in_which_they_were_asked_for() -> None:
    """Two results need replay 3: it is played once."""
    played: list[int] = []
    got: list[object] = []

    def play(_: None, run: int) -> int:
        played.append(run)
        return run * run

    def nested(_: Finding, __: Extent) -> Steps:
        got.append((yield {"a": [1, (2, 3)], "b": {"c": 3}}))

    def plain(found: Finding, _: Extent) -> None:
        found.line("x", 1.0)

    def single(_: Finding, __: Extent) -> Steps:
        got.append((yield 3))

    finds = {"nested": nested, "plain": plain, "single": single}
    known = {"x": {"what": "x", "source": "ours"}}
    results = tuple(
        Result(result_id=name, shows=name, lines=known, find=find) for name, find in finds.items()
    )
    extent, scenario = Extent(), Scenario(summary="", document={})
    paper = Paper(
        citation="", section="", results=results, full=extent, quick=extent,
        choose_scenario=lambda *_: scenario, play=play, cost=lambda run: (-run,),
    )  # fmt: skip
    made = registry.reproduce(paper, scenario, extent, results, processes=1)
    assert got == [{"a": [1, [4, 9]], "b": {"c": 9}}, 9]
    assert played == [3, 2, 1]  # the longest first
    assert made.findings["plain"].lines == [ValueLine(key="x", what="x", ours=1.0)]


def test_a_chart_that_is_there_gets_more_lines() -> None:
    chart = {"name": "fig-{of}", "title": "By {of}", "x_label": "x", "y_label": "y"}
    found = Finding(known={}, drawn={"fig": chart})
    for of, label in (("size", "ours"), ("size", "ours, paper"), ("time", "ours")):
        found.chart("fig", (1, 2), {label: (3.0, 4.0)}, of=of)
    size, time = found.charts
    assert (size.name, size.title, time.name) == ("fig-size", "By size", "fig-time")
    assert [plotted.is_papers for plotted in size.plotted] == [False, True]
