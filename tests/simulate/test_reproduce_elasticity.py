"""``bftrainer reproduce elasticity``: within its bounds, and a measuring rule that stands noise."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from bftrainer.cli.main import main
from bftrainer.lab.papers.elasticity.paper import PAPER
from bftrainer.lab.papers.elasticity.replays import FULL, QUICK, Extents, OneJob, Slowed, play
from bftrainer.lab.papers.elasticity.simulator import JOBS, SlowedOutcome, Training
from bftrainer.lab.papers.findings import ValueLine
from bftrainer.lab.papers.paper import reproduce


def lines(result_id: str, extent: Extents) -> list[ValueLine]:
    scenario = PAPER.choose_scenario(None, None, extent)
    made = reproduce(PAPER, scenario, extent, PAPER.choose([result_id]), processes=1)
    return made.findings[result_id].lines


def assert_within(found: list[ValueLine], most: float) -> None:
    compared = [line for line in found if line.deviation is not None]
    assert compared
    assert {line.what for line in compared if abs(line.deviation or 0.0) > most} == set()


def test_cifar_within_6_percent() -> None:
    found = lines("fig6", FULL)
    assert len([line for line in found if line.paper is not None]) == 6
    assert_within(found, 6.0)
    assert found[-1].holds  # all trials settle at 4


def test_imagenet_within_10_percent_and_gpu_time_by_sign() -> None:
    found = lines("fig7", FULL)
    by_sign = [line for line in found if "GPU time" in line.what]
    assert len(by_sign) == 3
    assert all(line.holds for line in by_sign)
    assert_within([line for line in found if line not in by_sign], 10.0)
    assert found[-1].holds  # all trials settle at 64


def test_prices_matter_less_where_utility_is_high() -> None:
    found = lines("fig8", FULL)
    assert_within(found, 10.0)
    assert all(line.holds for line in found if line.paper is None)


def test_replacing_stragglers_saves_more_the_slower_they_are() -> None:
    found = lines("fig10", replace(QUICK, stragglers=1))
    assert [line.holds for line in found if line.paper is None] == [True, True]


def test_a_constant_number_of_gpus_by_hand() -> None:
    """200 epochs of 50,000 samples in steps of 1,024, 0.2 s on 4 GPUs."""
    found = play(None, OneJob(job="cifar", start=4))
    assert isinstance(found, Training)
    assert found.completion_s == pytest.approx(200 * 50_000 / 1024 * 0.2)
    assert found.used_gpu_s == pytest.approx(4 * found.completion_s)


def test_scaling_in_by_hand() -> None:
    """From 8: 10 steps, 50 s of boot, a pause, 10 steps on 12, a pause, 10 steps on 4."""
    job = JOBS["cifar"]
    quiet = OneJob(job="cifar", start=8, seed=1, step_noise=0.0)
    found = play(None, quiet)
    assert isinstance(found, Training)
    assert found.workers == 4
    measured_s = 10 * (job.step_s(8) + job.step_s(12) + job.step_s(4))
    boot_s = found.settled_s - measured_s - 3.179 - 2.612
    assert boot_s == pytest.approx(50.0, rel=0.5)
    assert found.booting_gpu_s == pytest.approx(4 * boot_s)


def test_stragglers_that_stay_slow_everybody_down() -> None:
    none, kept, replaced = (
        play(None, Slowed(slowdown=slowdown, replaces=replaces, seed=1))
        for slowdown, replaces in ((1.0, False), (4.0, False), (4.0, True))
    )
    assert isinstance(none, SlowedOutcome)
    assert isinstance(kept, SlowedOutcome)
    assert isinstance(replaced, SlowedOutcome)
    assert none.completion_s < replaced.completion_s < kept.completion_s
    assert len(replaced.lives_s) == 10
    assert replaced.workers == kept.workers == none.workers == 44


def settles(trials: int) -> int:
    """How many trials from 32 GPUs settle at 64, at 10% noise of a step."""
    [_, line] = lines("noise", replace(QUICK, noise=trials))
    assert line.ours is not None
    return round(line.ours / 100.0 * trials)


def wilson_lower(successes: int, trials: int) -> float:
    """Lower end of the two-sided 95% interval of Wilson."""
    z, share = 1.96, successes / trials
    middle = share + z**2 / (2 * trials)
    spread = z * math.sqrt(share * (1.0 - share) / trials + z**2 / (4 * trials**2))
    return (middle - spread) / (1.0 + z**2 / trials)


def test_noise_seldom_stops_the_rule_short() -> None:
    """Where 95% settle at 64, fewer than 32 of 40 do in one of 10,000 trials."""
    assert settles(40) >= 32


@pytest.mark.long
def test_noise_seldom_stops_the_rule_short_in_400_trials() -> None:
    assert wilson_lower(settles(400), 400) >= 0.90


def test_the_command_writes_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    main(
        ["reproduce", "elasticity", "--quick", "--only", "fig6", "--json", "-", "--processes", "1"]
    )
    document = json.loads(capsys.readouterr().out)
    [result] = document["results"]
    assert result["id"] == "fig6"
    assert len(document["clusters"]["assumed"]) == 8
    assert all(line["why"] == "" for line in result["lines"])
