"""Each report says the same, under the same headings, on a terminal and on its page."""

from __future__ import annotations

from pathlib import Path

import pytest

from bftrainer.cli.main import main
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
