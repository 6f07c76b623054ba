"""``bftrainer reproduce rubberband``: its statements, and the exact plan is never dearer."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from bftrainer.cli.main import main
from bftrainer.lab.papers.findings import ValueLine
from bftrainer.lab.papers.paper import Reproduction, reproduce
from bftrainer.lab.papers.rubberband.figures import (
    DATA_DEADLINE_MIN,
    FLAT_FROM,
    INIT_S,
    START_MEAN_S,
    TIGHT_MIN,
    started,
)
from bftrainer.lab.papers.rubberband.paper import PAPER, QUICK
from bftrainer.lab.papers.rubberband.profiles import fitted_bandwidth, measured, steady
from bftrainer.lab.papers.rubberband.residual import (
    NEAREST,
    ROWS,
    Table2Reading,
    most_instances,
    nearest,
    paid_instances,
)
from bftrainer.lab.papers.rubberband.setting import TABLES, Planner, Planning, Points, means, play
from bftrainer.lab.papers.rubberband.tables import RESNET101
from bftrainer.lab.papers.verdicts import NumberVerdict, judged
from bftrainer.study.plan.stage_cost import Planned

Lines = Mapping[str, Sequence[ValueLine]]
FEW = replace(
    QUICK,
    samples=50,
    trials=(16, 64),
    placements=50,
)
TAKES_LONG = ("fig10", "fig12")  # the sizes of data, and 512 trials
FITTED = {"table1": 6, "table2": 16, "real": 12, "table3": 7}  # numbers, by result


def played(extent: Points, *, without: Collection[str] = ()) -> Reproduction:
    results = [result for result in PAPER.results if result.result_id not in without]
    scenario = PAPER.choose_scenario(None, None, extent)
    return reproduce(PAPER, scenario, extent, results, processes=1)


@pytest.fixture(scope="module")
def made() -> Reproduction:
    return played(FEW, without=TAKES_LONG)


@pytest.fixture(scope="module")
def lines(made: Reproduction) -> Lines:
    return {name: finding.lines for name, finding in made.findings.items()}


def test_nothing_is_reproduced_and_what_is_missed_has_a_reason(made: Reproduction) -> None:
    verdicts = list(judged(made))
    fitted = Counter(result.result_id for result, _, v in verdicts if v is NumberVerdict.FITTED)
    assert fitted == FITTED
    assert not {NumberVerdict.REPRODUCED, NumberVerdict.PREDICTED} & {
        verdict for _, _, verdict in verdicts
    }
    for result, line, verdict in verdicts:
        assert verdict is not NumberVerdict.MISSED or line.why or result.why, line.what


def test_fits_are_printed_with_the_values_of_the_code() -> None:
    printed = {name: " ".join(fit["parameters"]) for name, fit in PAPER.fits.items()}
    for name in ("placed", "scattered"):
        assert f"{name}: {fitted_bandwidth(measured(name)) / 1e9:.3g} GB/s" in printed["Table 1"]
    assert ", ".join(f"{s:g}" for s in RESNET101["D"].unit_s) in printed["D"]
    assert ", ".join(f"{s:.1f}" for s in nearest(NEAREST).epoch_s.values()) in printed["E"]
    assert f"{DATA_DEADLINE_MIN} min" in printed["Fig. 10"]
    assert f"{FLAT_FROM} GPUs" in printed["Fig. 12"]


@pytest.mark.long
def test_prices_of_data_and_initialisation() -> None:
    """ImageNet and 1.5x of Fig. 10; 3.5x, ten times, no impact, twice and the fall of Fig. 12."""
    others = {result.result_id for result in PAPER.results} - {*TAKES_LONG}
    assert [verdict for _, _, verdict in judged(played(QUICK, without=others))] == [
        "order only", "fitted",
        "fitted", "not reproduced", "order only", "not reproduced", "not reproduced",
    ]  # fmt: skip


def test_the_exact_plan_is_in_time_and_never_dearer(made: Reproduction) -> None:
    plans = defaultdict[Planning, dict[Planner, Planned]](dict)
    for run, plan in made.records.items():
        if plan is not None:
            plans[replace(run, planner=Planner.EXACT)][run.planner] = plan
    compared = [(run, of) for run, of in plans.items() if len(of) > 1]
    assert len(compared) > 20
    for run, of in compared:
        exact = of[Planner.EXACT]
        assert exact.time_s <= run.deadline_s + 1e-6
        assert exact.bound is not None
        assert exact.bound <= exact.cost + 1e-9
        assert all(exact.cost <= plan.cost + 1e-9 for plan in of.values())


def test_regression_profile_d_keeps_its_fit_of_table_2(lines: Lines) -> None:
    """No prediction: D was fitted to these rows."""
    table2 = lines["table2"]
    costs = [line for line in table2 if ": cost (" in line.what and "naive" not in line.what]
    assert len(costs) == 6
    assert max(abs(line.deviation or 0.0) for line in costs) <= 6.0


def test_savings_of_20_min_under_each_profile(made: Reproduction) -> None:
    """A, C and E were not fitted to static 20 min, the dearer side of the saving."""
    rows = made.findings["table2"].tables[0].rows
    savings = [float(row[2]) for row in rows if row[1] == "20"]
    assert savings == pytest.approx([43.0, 18.7, 31.7, 48.5, 41.3], abs=0.1)
    naive = {row[0]: float(row[4]) for row in rows if row[1] == "30"}
    assert [name for name, ratio in naive.items() if ratio > 1.0] == ["D"]


def test_measured_rows_stand_beside_the_fit(lines: Lines) -> None:
    real = lines["real"]
    assert len(real) == 12  # time and cost of six rows
    assert (real[0].paper, real[1].paper) == (19.25, 33.21)
    assert "+0.8 %" in real[0].what  # 19:24 over 19:15


@pytest.mark.parametrize(
    ("flat_from", "least", "most"),
    [pytest.param(11, 10.0, 20.0, marks=pytest.mark.long), (13, 3.15, 3.85)],
)
def test_a_profile_that_ends_early_gives_the_gain_of_fig_12(
    flat_from: int, least: float, most: float
) -> None:
    static, exact = (
        play(None, started(planner, steady(START_MEAN_S, flat_from), INIT_S[0], TIGHT_MIN))
        for planner in (Planner.STATIC, Planner.EXACT)
    )
    assert static is not None
    assert exact is not None
    assert least <= static.cost / exact.cost <= most


def test_the_plan_of_table_3_is_the_exact_one_for_its_time(lines: Lines) -> None:
    table3 = lines["table3"]
    ratios = [line.ours for line in table3 if "over Table 3" in line.what]
    assert ratios == pytest.approx([1.0] * 5)


def test_no_profile_gives_table_2() -> None:
    assert nearest(Table2Reading(name="as the text says")).worst == pytest.approx(0.237, abs=0.001)
    nine = nearest(Table2Reading(name="9 instances", static_20=9))
    assert nine.worst == pytest.approx(0.137, abs=0.001)
    alone = {row: nearest(Table2Reading(name=row, rows=(row,))).worst for row in ROWS}
    assert alone["20 min, static"] > 0.17  # 6 instances cannot cost so much
    assert max(worst for row, worst in alone.items() if row != "20 min, static") < 0.11


def test_a_nearest_profile_is_monotone_and_never_superlinear() -> None:
    found = nearest(Table2Reading(name="as the text says")).epoch_s
    sizes = sorted(found)
    for few, many in pairwise(sizes):
        assert found[many] <= found[few] + 1e-6
        assert many * found[many] >= few * found[few] - 1e-6


def test_contradictions_by_hand() -> None:
    """34 $ buy 10,000 s of instances, of which 20 min, static has 1,164; 33.75 / 9.375 = 3.6."""
    assert paid_instances("20 min, static") == pytest.approx(34.0 / 12.24 * 3600 / 1164)
    assert most_instances() == pytest.approx(3.6)


def test_the_command_writes_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "rubberband", "--only", "table1", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    [result] = document["results"]
    assert result["id"] == "table1"
    compared = [line for line in result["lines"] if line["paper"] is not None]
    assert len(compared) == 6
    assert max(abs(line["deviation"]) for line in compared) <= 2.0
    assert document["cloud"]["price_h"] == 12.24


def test_the_accuracies_are_those_of_table_2() -> None:
    found = [mean.value for row in TABLES["table2"]["rows"] for mean in means("table2", row)[4:]]
    [result] = PAPER.choose(["accuracy"])
    assert result.lines["accuracy"]["values"] == found
