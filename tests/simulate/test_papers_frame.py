"""The frame of the reproductions, and RubberBand's placements, profiles and tables."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftrainer.batch.traces import TraceError
from bftrainer.lab import papers
from bftrainer.lab.papers import paper as registry
from bftrainer.lab.papers import report
from bftrainer.lab.papers.elasticity.paper import PAPER as ELASTICITY
from bftrainer.lab.papers.findings import Chart, Finding, Plotted, ValueLine, less, ratio
from bftrainer.lab.papers.ibm.paper import PAPER as IBM
from bftrainer.lab.papers.paper import Extent, Paper, Reproduction, Result, Scenario
from bftrainer.lab.papers.rubberband import figures, residual, tables
from bftrainer.lab.papers.rubberband.paper import FULL
from bftrainer.lab.papers.rubberband.placement import GPUS, SIZES, TIMES, place, replaced
from bftrainer.lab.papers.rubberband.profiles import by_ring, fitted_bandwidth, step_s
from bftrainer.lab.papers.rubberband.residual import READINGS, ROWS, Table2Reading, nearest
from bftrainer.lab.papers.rubberband.setting import Planner, Planning
from bftrainer.lab.papers.rubberband.tables import RESNET101
from tests.support.found import by_key, found, held, values

few = settings(max_examples=60, deadline=None)


# ---- the report --------------------------------------------------------------------------------


def made(
    *lines: ValueLine, is_papers: bool = True, shortened: str = "", **about: Any
) -> tuple[Result, Reproduction]:
    result = Result(result_id="x", shows="waits", how="played", why="because", **about)
    finding = Finding(known={}, drawn={}, lines=list(lines))
    scenario = Scenario(summary="Jobs.", document={}, remarks=["Mind."], is_papers=is_papers)
    extent = Extent(shortened=shortened)
    paper = Paper(
        citation="Doe", section="section 1", results=(result,), full=extent, quick=extent,
        choose_scenario=lambda *_: scenario, play=lambda *_: None,
    )  # fmt: skip
    return result, Reproduction(
        paper=paper, scenario=scenario, extent=extent, results=(result,), findings={"x": finding}
    )


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (ValueLine(what="", ours=12.34, paper=10.0), ("12.3%", "10.0%", "+2.3 points")),
        (ValueLine(what="", ours=9.0, paper=10.0, unit="min"), ("9 min", "10 min", "-10.0 %")),
        (ValueLine(what="", ours=9.0, paper=10.0, is_relative=True), ("9.0%", "10.0%", "-10.0 %")),
        (ValueLine(what="", ours=12345.6, unit="s"), ("12,346 s", "", "")),
        (ValueLine(what="", ours=0.12345, unit="x"), ("0.123x", "", "")),
        (
            ValueLine(what="", ours=None, says="more", holds=True),
            ("-", '"more"', "as in the paper"),
        ),
        (ValueLine(what="", ours=1.0, unit="h", holds=False), ("1 h", "", "not as in the paper")),
    ],
)
def test_a_row_shows_values_with_their_units(line: ValueLine, shown: tuple[str, ...]) -> None:
    result, of = made(line)
    assert report.row(line, result, of)[2:5] == shown


@given(
    st.one_of(st.none(), st.floats(-9.0, 9.0)),
    st.sampled_from([None, True, False]),
    st.booleans(),
)
@few
def test_a_line_has_a_reason_if_and_only_if_it_is_not_the_papers(
    off: float | None, holds: bool | None, is_papers: bool
) -> None:
    line = ValueLine(what="", ours=50.0, paper=None if off is None else 50.0 - off, holds=holds)
    result, of = made(line, is_papers=is_papers)
    deviation = abs(50.0 - line.paper) if line.paper is not None else 0.0
    said = report.explain(line, result, of)
    allowed = 0.0 if line.paper is None else 0.1 * line.paper  # nothing is known of its inputs
    assert bool(said) == (deviation > allowed or holds is False)
    if said:
        assert said == ("because" if is_papers else "another trace")


def test_who_gives_no_reason_is_told_so() -> None:
    far = ValueLine(what="", ours=90.0, paper=50.0)
    result, of = made(far)
    assert report.explain(far, replace(result, why=""), of) == "not explained"
    assert report.explain(replace(far, ours=54.0), result, of) == ""


def test_every_row_of_the_report_has_as_many_cells_as_its_head() -> None:
    result, of = made(ValueLine(what="a | b", ours=1.0, says="x | y", holds=True))
    of.findings["x"].table(("one", "two"), [("p | q", "r")])
    text = report.markdown(of, {})
    grids = [line for line in text.split("\n") if line.startswith("|")]
    assert [line.count("|") for line in grids] == [7, 7, 7, 3, 3, 3]
    assert "**Mind.**" in text
    assert result.shows in text


def test_lines_beyond_the_most_are_counted() -> None:
    _, of = made(*(ValueLine(what=f"{k}", ours=1.0) for k in range(5)))
    rows = report.rows(of, most=2)
    assert [row[1] for row in rows] == ["0", "1", "... 3 more in --out or --json"]
    assert len(report.rows(of)) == len(report.rows(of, most=5)) == 5


class Axes:
    """Notes what is drawn."""

    def __init__(self) -> None:
        self.bars: list[tuple[list[float], float]] = []
        self.lines: list[tuple[str, str]] = []
        self.scale = ""

    def bar(self, at: list[float], _: object, *, width: float, **__: object) -> None:
        self.bars.append((at, width))

    def plot(self, _: object, __: object, style: str, *, color: str, **___: object) -> None:
        self.lines.append((style, color))

    def set_yscale(self, scale: str) -> None:
        self.scale = scale

    def __getattr__(self, _: str) -> Any:
        return lambda *_, **__: None


def drawn(chart: Chart) -> Axes:
    axes = Axes()
    report._draw(axes, chart)
    return axes


def test_bars_of_a_group_stand_side_by_side_and_those_of_the_next_apart() -> None:
    plotted = [Plotted(label=name, x=("a", "b"), y=(1.0, 2.0)) for name in ("o", "p", "q")]
    axes = drawn(Chart(name="", title="", x_label="", y_label="", has_bars=True, plotted=plotted))
    spans = sorted((at - w / 2, at + w / 2) for places, w in axes.bars for at in places)
    assert all(left[1] <= right[0] + 1e-9 for left, right in pairwise(spans))
    assert [spans[0][0], spans[2][1]] == pytest.approx([-0.4, 0.4])


def test_published_lines_are_dashed_and_of_other_colours() -> None:
    labels = ("ours", "ours, paper", "other", "other, paper")
    plotted = [Plotted(label=label, x=(1,), y=(1.0,)) for label in labels]
    axes = drawn(Chart(name="", title="", x_label="", y_label="", is_log=True, plotted=plotted))
    assert [style for style, _ in axes.lines] == ["o-", "--", "o-", "--"]
    assert len({colour for _, colour in axes.lines}) == 4
    assert axes.scale == "log"


def test_a_picture_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "no")

    canvas = SimpleNamespace(subplots=Axes, savefig=refuse)
    monkeypatch.setattr(report, "new_canvas", lambda *_: canvas)
    chart = Chart(name="fig", title="", x_label="", y_label="", plotted=[])
    chart.plotted.append(Plotted(label="", x=(1,), y=(1.0,)))
    with pytest.raises(TraceError, match="BFT-4002"):
        report.draw_all([chart], tmp_path)


# ---- findings and papers -----------------------------------------------------------------------


def test_a_line_takes_the_published_value_and_its_words_from_the_file() -> None:
    known: dict[str, dict[str, Any]] = {
        "a": {"what": "of {n}", "value": 3.0, "why": "as {n}", "source": "T", "unit": "s"},
        "b": {"what": "b", "source": "T"},
    }
    finding = Finding(known=known, drawn={})
    one = finding.line("a", 1.0, paper=9.0, n=4)
    assert one == ValueLine(key="a", what="of 4", ours=1.0, paper=3.0, unit="s", why="as 4")
    assert finding.line("a", 1.0, why="its own", n=4).why == "its own"
    assert finding.line("b", 1.0, paper=9.0).paper == 9.0
    assert known["a"]["value"] == 3.0  # the file's stays as it is
    for key, words in (("c", {}), ("a", {"m": 1})):
        with pytest.raises(KeyError):
            finding.line(key, 1.0, **words)  # type: ignore[arg-type]


def test_shares_by_hand() -> None:
    assert less(3.0, 4.0) == 25.0
    assert less(5.0, 4.0) == -25.0
    assert (ratio(3.0, 2.0), ratio(3.0, 0.0)) == (1.5, None)


def test_a_result_without_code_is_refused_unless_it_is_said_to_be_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry: dict[str, Any] = {"shows": "s", "lines": {}}
    common = {"citation": "", "section": "", "inputs": "assumed", "fits": {}}
    expected = {**common, "results": {"fig-1": entry}}
    monkeypatch.setattr(registry, "read_expected", lambda _: expected)
    module, parts = ModuleType("figures"), {
        "full": Extent(), "quick": Extent(), "choose_scenario": lambda *_: None,
        "play": lambda *_: None,
    }  # fmt: skip
    with pytest.raises(KeyError, match="fig_1"):
        registry.paper_of("", module, **parts)
    module.fig_1 = lambda *_: None  # type: ignore[attr-defined]
    [result] = registry.paper_of("", module, **parts).results
    assert result.find is module.fig_1
    entry["missing"] = "no data"
    [result] = registry.paper_of("", module, **parts).results
    assert (result.find, result.missing) == (None, "no data")


def test_assumptions_are_told_with_their_numbers_after_other_remarks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given_ = {
        "summary": "S.", "document": {"cluster": {"gpus": 4}}, "assumed": {"price": "{P:.1f} $"}
    }  # fmt: skip
    monkeypatch.setattr(registry, "read_expected", lambda _: {"scenario": given_})
    made_ = registry.drawn_scenario("", words={"P": 2.25}, remarks=["Mind."], settings={"n": 1})
    assert list(made_.remarks) == ["Mind.", "Assumed, price: 2.2 $."]
    assert made_.document == {"cluster": {"gpus": 4, "n": 1, "assumed": {"price": "2.2 $"}}}
    with pytest.raises(KeyError, match="P"):
        registry.drawn_scenario("")


def test_a_folder_whose_paper_is_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stray").mkdir()
    (tmp_path / "stray" / "__init__.py").write_text("")
    (tmp_path / "stray" / "paper.py").write_text("PAPER = 3\n")
    monkeypatch.setattr(papers, "__path__", [*papers.__path__, str(tmp_path)])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    with pytest.raises(TypeError, match=r"stray\.paper:PAPER is not a Paper"):
        registry.load("stray")


@pytest.mark.parametrize("paper", [IBM, ELASTICITY], ids=["ibm", "elasticity"])
def test_a_quick_reproduction_plays_a_part_of_what_a_full_one_does(paper: Paper) -> None:
    for result in paper.results:
        wanted = []
        for extent in (paper.quick, paper.full):
            steps = (
                result.find(Finding(known=result.lines, drawn={}), extent) if result.find else ()
            )
            wanted.append(set(registry._leaves(next(iter(steps)))) if steps else set())
        assert wanted[0] <= wanted[1]


# ---- rubberband --------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(SIZES), min_size=1, max_size=14), st.data())
@few
def test_trials_are_placed_whole_and_stay_where_they_are(
    sizes: list[int], data: st.DataObject
) -> None:
    gpus = {f"t{k}": size for k, size in enumerate(sizes)}
    instances = -(-sum(sizes) // GPUS) + data.draw(st.integers(0, 1))
    first = place(gpus, {}, instances, GPUS)
    assert first is not None
    used = Counter(instance for where in first.values() for instance in where)
    assert max(used.values()) <= GPUS
    assert {trial: len(where) for trial, where in first.items()} == gpus
    assert all(len(set(where)) == 1 for where in first.values())
    assert place(gpus, first, instances, GPUS) == first
    gone = data.draw(st.sampled_from(sorted(gpus)))
    left = {trial: size for trial, size in gpus.items() if trial != gone}
    assert place(left, first, instances, GPUS) == {t: first[t] for t in left}


def test_a_large_trial_takes_the_instance_on_which_least_has_to_go() -> None:
    """On instance 0 are 3 GPUs of trials, on 1 are 2: the new one of 8 goes to 1."""
    last = {"a": (0, 0), "b": (0,), "c": (1, 1)}
    found_ = place({"a": 2, "b": 1, "c": 2, "big": 8}, last, 2, 8)
    assert found_ == {"a": (0, 0), "b": (0,), "big": (1,) * 8, "c": (0, 0)}
    assert place({"a": 2, "big": 16}, last, 2, 8) is None


def test_a_trial_larger_than_an_instance_has_whole_ones_first() -> None:
    placed = place({"big": 12, "small": 4}, {"small": (2, 2, 2, 2)}, 3, 8)
    assert placed is not None
    assert placed["small"] == (2, 2, 2, 2)
    assert sorted(Counter(placed["big"]).values()) == [4, 8]
    gone = place({"big": 12, "small": 4}, {"small": (2, 2, 2, 2)}, 2, 8)  # instance 2 has left
    assert gone is not None
    assert max(Counter([*gone["big"], *gone["small"]]).values()) == 8


def test_random_studies_are_all_counted() -> None:
    counts = replaced(20)
    assert counts.rounds == 20 * TIMES
    assert 0 < counts.moved < counts.unchanged < counts.fitting
    assert (counts.wrong, counts.oversubscribed, counts.split) == (0, 0, 0)


@pytest.mark.parametrize("name", [*RESNET101, "ring"])
def test_more_gpus_are_never_slower_and_never_more_than_proportionally_faster(name: str) -> None:
    profile = {**RESNET101, "ring": by_ring(4.0, 512)}[name]
    sizes = [1, 2, 3, 4, 5, 8, 11, 16, 32, 100]
    for fewer, more in pairwise(sizes):
        assert profile.mean_s(more) <= profile.mean_s(fewer) + 1e-9
        assert more * profile.mean_s(more) >= fewer * profile.mean_s(fewer) - 1e-9


@given(st.floats(2e8, 4e10), st.floats(100.0, 2000.0))
@few
def test_a_bandwidth_is_found_again_from_the_rates_that_it_gives(
    bandwidth: float, rate: float
) -> None:
    rates = {n: 1024 / step_s(rate, n, bandwidth) for n in (1, 2, 4, 8)}
    assert fitted_bandwidth(rates) == pytest.approx(bandwidth, rel=1e-6)


def test_the_fewer_rows_a_profile_has_to_meet_the_nearer_it_comes() -> None:
    all_rows, times_alone = nearest(READINGS[0]), nearest(READINGS[1])
    assert times_alone.worst <= all_rows.worst + 1e-9
    before = 0.0
    for k in range(1, len(ROWS) + 1):
        now = nearest(Table2Reading(name=f"{k}", rows=ROWS[-k:])).worst
        assert now >= before - 1e-9
        before = now
    assert before == pytest.approx(all_rows.worst)


def test_one_time_alone_can_be_met() -> None:
    reading = Table2Reading(name="one", rows=("40 min, static",), has_cost=False)
    near = nearest(reading)
    assert near.worst == pytest.approx(0.0, abs=1e-9)
    stages = list(residual._stages("40 min, static", reading))
    assert [instances for instances, _, _ in stages] == [2] * 4
    training_s = sum(epochs * near.epoch_s[gpus] for _, gpus, epochs in stages)
    late_s = (36 + 53 / 60) * 60 - training_s
    assert -1e-6 <= late_s <= residual.MOST_START_S + 4 * residual.MOST_DELAY_S + 1e-6


def test_delays_are_paid_as_training_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where epochs take next to nothing, delays alone give both time and cost of a row."""
    monkeypatch.setattr(residual, "MOST_EPOCH_S", residual.LEAST_EPOCH_S)
    monkeypatch.setattr(residual, "MOST_DELAY_S", 1000.0)
    delayed = nearest(Table2Reading(name="delayed", rows=("30 min, static",)))
    assert delayed.worst == pytest.approx(0.0, abs=1e-9)


