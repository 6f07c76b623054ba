"""``bftrainer reproduce dl2``: the cluster by hand, the schedulers, what learning adds."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bftrainer.lab.papers.dl2 import training
from bftrainer.lab.papers.dl2.cluster import Cluster, Dl2Job, draw_trace, play
from bftrainer.lab.papers.dl2.paper import PAPER, QUICK
from bftrainer.lab.papers.dl2.published_learner import PublishedLearner
from bftrainer.lab.papers.dl2.rules import (
    best_equal_sizes,
    drf,
    fitted,
    greedy,
    optimus,
    srtf,
    tetris,
)
from bftrainer.lab.papers.dl2.setting import (
    LARGE,
    MODELS,
    RECORDS,
    TESTBED,
    Amounts,
    measured,
    read_speeds,
)
from bftrainer.lab.papers.dl2.training import Acting
from bftrainer.lab.papers.findings import ValueLine
from bftrainer.lab.papers.paper import reproduce
from bftrainer.model.errors import UsageError
from tests.support.dl2 import job, tasks

DATA = os.environ.get("BFTRAINER_DATA", "")
FOLDER = Path(DATA) if DATA and (Path(DATA) / RECORDS).is_file() else None
SPEEDS, _ = read_speeds(None, TESTBED)
SMALL = replace(TESTBED, nodes=2, jobs=2)


def cluster(*jobs: Dl2Job) -> Cluster:
    return Cluster(SMALL, SPEEDS, list(jobs))


def test_drf_by_hand() -> None:
    """Two nodes of 8 processors and 2 GPUs; a worker and a server need 4 processors and a GPU."""
    one = cluster(job(0, "vgg-16"), job(1, "resnet-50"))
    drf(one)
    assert tasks(one) == [(2, 2), (2, 2)]
    assert [job.share for job in one.jobs] == [0.5, 0.5]


def test_who_needs_no_gpu_is_short_of_processors() -> None:
    one = cluster(job(0, "dssm"), job(1, "cnn-text-classification"))
    drf(one)
    assert tasks(one) == [(2, 2), (2, 2)]
    assert one.need(one.jobs[0], 2, 2) == (8, 0)


def test_the_shorter_job_is_served_first() -> None:
    one = cluster(job(0, "vgg-16", 100.0), job(1, "vgg-16", 10.0))
    srtf(one)
    assert tasks(one) == [(0, 0), (4, 4)]


def test_what_is_stated_of_epochs_is_off_by_the_error_and_what_is_trained_is_not() -> None:
    trace = [job(k, "vgg-16", 120.0) for k in range(20)]
    one = Cluster(replace(SMALL, error=0.2), SPEEDS, trace)
    left = {round(100 * one.row(each)[len(MODELS) + 1]) for each in one.jobs}
    assert left == {100, 150}  # 120 epochs are 20% more, or fewer, than these
    assert {each.epochs for each in one.jobs} == {120.0}
    one.jobs[0].done = 119.0
    assert one.row(one.jobs[0])[len(MODELS) + 1] >= 0.0
    right = Cluster(SMALL, SPEEDS, trace)
    assert right.row(right.jobs[0])[len(MODELS) + 1] == pytest.approx(1.2)


def test_a_slot_by_hand() -> None:
    one = cluster(job(0, "vgg-16", 100.0), job(1, "vgg-16", 5.0))
    one.give_first_tasks()
    speed = SPEEDS[MODELS.index("vgg-16"), 1, 1]
    assert speed > 2.5
    reward = one.end_slot()
    assert one.jobs[0].done == pytest.approx(speed)
    assert one.jobs[1].ends == pytest.approx(5.0 / speed) if speed >= 5.0 else -1.0
    assert reward == pytest.approx(speed / 100.0 + min(1.0, speed / 5.0))
    assert tasks(one)[0] == (0, 0)  # handed out anew


def test_of_one_step_none_adds_more_than_the_greedy_one() -> None:
    one = cluster(job(0, "vgg-16"), job(1, "wlm"))
    taken: list[tuple[int, tuple[int, int]]] = []
    greedy(one, on_step=lambda j, more: taken.append((j.number, more)))
    gains = [SPEEDS[job.type, 1, 1] / job.epochs for job in one.jobs]
    assert taken[0] == (int(np.argmax(gains)), (1, 1))


def test_rules_are_ordered_as_the_paper_says_with_synthetic_speeds_but_for_tetris() -> None:
    setting = replace(LARGE, jobs=60, nodes=150)
    speeds, is_measured = read_speeds(None, setting)
    assert not is_measured

    def mean(rule: training.Teacher) -> float:
        traces = (Cluster(setting, speeds, draw_trace(setting, seed)) for seed in range(3))
        return float(np.mean([play(one, rule) for one in traces]))

    base = mean(drf)
    assert mean(optimus) < mean(lambda c: drf(c, most=best_equal_sizes(speeds))) < base
    assert mean(tetris) > mean(optimus)


def test_a_fitted_model_is_right_where_speeds_follow_it() -> None:
    """The synthetic step, compute / w + a w / p + b (w - 1), is not quite Optimus' own."""
    found = fitted(SPEEDS, samples=40, seed=0)
    ratio = found[:, 1:, 1:] / SPEEDS[:, 1:, 1:]
    assert np.median(np.abs(np.log(ratio))) < 0.3


