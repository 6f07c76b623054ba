"""Trials in the daemon: what is submitted, reported and granted."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftrainer.api.admission import Allowance, check_spec
from bftrainer.api.documents import CodecError, trials_document
from bftrainer.api.http_messages import read_trials
from bftrainer.api.privacy import for_peer
from bftrainer.api.service import Peer
from bftrainer.fleet.generations.members import Ended
from bftrainer.fleet.runtimes.base import worker_config
from bftrainer.fleet.trainers.record_updates import (
    at_rung,
    check_growth,
    is_at_rung,
    thinned,
    with_reports,
)
from bftrainer.fleet.trainers.study_news import StudyNews
from bftrainer.ground.protocol import Report as Said
from bftrainer.ground.protocol import Reported
from bftrainer.model.canonical import decode, encode, to_plain
from bftrainer.model.errors import BftError
from bftrainer.model.study import MOST_REPORTS, Report, TrialTag
from bftrainer.model.trainer import TrainerChange, TrainerRecord, TrainerSpec, TrainerState
from bftrainer.model.views import TrainerView

TAG = TrialTag(study="s", number=3, most=9, parameters='{"lr": 0.1}')
SPEC = TrainerSpec(name="n", user="ann", script="/s.py", epochs=3, checkpoint_dir="/c/3", trial=TAG)
RECORD = TrainerRecord(
    trainer_id="t1", spec=SPEC, state=TrainerState.RUNNING, submitted_s=0.0, rung_s=None
)


def _said(*values: tuple[int, float]) -> Reported:
    reports = tuple(Said(value=v, step=8 * e, epoch=e, samples=100 * e) for e, v in values)
    return Reported(generation=1, reports=reports)


def _ended(epoch: int) -> Ended:
    return Ended(step=8 * epoch, epoch=epoch, samples=100 * epoch)


def test_a_trial_waits_at_its_rung_only_if_it_trained_a_budget_that_may_grow() -> None:
    assert is_at_rung(SPEC, _ended(3))
    assert not is_at_rung(SPEC, _ended(2)), "its script left the loop early"
    assert not is_at_rung(replace(SPEC, epochs=9), _ended(9))
    assert not is_at_rung(replace(SPEC, trial=None), _ended(3))
    assert not is_at_rung(replace(SPEC, trial=replace(TAG, most=None)), _ended(3))
    by_samples = replace(SPEC, epochs=None, samples=200, trial=replace(TAG, most=400))
    assert is_at_rung(by_samples, _ended(2))
    assert is_at_rung(replace(SPEC, runtime="command"), _ended(0)), "it counts what it likes"
    waiting = at_rung(RECORD, _ended(3), 5.0)
    assert (waiting.state, waiting.rung_s, waiting.progress.epoch) == (TrainerState.PARKED, 5.0, 3)


def test_only_a_trial_at_its_rung_gets_a_greater_budget() -> None:
    waiting = at_rung(RECORD, _ended(3), 5.0)
    check_growth(waiting, TrainerChange(budget=9))
    check_growth(RECORD, TrainerChange(budget=3, n_max=4))
    for record, budget, code in (
        (waiting, 10, "BFT-1601"),
        (waiting, 2, "BFT-1601"),
        (replace(waiting, spec=replace(SPEC, trial=None)), 9, "BFT-1601"),
        (RECORD, 9, "BFT-1602"),
    ):
        with pytest.raises(BftError, match=code):
            check_growth(record, TrainerChange(budget=budget))


def test_reports_are_kept_in_order_and_once() -> None:
    first = with_reports(RECORD, _said((1, 0.5)), 10.0)
    assert with_reports(first, _said((1, 0.5)), 11.0) is first
    both = with_reports(first, _said((1, 0.5), (2, 0.7)), 12.0)
    assert [(r.epoch, r.value, r.reported_s) for r in both.reports] == [
        (1, 0.5, 10.0),
        (2, 0.7, 12.0),
    ]
    repeated = with_reports(both, _said((2, 0.8)), 13.0)  # trained again from a checkpoint
    assert [(r.epoch, r.value, r.reported_s) for r in repeated.reports] == [
        (1, 0.5, 10.0),
        (2, 0.8, 12.0),
    ]


def test_reports_of_a_future_that_was_undone_are_dropped() -> None:
    undone = with_reports(RECORD, _at((1, 10), (2, 20), (3, 30)), 10.0)
    again = with_reports(undone, _at((1, 10), (2, 20), (3, 28)), 11.0)
    assert [(r.epoch, r.step, r.reported_s) for r in again.reports] == [
        (1, 10, 10.0),
        (2, 20, 10.0),
        (3, 28, 11.0),
    ]
    newer = replace(again, progress=replace(again.progress, generation=2))
    assert with_reports(newer, _at((4, 40)), 12.0) is newer, "of a generation that is lost"


def _at(*places: tuple[int, int]) -> Reported:
    reports = tuple(Said(value=0.5, step=s, epoch=e, samples=s) for e, s in places)
    return Reported(generation=1, reports=reports)


def test_reports_that_are_repeated_keep_their_time_when_others_are_thinned() -> None:
    record, said = RECORD, list[tuple[int, int]]()
    for epoch in range(1, 400):
        said.append((epoch, 10 * epoch))
        record = with_reports(record, _at(*said[-32:]), float(epoch))
    assert len(record.reports) <= MOST_REPORTS
    assert all(r.reported_s == r.epoch for r in record.reports)


@given(st.integers(0, 1000))
def test_too_many_reports_are_thinned_but_not_the_last(count: int) -> None:
    reports = tuple(Report(value=0.0, step=n) for n in range(count))
    left = thinned(reports)
    assert len(left) <= MOST_REPORTS
    assert left[-1:] == reports[-1:]
    assert list(left) == sorted(left, key=lambda r: r.step)
    assert count <= MOST_REPORTS or len(left) > MOST_REPORTS // 4


def test_a_group_of_trials_survives_its_request() -> None:
    specs = [
        replace(SPEC, name=f"n{n}", checkpoint_dir=f"/c/{n}", trial=replace(TAG, number=n))
        for n in range(3)
    ]
    body = trials_document(specs)
    assert read_trials(json.dumps(body).encode(), "s") == tuple(specs)
    assert set(body["trials"][2]) == {"name", "checkpoint_dir", "trial"}
    for wrong in (
        body | {"trials": []},
        body | {"trials": [1]},
        body | {"spec": 1},
        body | {"more": 1},
        body | {"trials": [{"user": "bob"}, {}]},
        body | {"trials": [{"trial": None}]},
        body | {"trials": [{"checkpoint_dir": ""}]},
        body | {"spec": body["spec"] | {"args": [1000 * "x"] * 100}, "trials": [{}] * 100},
    ):
        with pytest.raises(CodecError):
            read_trials(json.dumps(wrong).encode(), "s")
    with pytest.raises(CodecError):
        read_trials(json.dumps(body).encode(), "other")


def test_a_malformed_identity_is_refused() -> None:
    check_spec(SPEC)
    for wrong in (
        replace(TAG, study="a b"),
        replace(TAG, study=""),
        replace(TAG, number=-1),
        replace(TAG, most=2),
        replace(TAG, parameters="[1]"),
        replace(TAG, parameters="{"),
        replace(TAG, parameters='{"a": "' + 5000 * "x" + '"}'),
    ):
        with pytest.raises(BftError, match="BFT-1603"):
            check_spec(replace(SPEC, trial=wrong))
    with pytest.raises(BftError, match="BFT-1603"):
        check_spec(replace(SPEC, epochs=None))


def test_a_script_finds_its_trial_in_its_environment() -> None:
    config = worker_config(
        RECORD, worker_id="t1-1-1", node="n", address="127.0.0.1", incarnation=1, log_path=""
    )
    found = dict(config.environment)
    assert found["BFT_PARAMETERS"] == '{"lr": 0.1}'
    assert (found["BFT_STUDY"], found["BFT_TRIAL"]) == ("s", "3")


def test_a_trainer_s_workers_have_one_run_id_unless_its_user_chose_another() -> None:
    def environment_of(record: TrainerRecord, worker_id: str) -> dict[str, str]:
        config = worker_config(
            record, worker_id=worker_id, node="n", address="127.0.0.1", incarnation=1, log_path=""
        )
        return dict(config.environment)

    first, later = (environment_of(RECORD, one) for one in ("t1-1-1", "t1-9-1"))
    assert first["BFT_RUN_ID"] == first["WANDB_RUN_ID"] == later["WANDB_RUN_ID"]
    assert first["WANDB_RESUME"] == "allow"
    other = environment_of(replace(RECORD, submitted_s=RECORD.submitted_s + 1), "t1-1-1")
    assert other["BFT_RUN_ID"] != first["BFT_RUN_ID"], "another daemon's trainer of this number"
    chosen = replace(RECORD, spec=replace(SPEC, environment=(("WANDB_RUN_ID", "mine"),)))
    assert environment_of(chosen, "t1-1-1")["WANDB_RUN_ID"] == "mine"


def test_others_see_neither_parameters_nor_reports() -> None:
    record = with_reports(RECORD, _said((1, 0.5)), 10.0)
    view = TrainerView(record=record, planned_nodes=(), requested_nodes=(), observed_nodes=())
    seen = for_peer(view, Peer(uid=1234567, user="bob", pid=1)).record
    assert (seen.spec.trial, seen.reports) == (None, ())


def test_an_ordinary_trainer_is_written_as_before() -> None:
    plain = to_plain(replace(RECORD, spec=replace(SPEC, trial=None)))
    assert not {"reports", "rung_s"} & plain.keys()
    assert "trial" not in plain["spec"]
    whole = at_rung(with_reports(RECORD, _said((1, 0.5)), 10.0), _ended(3), 11.0)
    assert decode(encode(whole), TrainerRecord) == whole


def test_trials_at_their_rungs_do_not_count_against_the_limit() -> None:
    waiting = [at_rung(RECORD, _ended(3), 5.0)] * 10
    allowance = Allowance(lambda: (3, 100), clock=lambda: 0.0)
    allowance.check("ann", [*waiting, RECORD], more=2)
    with pytest.raises(BftError, match="BFT-1030"):
        allowance.check("ann", [*waiting, RECORD], more=3)
    with pytest.raises(BftError, match="BFT-1030"):
        allowance.check_count("ann", 3 * waiting)
    allowance.took("ann", 5000)
    with pytest.raises(BftError, match="BFT-1031"):
        allowance.check("ann", [])


def test_who_waits_for_news_is_woken_by_his_study_alone() -> None:
    async def play() -> None:
        news = StudyNews()
        waiting = asyncio.create_task(news.wait("ann", "s", 0, 60.0))
        await asyncio.sleep(0)
        news.changed(replace(SPEC, user="bob"))
        news.changed(replace(SPEC, trial=replace(TAG, study="other")))
        news.changed(replace(SPEC, trial=None))
        await asyncio.sleep(0)
        assert not waiting.done()
        news.changed(SPEC)
        await asyncio.wait_for(waiting, 10.0)
        assert news.count("ann", "s") == 1
        await news.wait("ann", "s", 0, 60.0)  # it has changed already
        for number in range(100):
            await news.wait("ann", f"unknown-{number}", 0, 0.0)
        assert not news._waiting, "nothing stays of studies that there are not"

    asyncio.run(play())
