"""The training loss in the daemon: members' means put together, by hand."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bftrainer.api.page.parts import curves, row
from bftrainer.api.privacy import for_peer
from bftrainer.api.service import Peer
from bftrainer.cli.status import trainer_lines
from bftrainer.elastic.gradients.training_loss import mean_loss
from bftrainer.ground import protocol
from bftrainer.ground.protocol import TrainingLoss
from bftrainer.journal.journal import Journal
from bftrainer.model.canonical import decode, encode
from bftrainer.model.progress import MOST_POINTS, Point, ProgressCurve, ProgressCurves
from bftrainer.model.timeline import TimelineView
from bftrainer.model.trainer import TrainerProgress, TrainerRecord, TrainerSpec, TrainerState
from bftrainer.model.views import TrainerView
from tests.support.journals import journal_at
from tests.unit.fleet.test_trainer_book import Site
from tests.unit.ground.test_teams import Two


def said(loss: float | None, weight: float, *, generation: int = 1, step: int = 20) -> TrainingLoss:
    return TrainingLoss(generation=generation, step=step, loss=loss, weight=weight)


journal = journal_at(100.0)


@pytest.mark.parametrize(
    ("parts", "mean", "total"),
    [
        ([(1.0, 3.0), (5.0, 1.0)], 2.0, 4.0),  # (3 + 5) / 4; not (1 + 5) / 2
        ([(-4.0, 0.5), (2.0, 1.5)], 0.5, 2.0),
        ([(7.0, 2.0), (None, 0.0)], 7.0, 2.0),  # it had no samples
        ([(7.0, 2.0), (None, 1.0)], None, 3.0),
        ([(None, 0.0)], None, 0.0),
        ([], None, 0.0),
        ([(1e308, 6.0), (1e308, 6.0)], 1e308, 12.0),
    ],
)
def test_members_count_by_their_weights(
    parts: list[tuple[float | None, float]], mean: float | None, total: float
) -> None:
    assert mean_loss(parts) == (mean, total)


def test_of_each_member_the_last_report_counts_until_it_leaves(
    tmp_path: Path, journal: Journal
) -> None:
    site = Site(tmp_path, journal)
    site.target("n1", "n2")
    site.enter()
    assert site.commit is not None
    first, second = (member.worker_id for member in site.commit.members)

    def progress() -> TrainerProgress:
        return site.book.records[site.trainer_id].progress

    assert progress().loss is None
    site.say(first, said(1.0, 3.0))
    assert progress().loss == 1.0
    site.say(second, said(5.0, 1.0))
    assert progress().loss == 2.0
    site.say(first, said(0.0, 3.0))  # sooner than the other
    assert progress().loss == 1.25
    site.say(second, said(None, 1.0))
    assert (progress().loss, progress().has_finite_loss) == (None, False)
    site.say(second, said(9.0, 1.0))
    assert (progress().loss, progress().has_finite_loss) == (2.25, True)
    site.target("n1")
    site.enter(step=30)
    site.say(first, said(8.0, 4.0, generation=1))  # of the generation before
    assert progress().loss == 2.25
    site.say(first, said(0.5, 4.0, generation=2))
    assert progress().loss == 0.5, "the one that left does not count"


def test_the_last_mean_of_a_training_is_that_of_all_who_came_to_its_end(
    tmp_path: Path, journal: Journal
) -> None:
    """They end one after the other, and the last may be a generation of its own by then."""
    site = Site(tmp_path, journal)
    site.target("n1", "n2")
    site.enter()
    first, second = site.machine.crew.members
    site.say(first, said(2.0, 5.0))
    site.say(second, said(6.5, 4.0))
    site.say(second, protocol.Finished(generation=1, step=21, epoch=1, samples=21))
    site.book.on_exit(site.machine.crew.workers[second].pilot_id, second, 0, "")
    site.machine.crew.members = (first,)
    site.say(first, said(2.0, 5.0))
    assert site.book.records[site.trainer_id].progress.loss == 4.0  # (5 * 2 + 4 * 6.5) / 9


def test_workers_of_a_node_are_told_as_one_by_their_weights() -> None:
    node = Two()
    assert node.said(1, said(5.0, 1.0)) is None
    assert node.said(0, said(1.0, 3.0)) == said(2.0, 4.0)
    assert node.said(1, said(None, 1.0)) is None
    assert node.said(0, said(1.0, 3.0, step=30)) == said(None, 4.0, step=30)


def test_the_message_has_a_number_or_none_and_no_nan() -> None:
    for loss in (-2.5, 0.0, None):
        told = said(loss, 2.0)
        line = protocol.encode(told)
        assert protocol.decode(line) == told
        assert "NaN" not in line.decode()
    for wrong in (math.nan, math.inf, "1", True):
        with pytest.raises(protocol.ProtocolError, match="loss"):
            protocol.from_body({**protocol.to_body(said(1.0, 1.0)), "loss": wrong})


# ---- what people see ---------------------------------------------------------------------


def view(**progress: Any) -> TrainerView:
    spec = TrainerSpec(name="net", user="ada", script="/s.py")
    record = TrainerRecord(
        trainer_id="t1",
        spec=spec,
        state=TrainerState.RUNNING,
        submitted_s=1.0,
        progress=TrainerProgress(size=1, **progress),
    )
    return TrainerView(record=record, planned_nodes=(), requested_nodes=(), observed_nodes=())


def test_status_and_page_have_it_beside_the_metric() -> None:
    told = view(loss=0.12345678)
    assert dict(trainer_lines(told))["training loss"] == "0.123457"
    assert (row(told)["loss"], row(told)["has_finite_loss"]) == (0.12346, True)
    lost = view(has_finite_loss=False)
    assert dict(trainer_lines(lost))["training loss"] == "not finite (NaN or infinite)"
    assert (row(lost)["loss"], row(lost)["has_finite_loss"]) == (None, False)
    assert "training loss" not in dict(trainer_lines(view()))


def test_other_users_do_not_see_it() -> None:
    stranger = Peer(uid=os.geteuid() + 1, user="bob", pid=1)
    seen = for_peer(view(loss=0.5), stranger)
    assert seen.record.progress.loss is None
    assert for_peer(view(has_finite_loss=False), stranger).record.progress.has_finite_loss


def test_the_page_has_a_null_where_it_is_not_known() -> None:
    points: tuple[Point, ...] = ((10.0, 1.0, 1), (15.0, 1.0, 1), (20.0, 0.0, 0))
    told = ProgressCurve(trainer_id="t1", points=points, losses=(0.5, 0.25, None))
    untold = replace(told, trainer_id="t2", losses=())
    timeline = TimelineView(
        incarnation=1, change=1, since_s=0.0, now_s=20.0, nodes=(), base=(), changes=(),
        planned=(), curves=(told, untold),
    )  # fmt: skip
    shown = curves(timeline)
    assert shown["t1"]["loss"] == [0.5, 0.25, None]
    assert shown["t2"]["loss"] == [None, None, None]


def test_curves_keep_it_beside_their_points_and_older_ones_lack_it() -> None:
    fold = ProgressCurves()
    for at_s, loss in ((10.0, None), (20.0, 0.5), (30.0, 0.25)):
        fold.saw(at_s, [view(reported_s=at_s, samples_per_s=1.0, loss=loss).record])
    parked = view(loss=0.25).record
    fold.saw(40.0, [replace(parked, state=TrainerState.PARKED)])
    [curve] = fold.since()
    assert curve.losses == (None, 0.5, 0.25, None), "it does not train any more"
    heir = ProgressCurves()
    heir.resume([curve, replace(curve, trainer_id="t2", losses=())])
    assert [one.losses for one in heir.since(-1)] == [curve.losses, ()]


def test_the_losses_of_a_long_training_stay_beside_their_points() -> None:
    """Point k is at 10 k seconds, with loss k."""
    fold = ProgressCurves()
    for k in range(1000):
        fold.saw(0.0, [view(reported_s=1.0 + 10.0 * k, loss=float(k)).record])
    [curve] = fold.since()
    assert len(curve.points) == len(curve.losses) <= MOST_POINTS
    assert [1.0 + 10.0 * (loss or 0.0) for loss in curve.losses] == [p[0] for p in curve.points]


def test_a_record_without_it_is_written_as_before() -> None:
    assert '"loss"' not in encode(view().record).decode()
    told = view(loss=-1.5).record
    assert decode(encode(told), TrainerRecord) == told