def _records(path: Path, **rates: float) -> None:
    lines = [
        str((model, "dist_sync", 32, p, w, [rates.get(model, 1.0) * p / w] * w, [1.0], [1.0]))
        for model in MODELS
        for p in (1, 2, 4, 8)
        for w in (1, 2, 4, 8)
    ]
    lines.append(str((MODELS[0], "dist_sync", 32, 3, 3, [0.0] * 3, [1.0], [1.0])))  # failed
    path.write_text("\n".join(lines))


def test_records_are_met_exactly_and_failed_ones_left_out(tmp_path: Path) -> None:
    _records(tmp_path / "records", wlm=7.0)
    found = measured(tmp_path / "records", 8)
    assert found[0, 4, 2] == pytest.approx(4.0)
    assert found[MODELS.index("wlm"), 8, 1] == pytest.approx(56.0)
    assert found[0, 3, 3] > 1.0


@pytest.mark.parametrize("text", ["", "nonsense", "('resnet-50', 1)", "('resnet-50',"])
def test_a_file_of_something_else_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / RECORDS).parent.mkdir()
    (tmp_path / RECORDS).write_text(text)
    with pytest.raises(UsageError, match="BFT-4171"):
        PAPER.choose_scenario(None, tmp_path, QUICK)


@pytest.mark.long
def test_a_network_does_what_its_teacher_does() -> None:
    """D2: within 3% in closed loop, on traces that it has not seen."""
    network = training.imitate(TESTBED, SPEEDS, drf, seed=1)
    test = range(2000, 2004)
    ours = training.evaluate(TESTBED, SPEEDS, network.scores, test)
    theirs = [play(Cluster(TESTBED, SPEEDS, draw_trace(TESTBED, s), s), drf) for s in test]
    assert np.mean(np.array(ours) / theirs) == pytest.approx(1.0, abs=0.03)


def test_the_papers_learner_sees_what_the_paper_says() -> None:
    learner = PublishedLearner(SMALL, SPEEDS, seed=1)
    one = cluster(job(0, "vgg-16"), job(1, "wlm"))
    noted: list[int] = []
    Acting(
        scores=learner.scores,
        chance=np.random.default_rng(1),
        on_action=lambda _, __, action: noted.append(action),
    )(one)
    assert one.rows().shape == (2, TESTBED.features)
    assert all(0 <= action <= 6 for action in noted)


def _lines(extent: Amounts, *only: str) -> list[ValueLine]:
    scenario = PAPER.choose_scenario(None, FOLDER, extent)
    made = reproduce(PAPER, scenario, extent, PAPER.choose(only), processes=1)
    return [line for finding in made.findings.values() for line in finding.lines]


@pytest.mark.long
def test_every_result_is_found() -> None:
    extent = replace(QUICK, traces=2, learners=1, iterations=10, updates=20, all_reduce=10)
    lines = _lines(extent)
    assert len(lines) > len(PAPER.choose(()))
    assert all(math.isfinite(line.ours) for line in lines if line.ours is not None)


@pytest.mark.long
@pytest.mark.skipif(FOLDER is None, reason=f"BFTRAINER_DATA has no {RECORDS}")
def test_the_rules_and_the_learner_with_measured_speeds() -> None:
    """Optimus at 500 servers, DRF that stops, the network; Tetris as in the paper at 500 alone."""
    ours = {line.what.partition(";")[0]: line.ours for line in _lines(QUICK, "baselines")}
    assert ours["500 servers, Optimus with true speeds"] == pytest.approx(-31.8, abs=1.0)
    assert ours["testbed, Optimus fitted to 30 sizes"] == pytest.approx(-17.3, abs=1.0)
    capped = ours["500 servers, DRF that stops at each model's best equal size"]
    assert capped == pytest.approx(-19.0, abs=4.0)
    assert ours["500 servers, Tetris"] < 0.0 < ours["testbed, Tetris"]  # type: ignore[operator]
    lines = _lines(replace(QUICK, iterations=200, learners=1), "learnt")
    [mean, *_] = [line.ours for line in lines if line.what.startswith("mean of the seeds")]
    assert mean is not None
    assert mean < -10.0
