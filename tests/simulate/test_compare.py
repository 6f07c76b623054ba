"""``bftrainer compare``: every policy gets the same, and intervals are what they say."""

from __future__ import annotations

import json
import os
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

from bftrainer.cli.main import main
from bftrainer.lab.compare import (
    HEADERS,
    Arena,
    Interval,
    Row,
    Score,
    answer,
    cells,
    interval,
    rows_of,
)
from bftrainer.model.errors import ExitCode
from tests.support.report_words import check_same_words

DATA = Path(os.environ.get("BFTRAINER_DATA", "nowhere")) / "adaptdl-osdi21"
Output = pytest.CaptureFixture[str]
SMALL = ("--hours=1", "--nodes=40", "--trainers=12", "--p-jmax=4", "--processes=1")


def _compared(capsys: Output, *arguments: str) -> dict[str, Any]:
    assert main(["compare", *SMALL, *arguments, "--json"]) == ExitCode.OK
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    for arena in found["arenas"]:
        for row in arena["rows"]:
            del row["figures"]["decision_ms"]  # the only one that is not the same every time
            for score in row["scores"]:
                del score["decision_ms"]
    return found


@pytest.mark.long
def test_scores_do_not_depend_on_processes_or_on_other_policies(capsys: Output) -> None:
    both = ("--arena", "idle", "--policies", "milp,equal-share", "--seeds", "2")
    one = _compared(capsys, *both, "--processes", "1")
    assert _compared(capsys, *both, "--processes", "2") == one
    alone = _compared(capsys, *both[:3], "equal-share", *both[4:], "--processes", "1")
    rows = {row["policy"]: row["scores"] for row in one["arenas"][0]["rows"]}
    assert alone["arenas"][0]["rows"][0]["scores"] == rows["equal-share"]
    assert rows["milp"] != rows["equal-share"]
    assert all(score["submitted"] == 12 for score in rows["milp"])
    first, second = rows["milp"]
    assert first != second  # other nodes, times and orders


def test_a_page_shows_all_arenas(tmp_path: Path, capsys: Output) -> None:
    page = tmp_path / "page.html"
    arguments = [
        "--arena",
        "idle",
        "--arena",
        "spot",
        "--policies",
        "equal-share,fcfs-greedy",
        "--seeds",
        "1",
        "--report",
        str(page),
    ]
    assert main(["compare", *SMALL, *arguments]) == ExitCode.OK
    shown, text = capsys.readouterr().out, page.read_text()
    check_same_words(text, shown)
    assert all(word in shown for word in ("Arena idle", "Arena spot", "equal-share"))
    assert text.count("<h2>") == text.count("<svg") == 2
    # The answer comes first, and of one seed nothing is said that may be chance.
    first = shown.splitlines()[0]
    alike = "no difference to equal-share that chance alone does not make: fcfs-greedy."
    assert first == f"Arena idle: {alike}"
    answers = [f'<p class="answer">Arena {name}: {alike}</p>' for name in ("idle", "spot")]
    assert "\n".join(answers) in text
    assert text.index(alike) < text.index("<svg") < text.index("<table")
    assert "--policies equal-share,fcfs-greedy" in text


@pytest.mark.skipif(not DATA.is_dir(), reason="BFTRAINER_DATA has no adaptdl-osdi21")
def test_the_dedicated_cluster_gives_what_adaptdl_published(capsys: Output) -> None:
    """Seed 1 is its first workload; Tiresias is rigid."""
    found = _compared(capsys, "--arena", "dedicated", "--policies", "tiresias", "--seeds", "1")
    (row,) = found["arenas"][0]["rows"]
    published = json.loads((DATA / "published" / "tiresias-1.0.json").read_text())
    assert row["scores"][0]["jct_mean_s"] == pytest.approx(published["avgs"]["workload-1"])
    assert row["scores"][0]["completed"] == 160


@pytest.mark.parametrize(("text", "code"), [("nobody", "BFT-3050"), (",", "BFT-4120")])
def test_policies_must_exist(text: str, code: str, capsys: Output) -> None:
    assert main(["compare", "--policies", text]) != ExitCode.OK
    assert code in capsys.readouterr().err


