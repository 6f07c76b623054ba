"""Curves of trainers: what they keep, and that they stay small."""

from __future__ import annotations

from dataclasses import replace

from bftrainer.daemon.explain.trainers import planned_speed
from bftrainer.daemon.uses import UsesOfNodes
from bftrainer.model.decision import Settings
from bftrainer.model.progress import LEAST_S, MOST_CURVES, MOST_POINTS, ProgressCurves
from bftrainer.model.trainer import TrainerProgress, TrainerRecord, TrainerSpec, TrainerState
from bftrainer.model.views import TrainerView
from milp.problem import Curve
from tests.support.snapshots import T0
from tests.support.timelines import PLAN, trained

SPEC = TrainerSpec(name="net", user="ada", script="/s.py", n_max=4, samples=1000)


def record(at_s: float, rate: float, size: int, trainer_id: str = "t1") -> TrainerRecord:
    return TrainerRecord(
        trainer_id=trainer_id,
        spec=SPEC,
        state=TrainerState.RUNNING if size else TrainerState.PARKED,
        submitted_s=T0,
        progress=TrainerProgress(size=size, samples_per_s=rate, reported_s=at_s),
    )


def test_speed_and_size_are_kept_in_order_of_time() -> None:
    curves = ProgressCurves()
    for at_s, rate, size in (
        (1.0, 0.0, 0),  # it waits: nothing to tell
        (2.0, 10.0, 1),
        (3.0, 11.0, 1),  # too soon after the last
        (4.0, 20.0, 2),  # another size
        (4.0 + LEAST_S, 21.0, 2),
        (20.0, 0.0, 0),
        (30.0, 0.0, 0),
        (25.0, 5.0, 1),  # a clock was set back
    ):
        curves.saw(at_s, [record(at_s, rate, size)])
    [curve] = curves.since()
    assert curve.points == (
        (2.0, 10.0, 1),
        (4.0, 20.0, 2),
        (9.0, 21.0, 2),
        (20.0, 0.0, 0),
        (25.0, 5.0, 1),
    )


def test_a_long_training_has_few_points_and_its_newest_and_first() -> None:
    curves, n = ProgressCurves(), 10_000
    for k in range(n):
        curves.saw(0.0, [record(1.0 + 10.0 * k, float(k), 1 + k % 2)])
    [curve] = curves.since()
    assert len(curve.points) <= MOST_POINTS
    times = [at_s for at_s, _, _ in curve.points]
    assert times == sorted(times)
    assert (times[0], times[-1]) == (1.0, 1.0 + 10.0 * (n - 1))


def test_many_trainers_are_forgotten_oldest_first() -> None:
    curves = ProgressCurves()
    for k in range(MOST_CURVES + 5):
        curves.saw(1.0, [record(1.0, 1.0, 1, f"t{k}")], number=k)
    found = [one.trainer_id for one in curves.since()]
    assert (len(found), found[0]) == (MOST_CURVES, "t5")
    assert [one.trainer_id for one in curves.since(MOST_CURVES + 3)] == [f"t{MOST_CURVES + 4}"]


def test_readers_get_the_curves_that_changed_and_heirs_all() -> None:
    live = UsesOfNodes(lambda: "UTC")
    live.saw(trained(T0, n1="t1"), PLAN)
    live.look(1, T0 + 1, [record(T0 + 1, 10.0, 1), record(T0 + 1, 5.0, 1, "t2")])
    first = live.timeline(None)
    assert {one.trainer_id for one in first.curves} == {"t1", "t2"}
    live.look(2, T0 + 20, [record(T0 + 20, 12.0, 1), record(T0 + 1, 5.0, 1, "t2")])
    second = live.timeline(first.seen)
    assert [one.trainer_id for one in second.curves] == ["t1"]
    assert second.curves[0].points == ((T0 + 20, 12.0, 1),)
    assert not second.curves[0].is_whole
    for k in range(3, MOST_POINTS + 3):
        live.look(k, T0, [record(T0 + 20.0 * k, 12.0, 1)])
    third = live.timeline(second.seen)
    assert third.curves[0].is_whole, "points that the reader has were left out since"
    assert third.curves == tuple(c for c in live.timeline(None).curves if c.trainer_id == "t1")


def test_time_left_is_that_of_the_planned_size() -> None:
    """It has 400 samples left; alone it does 10/s, on 4 nodes 40/s; the moment says 2/s."""
    curve = Curve(sizes=(1, 4), samples_per_s=(10.0, 40.0))
    known = replace(
        record(T0, 2.0, 1),
        spec=replace(SPEC, curve=curve),
        progress=TrainerProgress(size=1, samples=600, samples_per_s=2.0, total=1000),
    )
    speed = planned_speed(known, Settings(), 4)
    assert speed == 40.0
    view = TrainerView(record=known, planned_nodes=(), requested_nodes=(), observed_nodes=())
    assert view.left_s == 200.0, "decisions know no speed: 400 / 2"
    assert replace(view, planned_samples_per_s=speed).left_s == 10.0
    assert planned_speed(known, Settings(), 0) == 0.0
