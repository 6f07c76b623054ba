"""``bftrainer reproduce ibm``: the simulator by hand, and the tables within their bounds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from bftrainer.cli.main import main
from bftrainer.lab.papers.findings import ValueLine
from bftrainer.lab.papers.ibm.jobs import (
    ELASTIC,
    Arrivals,
    IbmJob,
    Sizes,
    draw_jobs,
    read_world,
    sizes_of,
)
from bftrainer.lab.papers.ibm.paper import FULL, PAPER, QUICK
from bftrainer.lab.papers.ibm.replays import Experiment, IbmSeeds, play
from bftrainer.lab.papers.ibm.simulator import IbmOutcome, Rules, Simulation
from bftrainer.lab.papers.paper import reproduce

WORLD = read_world("ordered")
FEW = replace(QUICK, table3=5, figures=5, sensitivity=2)


def job(at_min: float, minutes: float, *factors: float, least: int = 1) -> IbmJob:
    return IbmJob(
        at_min=at_min, minutes=minutes, sizes=Sizes(least=least, factors=np.array(factors))
    )


def simulated(*jobs: IbmJob, gpus: int = 2, **rules: float) -> IbmOutcome:
    return Simulation(jobs, Rules(gpus=gpus, **rules)).run()  # type: ignore[arg-type]


# ---- the simulator by hand --------------------------------------------------------------------


def test_a_job_shrinks_for_the_next_and_grows_again() -> None:
    """2 GPUs are worth 1.5: 4 min done by 4, one each to 10, the first is alone with 4 left."""
    found = simulated(job(0.0, 14.0, 1.0, 1.5), job(4.0, 6.0, 1.0, 1.5))
    assert found.completion_min.tolist() == pytest.approx([10.0 + 2.0 / 1.5, 6.0])
    assert found.optimal_gpu_min == 20.0
    assert found.actual_gpu_min == pytest.approx(2 * 4.0 + 2 * 6.0 + 2 * 2.0 / 1.5)


def test_who_does_not_fit_is_dropped_or_waits() -> None:
    jobs = [job(0.0, 10.0, 2.0, least=2), job(1.0, 3.0, 1.0)]
    dropped = simulated(*jobs)
    assert (dropped.n_dropped, dropped.drop_ratio) == (1, 50.0)
    assert dropped.completion_min.tolist() == [5.0]
    waiting = simulated(*jobs, waits=True)
    assert waiting.n_dropped == 0
    assert waiting.completion_min.tolist() == [5.0, 7.0]


def test_an_arrival_may_overtake_who_waits() -> None:
    jobs = [job(0.0, 10.0, 1.0), job(1.0, 4.0, 1.0, least=2), job(2.0, 3.0, 1.0)]
    assert simulated(*jobs, waits=True).completion_min.tolist() == [10.0, 13.0, 3.0]
    in_order = simulated(*jobs, waits=True, overtakes=False)
    assert in_order.completion_min.tolist() == [10.0, 13.0, 15.0]


def test_a_completion_tries_the_first_that_waits() -> None:
    jobs = [
        job(0.0, 10.0, 1.0), job(0.0, 2.0, 1.0), job(1.0, 4.0, 1.0, least=2), job(1.5, 3.0, 1.0)
    ]  # fmt: skip
    assert simulated(*jobs, waits=True).completion_min.tolist() == [10.0, 2.0, 13.0, 15.5]
    passed = simulated(*jobs, waits=True, passes_over=True)
    assert passed.completion_min.tolist() == [10.0, 2.0, 13.0, 3.5]


def test_with_a_delta_jobs_start_at_its_multiples() -> None:
    found = simulated(job(1.0, 3.0, 1.0), job(2.0, 3.0, 1.0), gpus=1, waits=True, delta_min=5.0)
    assert found.completion_min.tolist() == [7.0, 11.0]
    assert simulated(job(1.0, 3.0, 1.0), job(2.0, 3.0, 1.0), gpus=1, delta_min=5.0).n_dropped == 1


# ---- jobs -------------------------------------------------------------------------------------


def test_factors_are_of_the_best_batch_of_all() -> None:
    for category in WORLD.categories[:3]:
        sizes = sizes_of(WORLD, category, ELASTIC)
        for gpus, factor in enumerate(sizes.factors.tolist(), start=sizes.least):
            batches = range(max(category.b_min, gpus), category.b_max + 1)
            wanted = max(
                WORLD.factor(category, b, gpus) for b in batches if -(-b // gpus) <= category.cap
            )
            assert factor == wanted


def test_a_fixed_batch_needs_as_many_gpus_as_can_hold_it() -> None:
    resnet50 = WORLD.categories[0]
    assert sizes_of(WORLD, resnet50, 256).least == 8
    assert sizes_of(WORLD, resnet50, 32).least == 1
    assert sizes_of(WORLD, resnet50, 32).factors[0] == pytest.approx(1.0)
    with pytest.raises(ValueError, match="no size of resnet50"):
        sizes_of(WORLD, resnet50, 321)


def test_category_1_scales_best_then_3_then_2() -> None:
    one, two, three, four = (
        sizes_of(WORLD, category, ELASTIC).factors.max() for category in WORLD.categories
    )
    assert one > three > 1.5 > two >= four == 1.0


def test_one_seed_gives_every_kind_of_batch_the_same_jobs() -> None:
    arrivals = Arrivals(minutes=100.0, high=2.0, low=0.0, period_min=10.0)
    elastic, random = (
        draw_jobs(WORLD, WORLD.categories, arrivals, batch, 7) for batch in (ELASTIC, "random")
    )
    assert [(j.at_min, j.minutes) for j in elastic] == [(j.at_min, j.minutes) for j in random]
    assert len(elastic) > 50
    assert all(int(one.at_min // 10.0) % 2 == 0 for one in elastic)  # none while arrivals are low


# ---- what the paper shows ---------------------------------------------------------------------


def _lines(extent: IbmSeeds, *only: str, processes: int = 1) -> dict[str, list[ValueLine]]:
    scenario = PAPER.choose_scenario(None, None, extent)
    made = reproduce(PAPER, scenario, extent, PAPER.choose(only), processes=processes)
    return {name: finding.lines for name, finding in made.findings.items()}


def _deviations(lines: Sequence[ValueLine]) -> dict[str, float]:
    return {one.what: abs(one.deviation) for one in lines if one.deviation is not None}


def test_table_2_is_within_2_5_percent() -> None:
    found = _deviations(_lines(FULL, "table2")["table2"][:5])
    assert max(found.values()) <= 2.5


@pytest.mark.long
def test_table_3_is_within_15_percent_with_few_seeds() -> None:
    found = _deviations(_lines(FEW, "table3")["table3"])
    assert len(found) == 11
    assert max(found.values()) <= 15.0


def test_nothing_is_gained_without_elasticity() -> None:
    assert _lines(FEW, "fig5")["fig5"][3].holds


@pytest.mark.long
def test_the_order_of_table_3_is_kept_in_every_row() -> None:
    assert all(line.holds for line in _lines(FULL, "sensitivity")["sensitivity"])


def test_the_same_seed_gives_the_same_record() -> None:
    run = Experiment(seed=3, minutes=60.0)
    assert play(None, run) == play(None, run)


def test_the_command_lists_the_assumptions_and_refuses_a_trace(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["reproduce", "ibm", "--only", "table2", "--processes", "1"]) == 0
    out = capsys.readouterr().out
    assert out.count("Assumed ") == 9
    assert "1.66x" in out
    assert main(["reproduce", "ibm", "--trace", "week.npz"]) != 0
    assert "error BFT-4162" in capsys.readouterr().err
    assert main(["reproduce", "ibm", "--only", "table2", "--json", "-", "--processes", "1"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["cluster"] == {"gpus_per_machine": 2, "k_max": 10}


def test_a_percentage_may_deviate_in_percent_of_itself() -> None:
    assert ValueLine(what="", ours=72.0, paper=80.0, is_relative=True).deviation == pytest.approx(
        -10.0
    )
