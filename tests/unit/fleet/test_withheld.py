"""Why a trainer gets no nodes for now, and what users' changes make of records."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bftrainer.fleet.trainers.record_updates import again, changed, freed, unmet
from bftrainer.model.trainer import (
    TrainerChange,
    TrainerRecord,
    TrainerSpec,
    TrainerState,
    withheld,
)

QUEUED, RUNNING, PARKED = TrainerState.QUEUED, TrainerState.RUNNING, TrainerState.PARKED
FAILED, FINISHED = TrainerState.FAILED, TrainerState.FINISHED


def one(trainer_id: str, state: TrainerState = QUEUED, **changes: object) -> TrainerRecord:
    names = TrainerSpec.__dataclass_fields__
    spec = TrainerSpec(name="n", user="u", script="/s")
    spec = replace(spec, **{k: v for k, v in changes.items() if k in names})  # type: ignore[arg-type]  # test values
    own = {k: v for k, v in changes.items() if k not in names}
    record = TrainerRecord(trainer_id=trainer_id, spec=spec, state=state, submitted_s=1.0)
    return replace(record, **own)  # type: ignore[arg-type]  # likewise


def reasons(*records: TrainerRecord, now_s: float = 100.0) -> dict[str, str]:
    return withheld({r.trainer_id: r for r in records}, now_s)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (one("t2", held_s=5.0), "bftrainer release t2"),
        (one("t2", RUNNING, requeued_s=5.0), "requeued"),
        (one("t2", waits_for=("t1",)), "It starts after t1 (Dependency)"),
        (one("t2", waits_for=("t0", "t1")), "(DependencyNeverSatisfied): t0 is no longer known."),
        (one("t2", begin_s=160.0), "in 60 s"),
    ],
)
def test_each_reason_is_told(record: TrainerRecord, words: str) -> None:
    assert words in reasons(one("t1"), record)["t2"]


def test_most_trainers_wait_for_nodes_alone() -> None:
    assert reasons(one("t1"), one("t2", RUNNING, begin_s=100.0), one("t3", FINISHED)) == {}
    # One that is being cancelled, or has ended, is nobody's to hold.
    assert reasons(one("t1", RUNNING, held_s=1.0, cancelled_s=2.0)) == {}
    assert reasons(one("t1", FAILED, held_s=1.0)) == {}


@pytest.mark.parametrize(
    ("state", "after", "after_any"),
    [(FINISHED, (), ()), (FAILED, ("t1",), ()), (TrainerState.CANCELLED, ("t1",), ())],
)
def test_a_dependency_is_met_by_a_good_end_or_by_any(
    state: TrainerState, after: tuple[str, ...], after_any: tuple[str, ...]
) -> None:
    ended = one("t1", state)
    on_good = one("t2", waits_for=("t1",), after=("t1",))
    on_any = one("t2", waits_for=("t1",), after_any=("t1",))
    for waiting, left in ((on_good, after), (on_any, after_any)):
        known = {"t1": ended, "t2": waiting}
        assert unmet(waiting.spec, known) == left
        met = freed(ended, known.values())
        assert [r.waits_for for r in met] == ([] if left else [()])
    both = one("t2", after=("t1",), after_any=("t1",))
    assert unmet(both.spec, {"t1": ended}) == after


def test_of_an_array_those_with_nodes_keep_them_up_to_its_limit() -> None:
    def member(trainer_id: str, state: TrainerState = QUEUED, **more: object) -> TrainerRecord:
        return one(trainer_id, state, array_id="a", array_limit=2, **more)

    four = [member("t1"), member("t2", PARKED), member("t3", RUNNING), member("t4")]
    assert reasons(*four).keys() == {"t1", "t4"}
    assert reasons(member("t1", held_s=1.0), *four[1:3], member("t4")).keys() == {"t1", "t4"}
    assert reasons(*four[:2], member("t3", FINISHED), four[3]).keys() == {"t4"}
    assert reasons(*four, one("t5", array_id="a", array_limit=2, user="v")).keys() == {"t1", "t4"}


def test_a_change_keeps_what_it_does_not_name() -> None:
    record = one("t1", n_max=4)
    assert changed(record, TrainerChange(), 9.0) == record
    assert changed(record, TrainerChange(is_held=False), 9.0) == record
    held = changed(record, TrainerChange(is_held=True), 9.0)
    assert held == replace(record, held_s=9.0)
    assert changed(held, TrainerChange(is_held=True), 10.0) == held
    assert TrainerChange(n_max=4).applied(record.spec) is record.spec
    assert changed(held, TrainerChange(n_min=2, weight=3.0), 10.0).spec == replace(
        record.spec, n_min=2, weight=3.0
    )


def test_one_that_is_submitted_again_waits_for_what_it_still_waited_for() -> None:
    record = one("t3", FAILED, hold=True, after=("t1", "t2"), waits_for=("t2",), begin_s=5.0)
    assert again(record) == replace(record.spec, hold=False, after=("t2",))
