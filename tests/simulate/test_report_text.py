"""Each report says the same, under the same headings, on a terminal and on its page."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from bftrainer.cli.main import main
from bftrainer.lab.report_page import ReportPage, Section
from bftrainer.lab.verbs.report_text import print_report
from bftrainer.model.columns import TextTable
from tests.simulate.test_whatif import SACCT
from tests.support.report_words import check_same_words, parts_of

Output = pytest.CaptureFixture[str]
WHATIF = ["whatif", "--processes=1", "--t-fwd=120", "--p-jmax=1", "--hold-down=0", "--start=0",
          "--end=8100"]  # fmt: skip
SIMULATE = ["simulate", "--nodes", "0:32", "--hours", "1"]


@pytest.mark.parametrize("name", ["whatif", "simulate"])
def test_a_verb_prints_the_words_of_its_page(name: str, tmp_path: Path, capsys: Output) -> None:
    pytest.importorskip("matplotlib", reason="reports need matplotlib (extra demo)")
    export, page = tmp_path / "export.txt", tmp_path / "page.html"
    export.write_text(SACCT)
    line = {
        "whatif": [*WHATIF, f"--sacct={export}"],
        "simulate": [*SIMULATE, "--policy", "milp,equal-share"],
    }[name]
    assert main([*line, f"--report={page}"]) == 0
    text = capsys.readouterr().out
    check_same_words(page.read_text(), text)
    headings = {
        "whatif": ("RECOMMENDED", "ONE SECOND MORE OF", "nothing kept back"),
        "simulate": ("All figures", "MEANING", "equal-share"),
    }[name]
    assert all(heading in text for heading in headings)
    assert text.index(next(iter(parts_of(text)))) < min(map(text.index, headings))


@pytest.mark.parametrize("width", [40, 60, 80, 81, 120, 160, 200])
def test_no_report_is_wider_than_its_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    cell = "77.6 [77.5, 77.7]"
    page = ReportPage(
        title="A report",
        answers=("Trainers could have 52.4 to 54.8 node-hours a day of the 78.8 idle.",),
        warnings=("in the 1.9 h at the beginning 11.3 nodes are in use",),
        sections=(
            Section(
                title="Expected with these settings, nothing kept back",
                drawn=("▁" * 40,),
                tables=(
                    TextTable(
                        headers=("POLICY", *(f">FIGURE {n} PER DAY" for n in range(8)), "WHY"),
                        rows=(("milp", *[cell] * 8, "A reason of some length. " * 4),),
                    ),
                    TextTable(headers=("", ""), rows=(("nodes", "20 (20 in the trace)"),)),
                ),
                code="t_fwd_s: 120",
                items=("All nodes are alike, and every trainer may use every node.", "Two."),
            ),
        ),
    )
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_report(page)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    for line in lines:
        assert cell_len(line.rstrip()) <= width, line
    words = " ".join(" ".join(lines).split())
    assert words.count(cell) == 8
    assert words.count("A reason of some length.") == 4
    assert "Warning: in the 1.9 h" in words
