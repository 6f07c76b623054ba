"""``scripts/write_results.py``: what benchmarks wrote becomes docs/results.md."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import write_results
from _bench.promises import recipes
from _bench.targets import Target, write_json

ROOT = Path(__file__).parents[3]
MOST_BENCHMARKS = 20


def _target(name: str, measured: float) -> Target:
    return Target(name=name, measured=measured, limit=1.0, relation="<=")


def test_the_page_is_current() -> None:
    page = write_results.page_of(ROOT / write_results.KEPT, ROOT / "scripts")
    current = (ROOT / write_results.PAGE).read_text(encoding="utf-8")
    assert current == page, "run: python scripts/write_results.py docs/results"


def test_what_is_kept_has_a_benchmark_of_its_name() -> None:
    for path in (ROOT / write_results.KEPT).glob("*.json"):
        assert write_results.read_result(path).benchmark == path.stem
        scripts = [one.stem[6:] for one in (ROOT / "scripts").glob("bench_*.py")]
        assert write_results.script_of(path.stem, scripts)


def test_what_a_benchmark_wrote_is_kept_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts, kept, written = tmp_path / "scripts", tmp_path / "kept", tmp_path / "x.json"
    scripts.mkdir()
    (scripts / "bench_x.py").write_text('"""How long is x?\n\nMore.\n"""\n')
    (scripts / "bench_y.py").write_text('"""How long is y?"""\n')
    argv = ["scripts/bench_x.py", "--json", str(written), "--quick"]
    monkeypatch.setattr(sys, "argv", argv)
    write_json(written, "x", {"samples": [1, 2]}, [_target("a", 0.02), _target("b|c", 2.0)])
    write_results.keep(write_results.read_result(written, "On a busy machine."), kept)
    assert "samples" not in json.loads((kept / "x.json").read_text())
    write_json(written, "x_far", {}, [_target("c", 0.5)])
    write_results.keep(write_results.read_result(written), kept)
    page = write_results.page_of(kept, scripts)
    assert "## bench_x.py --far\n\n`scripts/bench_x.py --quick` (20" in page
    assert "## bench_x.py\n\nHow long is x?\n`scripts/bench_x.py --quick` (20" in page
    assert "\nOn a busy machine.\n" in page
    assert "\na       ≤1 s      20 ms\nb|c     ≤1 s      2 s, missed\n```\n" in page
    assert page.endswith("## Not measured\n\n`bench_y.py`.\n")


def test_all_missed_targets_are_shown_and_the_first_of_the_others() -> None:
    targets = [_target(f"{i}", 2.0 if i > 4 else 0.5) for i in range(6)]
    assert [one.name for one in write_results.shown_of(targets)] == ["0", "5"]
    missed = [_target(f"{i}", 2.0) for i in range(9)]
    met, other = _target("met", 0.5), _target("other", 0.5)
    assert write_results.shown_of([met, *missed, other]) == [met, *missed]


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (0.000189, "s", "0.189 ms"),
        (0.0, "s", "0 s"),
        (1.125, "", "1.125"),
        (20_000.0, "bytes", "20,000 bytes"),
    ],
)
def test_values_are_readable(value: float, unit: str, words: str) -> None:
    assert write_results.in_words(value, unit) == words


@pytest.mark.parametrize("text", ["", "[]", '{"benchmark": "x"}', '{"targets": [{}]}'])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="is not a benchmark's result"):
        write_results.read_result(path)


def test_benchmarks_are_few_and_run_by_one_command() -> None:
    names = {path.name for path in (ROOT / "scripts").glob("bench_*.py")}
    assert len(names) <= MOST_BENCHMARKS
    assert {recipe.full.split()[0] for recipe in recipes().values()} == names


def test_pages_name_benchmarks_that_are_there() -> None:
    """Decision records are history, so they may name removed ones."""
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "adr"]
    for path in (*ROOT.glob("*.md"), *pages):
        for name in re.findall(r"\bbench_\w+", path.read_text(encoding="utf-8")):
            script = ROOT / "scripts" / f"{name.removesuffix('py')}.py"
            assert script.exists(), f"{path.name} names {name}"
