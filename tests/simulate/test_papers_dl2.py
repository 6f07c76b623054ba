"""DL2: the schedulers at their optimum, the cluster's books, and what its learners do."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bftrainer.decide.policies.dl2_network import Array, probabilities
from bftrainer.lab.papers.dl2 import published_learner, rules, training
from bftrainer.lab.papers.dl2 import replays as dl2_replays
from bftrainer.lab.papers.dl2.cluster import (
    MOST_SLOTS,
    TASKS,
    Cluster,
    Dl2Job,
    Rule,
    draw_trace,
    play,
)
from bftrainer.lab.papers.dl2.paper import FULL, QUICK
from bftrainer.lab.papers.dl2.published_learner import PublishedLearner
from bftrainer.lab.papers.dl2.setting import (
    ALL_REDUCE,
    CURVES,
    MODELS,
    SETTINGS,
    TESTBED,
    Setting,
    read_speeds,
)
from bftrainer.lab.papers.dl2.training import Acting
from bftrainer.lab.teach.learner import Adam, LearningStep, batch_of
from tests.support.dl2 import job, tasks

SPEEDS, _ = read_speeds(None, TESTBED)
RINGS, _ = read_speeds(None, ALL_REDUCE)
VOID = 1e6  # a score that is always chosen


def cluster(*jobs: Dl2Job, nodes: int = 200) -> Cluster:
    return Cluster(replace(TESTBED, nodes=nodes), SPEEDS, list(jobs))


def all_types() -> list[Dl2Job]:
    return [job(k, kind, 40.0 + 30.0 * k) for k, kind in enumerate(MODELS)]


# ---- schedulers --------------------------------------------------------------------------------


def test_with_room_for_all_drf_gives_everybody_the_most() -> None:
    one = cluster(*all_types())
    rules.drf(one)
    assert tasks(one) == [(TESTBED.most, TESTBED.most)] * len(MODELS)


def test_with_room_for_all_optimus_leaves_no_task_that_saves_time() -> None:
    one = cluster(*all_types())
    rules.optimus(one)
    for each in one.jobs:
        for more, fits in zip(TASKS[:2], one.allowed(each), strict=False):
            assert not fits or one.rate(each, more) <= one.rate(each) + 1e-12
    assert any(each.workers < TESTBED.most for each in one.jobs)


def test_with_room_for_all_the_greedy_rule_leaves_no_step_that_adds_reward() -> None:
    one = cluster(*all_types())
    rules.greedy(one)
    for each in one.jobs:
        for more, fits in zip(TASKS, one.allowed(each), strict=True):
            assert not fits or one.rate(each, more) <= one.rate(each) + 1e-12


@pytest.mark.parametrize("rule", [rules.optimus, rules.greedy])
def test_with_little_room_the_job_that_gains_most_is_first(rule: Rule) -> None:
    """Two nodes take four pairs; Optimus minds the longer job, the reward of a slot the shorter."""
    one = cluster(job(0, epochs=20.0), job(1, epochs=200.0), nodes=2)
    rule(one)
    shorter, longer = tasks(one)
    assert (sum(longer) > sum(shorter)) == (rule is rules.optimus)


def test_what_optimus_believes_decides_and_not_what_is_true() -> None:
    """Believed speeds fall with every worker beyond the first, so nobody gets a second one."""
    sizes = np.arange(1, TESTBED.most + 1)
    believed = np.zeros_like(SPEEDS)
    believed[:, 1:, 1:] = 1.0 / (sizes[None, :] * sizes[:, None])
    one = cluster(*all_types())
    rules.optimus(one, believed=believed)
    assert tasks(one) == [(1, 1)] * len(MODELS)


def test_the_best_equal_sizes_are_the_best_of_the_diagonal() -> None:
    found = rules.best_equal_sizes(SPEEDS)
    assert found == tuple(1 + int(np.argmax(np.diag(of)[1:])) for of in SPEEDS)
    assert 1 <= min(found) < max(found)
    assert rules.best_equal_sizes(RINGS) == tuple(int(np.argmax(of[0])) for of in RINGS)


def test_tetris_serves_the_larger_first_if_all_take_as_long_and_else_the_shorter() -> None:
    """Of equal length: vgg-16 needs GPUs, dssm needs none. Then dssm is 50 times shorter."""
    alike = cluster(job(0, "dssm"), job(1, "vgg-16"), nodes=2)
    rules.tetris(alike)
    assert tasks(alike) == [(0, 0), (4, 4)]
    apart = cluster(job(0, "dssm", 2.0), job(1, "vgg-16"), nodes=2)
    rules.tetris(apart)
    assert tasks(apart) == [(4, 4), (0, 0)]


def test_tetris_with_thresholds_leaves_the_rest_to_the_next() -> None:
    one = cluster(job(0, "dssm", 2.0), job(1, "vgg-16"), nodes=2)
    rules.tetris(one, most=[3] * len(MODELS))
    assert tasks(one) == [(3, 3), (1, 1)]


def test_the_time_left_counts_what_is_done() -> None:
    one = cluster(job(0, epochs=100.0), job(1, epochs=90.0), nodes=2)
    one.jobs[0].done = 50.0
    rules.srtf(one)
    assert tasks(one) == [(4, 4), (0, 0)]


def test_no_rule_fails_where_nobody_is() -> None:
    for rule in dl2_replays.RULES.values():
        one = cluster(replace(job(0), arrives=3))
        rule(one)
        assert one.end_slot() == 0.0
        assert not one.has_ended


def test_optimus_model_is_found_again_where_speeds_follow_it() -> None:
    """Seconds per sample are a / p + (b + c w + d p) / w + e / (p w), by known coefficients."""
    w, p = np.meshgrid(np.arange(1.0, 9.0), np.arange(1.0, 9.0))
    true = np.zeros((1, 9, 9))
    true[0, 1:, 1:] = 1.0 / (0.3 / p + (2.0 + 0.05 * w + 0.02 * p) / w + 0.1 / (p * w))
    found = rules.fitted(true, samples=30, seed=3)
    assert found[0, 1:, 1:] == pytest.approx(true[0, 1:, 1:], rel=0.03)
    assert not found[0, 0].any()


# ---- the cluster -------------------------------------------------------------------------------


def test_tasks_go_to_the_node_of_least_load_until_one_does_not_fit() -> None:
    """A worker and a server of vgg-16 fill half of a node: 4 of 8 processors, 1 of 2 GPUs."""
    one = cluster(job(0), nodes=2)
    given = [one.give(one.jobs[0], 1, 1) for _ in range(5)]
    assert given == [True, True, True, True, False]
    assert one.jobs[0].share == 1.0
    assert not cluster(job(0), nodes=1).give(job(0), 3, 0)  # three GPUs


def test_whose_nodes_are_all_away_waits() -> None:
    setting = replace(TESTBED, nodes=3, absent=1.0)
    one = Cluster(setting, SPEEDS, [job(0)])
    rules.drf(one)
    assert tasks(one) == [(0, 0)]
    assert one.end_slot() == 0.0
    assert one.jobs[0].done == 0.0


def test_without_servers_a_worker_needs_a_gpu_and_nothing_else() -> None:
    one = Cluster(replace(ALL_REDUCE, nodes=2), RINGS, [job(0), job(1)])
    rules.drf(one)
    assert tasks(one) == [(2, 0), (2, 0)]
    assert one.need(one.jobs[0], 3, 0) == (0, 3)
    assert one.rows().shape == (2, ALL_REDUCE.features)
    assert one.mask().tolist() == [True, True, True]


def test_a_job_ends_within_the_slot_in_which_it_has_all_its_epochs() -> None:
    one = cluster(job(0, epochs=1e9), job(1))
    one.give(one.jobs[1], 1, 1)
    speed = one.rate(one.jobs[1])
    one.jobs[1].epochs = 2.5 * speed
    for _ in range(3):
        one.end_slot()
        if not one.has_ended and one.jobs[1].ends < 0.0:
            one.give(one.jobs[1], 1, 1)
    assert one.jobs[1].ends == pytest.approx(2.5)
    assert one.jobs[1].done == pytest.approx(one.jobs[1].epochs)
    assert one.active == [one.jobs[0]]


def test_features_by_hand() -> None:
    one = cluster(job(0, "wlm", epochs=250.0))
    one.give(one.jobs[0], 2, 1)
    one.now = 10
    *kind, age, left, share, workers, servers = one.row(one.jobs[0])
    assert kind == [0.0] * 7 + [1.0]
    assert (age, left) == (0.5, 2.5)
    assert share == pytest.approx(10 * 2 / 400)  # GPUs: 6 processors of 1,600 are less
    assert (workers, servers) == (2 / TESTBED.most, 1 / TESTBED.most)
    one.now = 10_000
    assert one.row(one.jobs[0])[8] == 3.0


def test_actions_beyond_the_most_are_masked() -> None:
    one = cluster(job(0), job(1))
    one.jobs[0].workers = TESTBED.most
    assert one.mask().tolist() == [False, True, False, True, True, True, True]


def test_jobs_that_never_end_are_said_to() -> None:
    with pytest.raises(RuntimeError, match=f"1 jobs have not ended by slot {MOST_SLOTS}"):
        play(cluster(job(0)), lambda _: None)


def test_speeds_without_servers_are_read_between_the_measured_sizes(tmp_path: Path) -> None:
    curve = {"throughput": [10.0, 30.0, 40.0]}
    (tmp_path / CURVES).write_text(json.dumps({"nodes": [1, 3, 5], "curves": [curve] * 7}))
    found, is_measured = read_speeds(tmp_path, ALL_REDUCE)
    assert is_measured
    assert found[6, 0, 1:7].tolist() == pytest.approx([2.0, 4.0, 6.0, 7.0, 8.0, 8.0])


# ---- acting and learning -----------------------------------------------------------------------


def scores_of(task: float, void: float) -> Callable[[Array], Array]:
    return lambda rows: np.array([task] * 3 * len(rows) + [void])


def acting(one: Cluster, scores: Callable[[Array], Array], **more: object) -> list[int]:
    taken: list[int] = []
    Acting(
        scores=scores, chance=np.random.default_rng(1),
        on_action=lambda _, __, action: taken.append(action), **more,  # type: ignore[arg-type]
    )(one)  # fmt: skip
    return taken


def test_who_always_stops_has_the_first_tasks_alone() -> None:
    one = cluster(job(0), job(1))
    assert acting(one, scores_of(0.0, VOID)) == [6]
    assert tasks(one) == [(1, 1), (1, 1)]


def test_who_never_stops_fills_every_job() -> None:
    one = cluster(job(0), job(1))
    taken = acting(one, scores_of(VOID, 0.0))
    assert tasks(one) == [(TESTBED.most, TESTBED.most)] * 2
    more = np.sum([TASKS[action % 3] for action in taken], axis=0)
    assert more.tolist() == [2 * (TESTBED.most - 1)] * 2  # with the first tasks


def test_a_task_that_does_not_fit_ends_the_slot_and_is_no_experience() -> None:
    one = cluster(job(0), job(1), nodes=1)
    assert acting(one, scores_of(VOID, 0.0)) == []
    assert tasks(one) == [(1, 1), (1, 1)]


def test_another_action_is_taken_where_one_is_wanted() -> None:
    one = cluster(job(0))
    wanted = iter([0, 0, 1, 3])
    assert acting(one, scores_of(0.0, 0.0), override=lambda *_: next(wanted)) == [0, 0, 1, 3]
    assert tasks(one) == [(3, 2)]


@pytest.mark.parametrize(
    ("workers", "servers", "expected"),
    [(2, 0, 1), (0, 2, 0), (11, 1, 1), (1, 11, 0), (10, 1, 2), (1, 1, 2), (1, 0, 2)],
)
def test_poor_states_are_left(
    workers: int, servers: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job without servers or workers, or with more than ten times as many of the other."""
    monkeypatch.setattr(published_learner, "EXPLORATION", 1.0)
    learner = PublishedLearner(TESTBED, SPEEDS, seed=0)
    one = cluster(job(0))
    one.jobs[0].workers, one.jobs[0].servers = workers, servers
    mask = np.ones(4, bool)
    assert learner._explore(one, 2, mask) == expected
    mask[:2] = False
    assert learner._explore(one, 2, mask) == 2
    monkeypatch.setattr(published_learner, "EXPLORATION", 0.0)
    assert learner._explore(one, 2, np.ones(4, bool)) == 2


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learners that are small and soon done."""
    for name, value in {"HIDDEN": 16, "WARM_UP_STEPS": 60, "SAMPLE": 32}.items():
        monkeypatch.setattr(published_learner, name, value)
    for name, seeds in {"IMITATED": 1, "VALIDATION": 1, "TRAINING": 1}.items():
        monkeypatch.setattr(training, name, range(seeds))
    monkeypatch.setattr(training, "ROLLOUTS", 2)
    monkeypatch.setattr(training, "EVERY", 1)


SMALL = replace(TESTBED, jobs=3, nodes=3)


@pytest.mark.usefixtures("short")
def test_the_papers_network_learns_one_label() -> None:
    learner = PublishedLearner(SMALL, SPEEDS, seed=2)
    chance = np.random.default_rng(0)
    steps = [
        training.step_of(chance.random((2, SMALL.features)), np.ones(7, bool), 4) for _ in range(40)
    ]
    before = probabilities(learner.scores(steps[0].rows), steps[0].mask)[4]
    learner.warm_up(batch_of(steps))
    after = probabilities(learner.scores(steps[0].rows), steps[0].mask)[4]
    assert before < 0.5
    assert after > 0.9


@pytest.mark.usefixtures("short")
def test_a_warm_up_may_be_shorter_or_left_out() -> None:
    steps = [training.step_of(np.ones((1, SMALL.features)), np.ones(4, bool), 2)] * 40

    def weights(count: int | None) -> Array:
        learner = PublishedLearner(SMALL, SPEEDS, seed=2)
        learner.warm_up(batch_of(steps), count)
        return learner.actor.third

    assert (weights(0) == PublishedLearner(SMALL, SPEEDS, seed=2).actor.third).all()
    assert (weights(60) == weights(None)).all()
    assert (weights(5) != weights(None)).any()


@pytest.mark.usefixtures("short")
def test_who_learns_offline_learns_from_modelled_speeds_and_is_tried_on_true_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known: list[Array] = []

    def noted(name: str) -> None:
        real = getattr(training, name)

        def note(setting: Setting, speeds: Array, *args: object, **about: object) -> object:
            known.append(speeds)
            return real(setting, speeds, *args, **about)

        monkeypatch.setattr(training, name, note)

    monkeypatch.setitem(SETTINGS, "testbed", SMALL)
    noted("learn")
    run = dl2_replays.Improved(setting="testbed", seed=1, iterations=0, traces=range(2000, 2002))
    dl2_replays.play(None, run)
    noted("evaluate")
    found = dl2_replays.play(None, replace(run, is_offline=True))
    assert isinstance(found, dl2_replays.Tried)
    assert len(found.wrong) == 2
    assert (known[0] == SPEEDS).all()
    assert (known[-1] == SPEEDS).all()
    assert (known[1] == rules.fitted(SPEEDS, dl2_replays.FITTED_SIZES, seed=0)).all()


@pytest.mark.usefixtures("short")
def test_the_papers_learner_learns_from_as_many_slots_as_it_is_told() -> None:
    def weights(updates: int) -> Array:
        learner = PublishedLearner(SMALL, SPEEDS, seed=2)
        learner.learn(updates)
        return learner.actor.third

    none, one, three = weights(0), weights(1), weights(3)
    assert (weights(1) == one).all()
    assert np.isfinite(three).all()
    # Adam moves a number by at most about its rate per update, whatever the gradient.
    first, later = np.abs(one - none).max(), np.abs(three - none).max()
    assert 0.0 < first <= 1.01 * published_learner.RATE
    assert first < later <= 3.5 * published_learner.RATE


@pytest.mark.usefixtures("short")
def test_a_critic_that_sees_one_reward_and_no_future_learns_it() -> None:
    """All slots end the trace with reward 2, so the value goes towards 2."""
    learner = PublishedLearner(SMALL, SPEEDS, seed=2)
    flat = np.random.default_rng(0).random(learner._inputs)
    mask = np.ones(learner._actions, bool)
    memory = published_learner.ReplayBuffer()
    memory.add((flat, flat, mask, 0, 2.0, 0.0))
    adam, other = Adam(rate=0.01), Adam(rate=0.0)
    first = learner._critic(flat[None])[0, 0]
    for _ in range(60):
        learner._update(memory, other, adam)
    assert abs(learner._critic(flat[None])[0, 0] - 2.0) < 0.1 < abs(first - 2.0)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(("reward", "grows"), [(5.0, True), (-5.0, False)])
def test_an_actor_takes_what_was_better_than_expected_more_often(
    reward: float, grows: bool
) -> None:
    learner = PublishedLearner(SMALL, SPEEDS, seed=2)
    flat = np.random.default_rng(0).random(learner._inputs)
    mask = np.ones(learner._actions, bool)
    memory = published_learner.ReplayBuffer()
    memory.add((flat, flat, mask, 7, reward, 0.0))
    before = probabilities(learner.actor(flat), mask)[7]
    for_actor, for_critic = (Adam(rate=rate) for rate in (0.001, 0.0))
    for _ in range(5):
        learner._update(memory, for_actor, for_critic)
    assert (probabilities(learner.actor(flat), mask)[7] > before) == grows


def labels(steps: LearningStep) -> int:
    [at] = np.flatnonzero(steps.wanted)
    return int(at)


@pytest.mark.usefixtures("short")
def test_a_teachers_labels_are_allowed_and_each_slot_ends_with_void(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted: list[LearningStep] = []
    monkeypatch.setattr(training, "batch_of", noted.extend)
    training.labels_of(SMALL, SPEEDS, rules.drf)
    assert all(step.mask[labels(step)] for step in noted)
    ends = [step for step in noted if labels(step) == len(step.mask) - 1]
    one, slots = Cluster(SMALL, SPEEDS, draw_trace(SMALL, 0)), 0
    while not one.has_ended:
        slots += bool(one.seen)
        rules.drf(one)
        one.end_slot()
    assert len(ends) == slots
    both = [step for step in noted if labels(step) % 3 == 2]  # drf gives a worker and a server
    assert len(both) + len(ends) == len(noted)


@pytest.mark.usefixtures("short")
def test_the_best_validation_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "warm_up", lambda network, *_, **__: network)
    found = training.learn(SMALL, SPEEDS, rules.drf, seed=1, iterations=3)
    assert [at for at, _ in found.curve] == [0, 1, 2, 3]
    scores = found.best.scores
    best = float(np.mean(training.evaluate(SMALL, SPEEDS, scores, training.VALIDATION)))
    assert best == min(value for _, value in found.curve)
    none = training.learn(SMALL, SPEEDS, rules.drf, seed=1, iterations=0)
    assert none.best is none.last is none.warmed_up


def test_nobody_is_tried_on_a_trace_that_was_learnt_from() -> None:
    learnt = {*training.TRAINING, *training.VALIDATION, *range(published_learner.TRACES)}
    for extent in (FULL, QUICK):
        tried = extent.seeds("traces", first=2000)
        assert learnt.isdisjoint(tried)
        assert len(tried) == extent.traces


@pytest.mark.parametrize("rule", ["drf", "capped", "capped tetris", "fitted", "srtf"])
def test_a_rule_is_played_by_its_name(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETTINGS, "testbed", replace(TESTBED, jobs=4))
    run = dl2_replays.ByRule(setting="testbed", rule=rule, trace=3)
    mean, away = (dl2_replays.play(None, replace(run, absent=share)) for share in (0.0, 0.8))
    assert isinstance(mean, float)
    assert isinstance(away, float)
    assert 0.0 < mean < away
