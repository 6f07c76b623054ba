"""``scripts/promises.ini`` and ``scripts/promises.py``: what is promised, measured, and too old."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import promises as command
import pytest
import write_results
from _bench.promises import Promise, Recipe, Verdict, promises, recipes, verdict_of
from _bench.stats import quantile_interval
from _bench.targets import Target
from write_results import Result

from bftrainer.batch.process import run

ROOT = Path(__file__).parents[3]
# Their rows are newer than the stored results: the next `make promises-full` measures them.
NOT_YET_MEASURED = {"harm-large", "harvest-large"}
MOST_SHORT_MINUTES = 60.0
CITED = re.compile(r"results\.md#(bench_\w+?)py((?:---\w+)?)\)")
FIGURE = re.compile(r"(?<![\w.,:-])(\d+\.\d+|\d+(?= ?%| times))")
BENCHMARK = """
import json, pathlib, sys
at = sys.argv.index("--json")
path = pathlib.Path(sys.argv[at + 1])
row = {"name": "pause", "measured": 2.0, "limit": 9.0, "relation": "<=", "low": LOW, "high": 3.0}
body = {"benchmark": "x", "is_whole": IS_WHOLE, "targets": [row], "load": 1, "took_s": 60}
path.write_text(json.dumps(body | {"load_after": 2}))
"""


@pytest.fixture(scope="module")
def stored() -> dict[str, Result]:
    return write_results.stored_results(ROOT / write_results.KEPT)


def _row(measured: float, *, low: float | None = None, high: float | None = None) -> Target:
    return Target(name="pause", measured=measured, limit=1.0, relation="<=", low=low, high=high)


def _promise(rows: str = "pause", limit: float | None = None) -> Promise:
    return Promise(
        name="short",
        says="It is short",
        result="x",
        rows=rows,
        limit=limit,
        beside_rows="the other",
        beside="the other takes {} times as long",
        is_in_readme=True,
    )


def _result(*targets: Target, commit: str = "1234567") -> Result:
    return Result(
        benchmark="x", command="scripts/x.py", date="2026-01-01", commit=commit, remark="",
        targets=targets,
    )  # fmt: skip


def test_the_table_of_readme_is_current(stored: dict[str, Result]) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme == write_results.readme_of(readme, stored), "run: scripts/write_results.py"


def test_each_promise_names_rows_of_a_stored_result(stored: dict[str, Result]) -> None:
    missing = {p.name for p in promises() if command.row_of(p, stored) is None}
    assert missing == NOT_YET_MEASURED
    for promise in promises():
        assert not (promise.is_in_readme and promise.name in missing)
        results = stored.get(promise.result)
        targets = results.targets if results else ()
        rows = [target for target in targets if re.fullmatch(promise.rows, target.name)]
        assert len({row.relation for row in rows}) <= 1
        assert promise.limit is not None or len({row.limit for row in rows}) <= 1, promise.name


def test_each_result_has_a_command_of_a_benchmark_and_its_code_is_there(
    stored: dict[str, Result],
) -> None:
    assert stored.keys() <= recipes().keys()
    assert {promise.result for promise in promises()} <= recipes().keys()
    for recipe in recipes().values():
        for words in filter(None, (recipe.full, recipe.short)):
            assert (ROOT / "scripts" / words.split()[0]).exists()
        assert all(list((ROOT / path).rglob("*.py")) for path in recipe.code), recipe.result
    for name in {promise.result for promise in promises()}:
        assert recipes()[name].code


def test_the_short_forms_take_an_hour_at_most() -> None:
    chosen = command.recipes_for(promises(), is_full=False, has_all=False)
    assert sum(recipe.short_minutes for recipe in chosen) <= MOST_SHORT_MINUTES
    assert f"{sum(recipe.short_minutes for recipe in chosen):g}" in command.plan_of(
        chosen, is_full=False
    )


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (None, Verdict.NOT_MEASURED),
        (_row(0.9, low=0.8, high=1.2), Verdict.HELD),
        (_row(1.1, low=0.9, high=1.2), Verdict.UNSURE),
        (_row(1.1, low=1.05), Verdict.LOST),
        (_row(1.1), Verdict.LOST),
        (_row(1.1, high=1.2), Verdict.LOST),
    ],
)
def test_a_promise_is_lost_beyond_the_interval(row: Target | None, verdict: Verdict) -> None:
    assert verdict_of(row) is verdict


def test_the_worst_row_counts_with_the_limit_that_is_promised() -> None:
    rows = [
        Target(name=f"pause {case}", measured=measured, limit=0.5, relation="<=")
        for case, measured in (("1->2", 0.2), ("2->4", 0.4))
    ]
    other = Target(name="the other", measured=4321.0, limit=1.0, relation=">=")
    promise = _promise("pause (.+)", limit=0.3)
    worst = promise.worst_of([*rows, other])
    assert worst is not None
    assert (worst.measured, worst.limit, promise.case_of(worst)) == (0.4, 0.3, "2 to 4")
    assert promise.alternative_of([other]) == "the other takes 4,321 times as long"
    table = write_results.table_of([promise], {"x": _result(*rows)})
    line = "| It is short. | ≤0.3 s | **0.4 s** (2 to 4), missed |  |"
    assert table.splitlines()[2].startswith(line)
    assert promise.worst_of([other]) is None
    assert "not measured" in write_results.table_of([promise], {})


def test_a_quantile_lies_between_values_as_often_as_said() -> None:
    """Of n values each is beyond the 95th percentile with 5%: binomial, by hand."""
    twenty = [float(value) for value in range(1, 21)]
    assert quantile_interval(twenty, 0.95) == (17.0, None)  # four beyond: 1.6%, three: 7.5%
    assert quantile_interval([3.0, 1.0, 4.0, 2.0], 0.95) == (3.0, None)
    assert quantile_interval([1.0], 0.95) == (None, None)
    assert quantile_interval(twenty, 0.5) == (6.0, 15.0)  # ranks of tables of the sign test


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one benchmark and one promise."""
    (tmp_path / "scripts").mkdir()
    recipe = Recipe(
        result="x", full="bench_x.py", full_minutes=2.0, short="bench_x.py --quick",
        short_minutes=1.0, code=("code",),
    )  # fmt: skip
    kept = tmp_path / "kept"
    kept.mkdir()
    for name, value in {
        "ROOT": tmp_path,
        "OUT": tmp_path / "out",
        "KEPT": kept,
        "recipes": lambda: {"x": recipe},
        "promises": lambda: [_promise(limit=1.0)],
    }.items():
        monkeypatch.setattr(command, name, value)
    monkeypatch.setattr(write_results, "write_pages", (tmp_path / "pages").touch)
    return tmp_path


