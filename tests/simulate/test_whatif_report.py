"""The report of ``whatif`` is read by somebody who has never seen it: which figure, by what."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bftrainer.batch.traces.fragments import make_fragments
from bftrainer.cli.main import cli
from bftrainer.lab import html
from bftrainer.lab.report import check_place
from bftrainer.lab.verbs import simulate as verbs
from bftrainer.lab.whatif import Assumptions, advice, page, replays, study
from bftrainer.lab.whatif import document as words
from bftrainer.lab.whatif.advice import BusinessCase
from bftrainer.lab.whatif.kept import IdleOverTime, idle_over_time
from bftrainer.model.errors import BftError
from tests.simulate.test_whatif import Given, blinking

ASSUMED = Assumptions(t_fwd_s=(120.0,), p_jmax=(1,), hold_down_s=(0.0,))
IDLE_CSV = "node,start_s,end_s\na,0,7200\nb,600,5000\n"


@pytest.fixture(scope="module")
def case() -> BusinessCase:
    return study(blinking(2), ASSUMED)


def by_hand(case: BusinessCase) -> BusinessCase:
    """1,000 node-hours a day are idle, 900 trained in, of which 500 to 800 are left; 700 done."""
    (milp,) = case.expected
    return dataclasses.replace(
        case,
        idle=dataclasses.replace(case.idle, node_hours_per_day=1000.0),
        expected=(
            dataclasses.replace(
                milp,
                node_hours_per_day=replays.Estimate(value=900.0),
                reference_node_h_per_day=replays.Estimate(value=700.0),
            ),
        ),
        kept=dataclasses.replace(case.kept, after_reserve=8 / 9, after_both=5 / 9),
    )


def test_one_sentence_says_which_figure_to_show_to_whom(case: BusinessCase) -> None:
    report = words.report_of(by_hand(case), "idle.npz")
    assert report.answers[0].startswith("Trainers could have 500 to 800 node-hours a day")
    which = report.more[0]
    assert which == (
        "Show 500 to 800 to those who decide: it is what the policy leaves. The 900 node-hours "
        "trained and 700 of work done further below are of replays that keep nothing back; they "
        "serve to compare settings and policies."
    )


def test_headings_tell_before_and_after_and_nodes_from_work(case: BusinessCase) -> None:
    report = words.report_of(by_hand(case), "idle.npz")
    titles = [section.title for section in report.sections]
    assert "After what the policy keeps back: 500 to 800 node-hours a day" in titles
    (expected,) = (s for s in report.sections if s.title.startswith("Before"))
    assert expected.title == "Before the policy keeps anything back: replays with these settings"
    headers = expected.tables[0].headers
    assert ">NODE-HOURS TRAINED PER DAY" in headers
    assert ">WORK DONE PER DAY, NODE-HOURS" in headers
    assert any("A node-hour of work done is" in line for line in expected.text)


class OfWork(Given):
    """U favours few trainers, the work done favours many."""

    def gain(self, value: float, over: float, /) -> replays.Estimate:
        done = {10: 1.00, 19: 1.05, 38: 1.055}
        gain = done[int(value)] / done[int(over)] - 1.0
        return replays.Estimate(value=gain, low=gain - 0.001, high=gain + 0.001)


def swept_case(case: BusinessCase) -> BusinessCase:
    used = {10: 0.99, 19: 0.95, 38: 0.90}
    sweep = advice.sweep(advice.P_JMAX, list(used), OfWork(used))
    return dataclasses.replace(case, sweeps=(sweep, *case.sweeps[1:]), p_jmax=int(sweep.chosen))


def test_the_figures_that_decide_about_p_jmax_are_shown(
    case: BusinessCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = swept_case(case)
    assert found.p_jmax == 19
    report = words.report_of(found, "idle.npz")
    (settings,) = (s for s in report.sections if s.title == "Recommended settings")
    # 1.00 / 1.05 = 0.95238; 1.055 / 1.05 = 1.00476
    assert settings.tables[1].rows == (
        ("10", "-4.8% [-4.9%, -4.7%]", "0.990 [0.990, 0.990]"),
        ("19", "recommended", "0.950 [0.950, 0.950]"),
        ("38", "+0.5% [+0.4%, +0.6%]", "0.900 [0.900, 0.900]"),
    )
    assert settings.tables[1].headers == (">P_JMAX", ">WORK DONE AGAINST 19", ">U")
    drawn: list[Any] = []

    def keep(canvas: Any, *_: str) -> str:
        drawn.append(canvas)
        return ""

    monkeypatch.setattr(html, "picture", keep)
    page._swept(found.sweeps[0])
    (axes,) = drawn[0].axes
    (heights,) = (line.get_ydata() for line in axes.lines if len(line.get_ydata()) == 3)
    assert list(heights) == pytest.approx([-4.76, 0.0, 0.476], abs=0.01)  # per cent
    assert "work done" in axes.get_ylabel()


def test_why_a_value_is_recommended_can_be_read_once() -> None:
    used = {0.0: 0.950, 10.0: 0.949, 30.0: 0.940}
    hold = advice.sweep(advice.HOLD_DOWN, list(used), Given(used))
    assert hold.why == (
        "The longest that loses no more than 0.002 of U to any other value tried; fewest pilots "
        "come for nothing."
    )
    used = {10.0: 0.9505, 120.0: 0.950, 1200.0: 0.940}
    assert advice.sweep(advice.T_FWD, list(used), Given(used)).why == (
        "The nearest to 120 s that loses no more than 0.002 of U to any other value tried."
    )
    used = {2.0: 0.90, 5.0: 0.96}
    assert advice.sweep(advice.P_JMAX, list(used), Given(used)).why == (
        "The fewest that lose no more than 1% of the work done to any other number tried; each "
        "trainer is then fastest."
    )


def test_text_and_page_average_the_idle_nodes_alike(case: BusinessCase) -> None:
    """A week of hours: 2 nodes, but 50 in hour 100, and 90 for a moment."""
    nodes = [2.0] * 168
    nodes[100] = 50.0
    over = IdleOverTime(
        edges_s=tuple(3600.0 * n for n in range(169)), nodes={"": tuple(nodes)}, most_nodes=90
    )
    found = dataclasses.replace(case, over_time=over)
    label, *lines = words.week_drawn(found)
    assert label.endswith("each bar the mean of 60 min, up to 50 (at one moment 90):")
    assert "mean of 60 min, up to 50 (at one moment 90)" in page._week(found).caption
    bars = "".join(line.split("h ", 1)[1] for line in lines)
    assert len(bars) == 168
    assert bars.index(max(bars)) == 100
    assert [line.split("h ", 1)[0].strip() for line in lines] == ["0", "48", "96", "144"]


def test_the_most_nodes_idle_at_one_moment() -> None:
    trace = make_fragments(
        names=["a", "b", "c"], node=[0, 1, 2], start_s=[0, 50, 99], end_s=[100, 100, 200],
        span_s=(0.0, 200.0),
    )  # fmt: skip
    assert idle_over_time(trace).most_nodes == 3


PLACES: dict[str, Callable[[Path], Path]] = {
    "no directory": lambda place: place / "missing" / "page.html",
    "a directory": lambda place: place,
    "too long a name": lambda place: place / ("x" * 300 + ".html"),
    "a link into nowhere": lambda place: place / "link.html",
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("verb", ["whatif", "compare", "simulate"])
def test_a_report_s_place_is_checked_before_the_replay(
    verb: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        pytest.fail("the trace was read")

    monkeypatch.setattr(verbs, "load", fail)
    (tmp_path / "link.html").symlink_to(tmp_path / "missing" / "page.html")
    trace = tmp_path / "idle.csv"
    trace.write_text(IDLE_CSV)
    file = PLACES[place](tmp_path)
    option = "--csv" if verb == "simulate" else "--report"
    done = CliRunner().invoke(cli, [verb, f"--trace={trace}", f"{option}={file}"])
    assert isinstance(done.exception, BftError), done.output
    assert done.exception.code == "BFT-4002"


def test_a_place_that_can_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    check_place(tmp_path / "new.html")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "old.html").write_text("old")
    check_place(tmp_path / "old.html")
    assert (tmp_path / "old.html").read_text() == "old"
    check_place(Path("/dev/null"))


@pytest.mark.parametrize("is_terminal", [True, False])
def test_whatif_says_at_its_start_what_it_does(
    is_terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "idle.csv"
    trace.write_text(IDLE_CSV)
    monkeypatch.setattr(verbs, "_is_watched", lambda: is_terminal)
    arguments = ["--t-fwd=120", "--p-jmax=1", "--hold-down=0", "--processes=1"]
    done = CliRunner().invoke(cli, ["whatif", f"--trace={trace}", *arguments])
    assert done.exit_code == 0, done.output
    # One value of each of three settings, the policy once and twice with a second more.
    begun = re.search(r"Replaying idle\.csv 6 times.* about \d+ s of processor time", done.stderr)
    assert bool(begun) is is_terminal
    assert "Replaying" not in done.stdout
