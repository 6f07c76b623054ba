"""The frame of the reproductions: a paper is a folder, whatever it replays."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bftrainer.cli.main import main
from bftrainer.lab import papers
from bftrainer.lab.papers import paper as registry

EXPECTED = """\
{"citation": "Doe, Queues",
 "results": {"wait": {
   "mean": {"what": "mean wait, {jobs} jobs", "value": 4.0, "unit": "s", "source": "Table 1"},
   "growth": {"what": "wait of the last job", "unit": "s", "says": "it grows", "source": "Fig. 2"}
 }},
 "tables": {}}
"""
PAPER = '''
"""A queue of equal jobs on one machine."""

from dataclasses import dataclass

from bftrainer.lab.papers.findings import read_expected
from bftrainer.lab.papers.findings import Reproduced
from bftrainer.lab.papers.paper import Extent, Paper, Result

EXPECTED = read_expected(__package__)


@dataclass(frozen=True)
class Jobs:
    seconds: float
    is_papers: bool = True

    def remarks(self):
        return ["One machine."]

    def summary(self):
        return f"Jobs of {self.seconds:g} s."

    def document(self):
        return {"jobs": {"seconds": self.seconds}}


def play(scenario, n_jobs):
    return [scenario.seconds * k for k in range(n_jobs)]


def find(records, _):
    waits = records[5]
    return Reproduced(lines=(
        EXPECTED.line("wait", "mean", sum(waits) / len(waits), jobs=5),
        EXPECTED.line("wait", "growth", waits[-1], holds=waits[-1] > waits[0]),
    ))


PAPER = Paper(
    citation=EXPECTED.citation,
    section="section 1",
    results=(
        Result(result_id="wait", shows="Table 1", how="played", runs=lambda _: (5,), find=find),
    ),
    full=Extent(name="full"),
    quick=Extent(name="quick", shortened="nothing"),
    choose_scenario=lambda trace, data, extent: Jobs(seconds=2.0),
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
    assert (made["paper"], made["jobs"]) == ("Doe, Queues", {"seconds": 2.0})
    mean, growth = made["results"][0]["lines"]
    assert (mean["what"], mean["ours"], mean["paper"]) == ("mean wait, 5 jobs", 4.0, 4.0)
    assert (mean["deviation"], mean["why"]) == (0.0, "")
    assert (growth["ours"], growth["holds"], growth["says"]) == (8.0, True, "it grows")
    assert main(["reproduce", "queues", "--quick", "--processes", "1"]) == 0
    out = capsys.readouterr().out
    assert "Shortened (--quick): nothing" in out
    assert "as in the paper" in out


def test_every_paper_can_be_loaded() -> None:
    for name in registry.names():
        paper = registry.load(name)
        assert registry.about(name)
        assert {result.result_id for result in paper.results}
        for result in paper.results:
            assert bool(result.missing) != (result.find is not None)