def _benchmark(lab: Path, *, low: float, is_whole: bool = True) -> None:
    text = BENCHMARK.replace("LOW", str(low)).replace("IS_WHOLE", str(is_whole))
    (lab / "scripts" / "bench_x.py").write_text(text)


def test_short_forms_judge_and_store_nothing(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _benchmark(lab, low=0.5)
    write_results.keep(_result(_row(0.4)), lab / "kept")
    before = (lab / "kept" / "x.json").read_text()
    assert command.main([]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[-1].split() == ["short", "0.4", "s", "2", "s", "0.5", "s", "to", "3", "s",
                               "unsure,", "moved"]  # fmt: skip
    _benchmark(lab, low=1.5)
    assert command.main(["--only", "short"]) == 1
    assert capsys.readouterr().out.splitlines()[-1].endswith("lost, moved")
    assert (lab / "kept" / "x.json").read_text() == before
    assert not (lab / "pages").exists()
    write_results.keep(_result(_row(1.7)), lab / "kept")  # it was missed before
    assert command.main([]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("missed")


def test_a_short_run_is_compared_with_the_one_before_and_kept(
    lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_results.keep(_result(_row(0.4)), lab / "kept")
    lines: list[str] = []
    for low in (0.5, 0.6):
        _benchmark(lab, low=low)
        command.main(["--again", str(lab / "short")])
        lines.append(" ".join(capsys.readouterr().out.splitlines()[-1].split()))
    assert lines == ["short - 2 s 0.5 s to 3 s unsure", "short 2 s 2 s 0.6 s to 3 s unsure"]


def test_what_another_command_measured_is_not_compared(
    lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _benchmark(lab, low=0.5)
    command.main(["--again", str(lab / "short")])
    one_hour = replace(write_results.stored_results(lab / "short")["x"], command="x.py --hours 1")
    write_results.keep(one_hour, lab / "short")
    capsys.readouterr()
    command.main(["--again", str(lab / "short")])
    assert capsys.readouterr().out.splitlines()[-1].split()[:2] == ["short", "-"]


def test_verdicts_are_beside_what_is_stored_whatever_came_out_before(
    lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_results.keep(_result(_row(0.4)), lab / "kept")
    write_results.keep(_result(_row(1.9)), lab / "short")
    _benchmark(lab, low=1.5)
    assert command.main(["--again", str(lab / "short")]) == 1
    assert capsys.readouterr().out.splitlines()[-1].endswith("lost")


def test_a_part_of_a_short_run_is_not_kept(lab: Path) -> None:
    _benchmark(lab, low=0.5, is_whole=False)
    command.main(["--again", str(lab / "short")])
    assert not (lab / "short" / "x.json").exists()


@pytest.mark.parametrize(
    ("before", "now", "has_moved"),
    [
        ((1.0, 0.5, 1.5), (2.0, 1.8, 2.2), True),
        ((1.0, 0.5, 2.1), (2.0, 1.8, 2.2), False),  # it may have been as it is now
        ((1.0, None, None), (2.0, 1.8, 2.2), True),
        ((1.0, None, None), (2.0, None, None), False),  # nobody knows
        ((1.0, 0.5, None), (0.4, 0.3, None), False),
    ],
)
def test_a_figure_has_moved_if_each_is_outside_of_the_others_interval(
    before: tuple[float, float | None, float | None],
    now: tuple[float, float | None, float | None],
    *,
    has_moved: bool,
) -> None:
    rows = [_row(value, low=low, high=high) for value, low, high in (before, now)]
    assert command._has_moved(*rows) is has_moved


def test_full_forms_are_kept_if_they_are_whole(
    lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _benchmark(lab, low=0.5, is_whole=False)
    assert command.main(["--full"]) == 0
    assert not (lab / "kept" / "x.json").exists()
    _benchmark(lab, low=0.5)
    assert command.main(["--full"]) == 0
    body = json.loads((lab / "kept" / "x.json").read_text())
    assert body["recorded"]["remark"] == "Load 1.0 at the start, 2.0 at the end; 1 minutes."
    assert (body["targets"][0]["low"], body["targets"][0]["high"]) == (0.5, 3.0)
    assert (lab / "pages").exists()
    (lab / "scripts" / "bench_x.py").write_text("raise SystemExit(1)")
    assert command.main([]) == 0
    assert "not measured" in capsys.readouterr().out.splitlines()[-1]


def test_a_release_wants_results_that_are_young(
    lab: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit(lines: int) -> str:
        (lab / "code" / "a.py").write_text("".join(f"x = {number}\n" for number in range(lines)))
        author = ["-c", "user.name=n", "-c", "user.email=e@invalid"]
        for words in (["add", "code"], [*author, "commit", "-q", "-m", str(lines)]):
            assert run(["git", "-C", str(lab), *words], timeout_s=60.0).is_ok
        argv = ["git", "-C", str(lab), "rev-parse", "--short", "HEAD"]
        return run(argv, timeout_s=60.0).stdout.strip()

    assert run(["git", "init", "-q", str(lab)], timeout_s=60.0).is_ok
    (lab / "code").mkdir()
    assert command.main(["--check"]) == 1
    assert capsys.readouterr().out == "short: not measured (scripts/bench_x.py)\n"
    first = commit(8)
    write_results.keep(_result(_row(0.4), commit=f"{first} or before"), lab / "kept")
    commit(10)
    assert command.main(["--check"]) == 0
    commit(12)
    assert command.main(["--check"]) == 1
    again = "(again: scripts/bench_x.py)\n"
    new = f"x: 33% of the lines that it measures are new {again}"
    assert capsys.readouterr().out.endswith(new)
    monkeypatch.setattr(command, "MOST_COMMITS", 1)
    assert command.main(["--check"]) == 1
    assert capsys.readouterr().out == f"x: 2 commits old {again}{new}"
    write_results.keep(_result(_row(0.4), commit="abcdefabcdef"), lab / "kept")
    assert command.main(["--check"]) == 1
    assert capsys.readouterr().out == f"x: its commit abcdefabcdef is not here {again}"


def _citations() -> Iterator[tuple[Path, str, str]]:
    """Yield each sentence or line of a table that names a result, with the result's name."""
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        if path.parent.name == "adr" or path.name == "results.md":
            continue
        for block in path.read_text(encoding="utf-8").split("\n\n"):
            lines = block.splitlines() if block.startswith("|") else [block.replace("\n", " ")]
            for line in lines:
                is_row = line.startswith("|")
                for sentence in [line] if is_row else re.split(r"(?<=[.:]) (?=[A-Z*])", line):
                    for script, option in CITED.findall(sentence):
                        name = script.removeprefix("bench_") + option.replace("---", "_")
                        yield path, sentence, name


def test_figures_beside_the_name_of_a_result_are_in_it(stored: dict[str, Result]) -> None:
    """Pages round; a figure may also be in the result's remark or in a row's note."""
    citations = list(_citations())
    assert len(citations) >= 8
    for path, sentence, name in citations:
        result = stored[name]
        words = " ".join([result.remark, *(f"{row.note} {row.name}" for row in result.targets)])
        values = [row.measured for row in result.targets] + [row.limit for row in result.targets]
        values += [1000.0 * row.measured for row in result.targets if row.unit == "s"]
        values += [float(number) for number in re.findall(r"\d+(?:\.\d+)?", words)]
        for figure in FIGURE.findall(sentence):
            digits = len(figure.partition(".")[2])
            rounded = {f"{value:.{digits}f}" for value in values}
            assert figure in rounded, f"{path.name}: {figure} is not in {name}: {sentence[:90]}"
