"""``bftrainer reproduce elasticity``: within its bounds, and a measuring rule that stands noise."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from bftrainer.cli.main import main
from bftrainer.lab.papers.elasticity.paper import FULL, PAPER, QUICK
from bftrainer.lab.papers.elasticity.replays import ZERO_AT_S, Extents, OneJob, Slowed, play
from bftrainer.lab.papers.elasticity.simulator import (
    COMPUTE_S,
    FASTER_ON_64,
    FIXED_S,
    JOBS,
    PER_WORKER_S,
    SECONDS_ON_32,
    SLOWER_AT_24,
    STEP_AT_4_S,
    SlowedOutcome,
    Training,
)
from bftrainer.lab.papers.paper import Reproduction, reproduce
from bftrainer.lab.papers.verdicts import NumberVerdict, judged


def verdicts(result_id: str, extent: Extents) -> list[NumberVerdict]:
    return [verdict for _, _, verdict in judged(made(result_id, extent))]


def made(result_id: str, extent: Extents) -> Reproduction:
    scenario = PAPER.choose_scenario(None, None, extent)
    return reproduce(PAPER, scenario, extent, PAPER.choose([result_id]), processes=1)


def test_fits_are_printed_with_the_values_of_the_code() -> None:
    printed = {name: " ".join(fit["parameters"]) for name, fit in PAPER.fits.items()}
    cpu = f"{COMPUTE_S:g} s / k + {FIXED_S:g} s + {PER_WORKER_S:g} s k"
    values = {
        "CIFAR-10": (f"{SLOWER_AT_24:.0%} longer", f"{STEP_AT_4_S:g} s per step"),
        "ImageNet": (f"{FASTER_ON_64:g} times", f"{SECONDS_ON_32:,.0f} s on 32"),
        "CPU cluster": (cpu, f"0 at {ZERO_AT_S:,.0f} s"),
    }
    boots = {"CIFAR-10": "cifar", "ImageNet": "imagenet", "CPU cluster": "cpus"}
    for name, of in values.items():
        assert all(value in printed[name] for value in of)
        assert f"boots of {JOBS[boots[name]].boot_s:g} s" in printed[name]


def test_cifar_comes_within_its_bounds_by_a_fit() -> None:
    assert verdicts("fig6", FULL) == ["fitted"] * 7


def test_imagenet_misses_the_gpu_time() -> None:
    found = verdicts("fig7", FULL)
    assert found[:6] == ["fitted"] * 6
    assert found[6:] == ["not reproduced"] * 4 + ["fitted"]


def test_prices_by_a_fit_and_the_fastest_time_missed() -> None:
    assert sorted(verdicts("fig8", FULL)) == ["fitted"] * 3 + ["not reproduced", "order only"]


def test_one_constant_share_of_computation_cannot_give_all_savings() -> None:
    found = verdicts("fig10", replace(QUICK, stragglers=1))
    assert found == ["fitted", "not reproduced", "not reproduced", "order only"]


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
    [_, line] = made("noise", replace(QUICK, noise=trials)).findings["noise"].lines
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