def test_an_interval_is_students() -> None:
    values = [3.0, 4.0, 8.0, 9.0, 11.0]
    found = interval(values)
    assert found is not None
    assert found.mean == mean(values)
    assert found.half == pytest.approx(2.776 * stdev(values) / 5**0.5)
    assert interval([*values, None]) is None
    alone = interval([2.0])
    assert alone is not None
    assert alone.half is None


def _score(jct_s: float, work_node_h: float | None = None) -> Score:
    return Score(
        jct_mean_s=jct_s, jct_p95_s=jct_s, makespan_s=None, utilization=None, node_h=1.0,
        fairness=1.0, rescales=0, decision_ms=1.0, completed=1, submitted=2,
        reference_node_h=work_node_h, samples=3e6,
    )  # fmt: skip


def test_policies_are_held_to_the_first_seed_by_seed() -> None:
    """Seeds differ by a factor of ten; in pairs a difference of 10% is certain."""
    plays = {}
    for seed, base_s in ((1, 3600.0), (2, 36_000.0)):
        plays["a", "milp", seed] = _score(base_s)
        plays["a", "other", seed] = _score(1.1 * base_s)
    first, other = rows_of(plays, "a", ["milp", "other"], [1, 2])
    assert first.jct_against is None
    assert other.jct_against is not None
    assert other.jct_against.mean == pytest.approx(0.1)
    assert other.jct_against.half == pytest.approx(0.0, abs=1e-9)
    shown = dict(zip(HEADERS, cells(other), strict=True))
    assert (shown[">JCT AGAINST"], shown[">MAKESPAN h"]) == ("+10.0 ±0.0%", "-")
    assert shown[">U"] == shown[">WORK node-h"] == shown[">WORK AGAINST"] == "-"
    assert (shown[">SAMPLES, 1e6"], shown[">ENDED"]) == ("3.0 ±0.0", "1 of 2")


def test_work_at_the_reference_is_held_to_the_first_too() -> None:
    plays = {("a", "milp", 1): _score(1.0, 8.0), ("a", "milp", 2): _score(1.0, 80.0)}
    plays |= {("a", "other", 1): _score(1.0, 10.0), ("a", "other", 2): _score(1.0, 92.0)}
    first, other = rows_of(plays, "a", ["milp", "other"], [1, 2])
    assert first.work_against is None
    assert other.work_against is not None
    assert other.work_against.mean == pytest.approx((0.25 + 0.15) / 2)
    shown = dict(zip(HEADERS, cells(other), strict=True))
    assert shown[">WORK node-h"].startswith("51.0 ±")
    # Student's with one degree of freedom, 12.706, times half of the difference.
    assert shown[">WORK AGAINST"] == "+20.0 ±63.5%"


def against(mean: float, half: float | None) -> Interval:
    return Interval(mean=mean, half=half, count=5)


@pytest.mark.parametrize(
    ("work", "jct", "said"),
    [
        # Held to milp, in pairs: an interval with 0 in it tells nothing.
        (
            {"las": against(-0.03, 0.02), "srtf": against(0.05, 0.01), "fifo": against(-0.3, 0.31)},
            {},
            (
                "held to milp, srtf 5.0 ±1.0% more work, las 3.0 ±2.0% less work; no difference to "
                "milp that chance alone does not make: fifo"
            ),
        ),
        # Where no work is counted, by completion times: the shorter the better.
        (
            {},
            {"las": against(0.2, 0.1), "srtf": against(-0.1, 0.05)},
            "held to milp, srtf 10.0 ±5.0% shorter per trainer, las 20.0 ±10.0% longer per trainer",
        ),
        (
            {"las": against(0.4, None)},
            {},
            "no difference to milp that chance alone does not make: las",
        ),
        ({}, {}, "milp alone was played"),
    ],
)
def test_only_differences_beyond_chance_are_told(
    work: dict[str, Interval], jct: dict[str, Interval], said: str
) -> None:
    rows = [Row(policy="milp", jct_against=None, work_against=None, figures={})]
    rows += [
        Row(policy=name, jct_against=jct.get(name), work_against=work.get(name), figures={})
        for name in {**work, **jct}
    ]
    assert answer(Arena(name="idle", about=""), rows) == f"Arena idle: {said}."