def test_no_solution_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residual, "MOST_EPOCH_S", 0.1)  # less than the least
    with pytest.raises(RuntimeError, match="HiGHS"):
        nearest(Table2Reading(name="impossible"))


def plan(cost: float, gpus: tuple[int, ...] = (8,)) -> Any:
    stages = [SimpleNamespace(gpus=n, instances=-(-n // 4)) for n in gpus]
    return SimpleNamespace(cost=cost, time_s=600.0, gpus=gpus, stages=stages)


@pytest.mark.parametrize(
    ("gap", "grows", "outperforms"),
    [(2.0, True, True), (0.1, True, False), (0.0, False, False), (-0.001, False, False)],
)
def test_the_gain_of_elasticity_has_to_grow_with_the_trials(
    gap: float, *, grows: bool, outperforms: bool
) -> None:
    def play(run: Planning) -> Any:
        trials = run.experiment[0].trials
        return plan(trials * (10.0 + (gap if run.planner is Planner.STATIC else 0.0)))

    finding = found(figures.fig11, FULL, play)
    assert held(finding) == {"grows": grows, "outperforms": outperforms}
    assert values(finding)["grows"] == pytest.approx(gap * (16 if gap > 0.0 else 256))
    assert values(finding)["outperforms"] == pytest.approx(1.0 + gap / 10.0)


def test_dear_data_take_the_gain_away() -> None:
    """Static costs 2 $ more than 4 $; data cost both the same."""

    def play(run: Planning) -> Any:
        return plan(4.0 + 2.0 * (run.planner is Planner.STATIC) + run.cloud.data_price)

    finding = found(figures.fig10, FULL, play)
    ours = values(finding)
    assert ours["dear"] == pytest.approx((6.0 + 24.0) / (4.0 + 24.0))  # 150 GB at 0.16 $
    assert ours["cheap"] == pytest.approx((6.0 + 0.024) / (4.0 + 0.024))
    assert ours["never"] == ours["dear"]
    assert held(finding) == {"dear": True, "cheap": None, "never": None}
    assert {len(row) for row in finding.tables[0].rows} == {len(finding.tables[0].headers)}


def test_instances_that_start_slowly_by_hand() -> None:
    """Static costs 12 times as much after 1 s and twice as much after 100 s; both grow."""

    def play(run: Planning) -> Any:
        factor = {1.0: 12.0, 10.0: 6.0, 100.0: 2.0}[run.cloud.init_s]
        cost = 10.0 + run.cloud.init_s
        return plan(cost * (factor if run.planner is Planner.STATIC else 1.0))

    finding = found(figures.fig12, FULL, play)
    ours = values(finding)
    assert ours["most"] == ours["tight"] == pytest.approx(12.0)
    assert ours["elastic"] == pytest.approx(20.0 / 11.0)
    assert ours["static"] == pytest.approx(20.0 / 11.0 / 2.0)
    assert ours["falls"] == pytest.approx(1.0 / 6.0)
    assert held(finding) == {
        "most": None, "tight": True, "static": False, "elastic": None, "falls": True
    }  # fmt: skip


def test_savings_by_hand() -> None:
    """Static 20 $, naive 30, exact 9, RubberBand 10 whatever the deadline, literal 18."""
    costs = {
        Planner.STATIC: 20.0, Planner.NAIVE: 30.0, Planner.EXACT: 9.0, Planner.REPAIRED: 10.0,
        Planner.LITERAL: 18.0,
    }  # fmt: skip
    finding = found(tables.table2, FULL, lambda run: plan(costs[run.planner]))
    ours = values(finding)
    assert ours["saving"] == ours["saving, 40"] == pytest.approx(50.0)
    assert by_key(finding)["saving, 40"].paper == pytest.approx(100.0 * (1.0 - 14.68 / 14.99))
    assert (ours["cheaper"], ours["naive"], ours["exact"]) == (0.5, 1.5, 0.9)
    assert (ours["ratio"], ours["instances"], ours["naive GPUs"]) == (2.0, 2.0, 8.0)
    assert ours["naive, RubberBand"] == pytest.approx(3.0)
    assert (ours["tight"], held(finding)["tight"]) == (5.0, True)
    assert finding.tables[0].rows[0] == ("A", "20", "50.0", "10.0", "1.50")
    assert ours["time"] == 10.0


def test_savings_that_grow_with_the_deadline_are_not_the_papers() -> None:
    def play(run: Planning) -> Any:
        is_late = run.planner is Planner.REPAIRED and run.deadline_s > 1500.0
        return plan(10.0 if is_late else 21.0 if run.planner is Planner.REPAIRED else 20.0)

    finding = found(tables.table2, FULL, play)
    assert (values(finding)["tight"], held(finding)["tight"]) == (0.0, False)
    assert held(finding)["cheaper"] is False


def test_naive_has_to_be_dearer_than_static_under_every_profile() -> None:
    """Under B, whose epoch takes 102.2 s on one GPU, it is cheaper."""

    def play(run: Planning) -> Any:
        is_cheap = run.planner is Planner.NAIVE and run.scaling.mean_s(1) == 102.2
        return plan(
            {Planner.NAIVE: 19.0 if is_cheap else 30.0, Planner.STATIC: 20.0}.get(run.planner, 10.0)
        )

    finding = found(tables.table2, FULL, play)
    assert (values(finding)["naive"], held(finding)["naive"]) == (0.95, False)
