"""How long joining nodes take to train is learnt, and decisions know it."""

from __future__ import annotations

from dataclasses import replace

from bftrainer.decide import warm_up
from bftrainer.model.decision import DecisionInput, Joining, Memory, PilotView, Settings
from tests.support.snapshots import T0, idle_nodes, snapshot


def _given(now_s: float, training: tuple[str, ...] = (), *, is_held: bool = True) -> DecisionInput:
    pilots = tuple(
        PilotView(pilot_id=f"p-{n}", node=n, requested_s=T0, is_held=is_held) for n in ("n1", "n2")
    )
    return DecisionInput(
        now_s=now_s,
        snapshot=snapshot(idle_nodes(2)),
        is_new_snapshot=True,
        pilots=pilots,
        trainers=(),
        settings=Settings(),
        memory=Memory(),
        training=dict.fromkeys(training, "t1"),
    )


PLANNED = Memory(assignment={"n1": "t1"})


def test_it_counts_from_when_the_agent_is_there_and_a_trainer_is_to_have_the_node() -> None:
    memory = warm_up.observe(PLANNED, _given(T0, is_held=False))
    assert memory.joining.since_s == {}
    memory = warm_up.observe(memory, _given(T0 + 3))
    assert memory.joining.since_s == {"n1": T0 + 3}
    memory = warm_up.observe(memory, _given(T0 + 7, ("n1",)))
    assert memory.joining == Joining(since_s={}, warm_up_s=4.0, count=1)


def test_who_loses_the_node_before_it_trains_teaches_nothing() -> None:
    memory = warm_up.observe(PLANNED, _given(T0))
    memory = warm_up.observe(replace(memory, assignment={}), _given(T0 + 9))
    assert memory.joining == Joining()


def test_a_few_are_not_believed_and_the_newest_weigh_most() -> None:
    memory = PLANNED
    for k, took_s in enumerate([8.0] * warm_up.ENOUGH + [18.0]):
        assert warm_up.warm_up_s(memory.joining, 120.0, T0) == (8.0 if k >= warm_up.ENOUGH else 0.0)
        memory = warm_up.observe(memory, _given(T0 + 100 * k))
        memory = warm_up.observe(memory, _given(T0 + 100 * k + took_s, ("n1",)))
    assert warm_up.warm_up_s(memory.joining, 120.0, T0) == 10.0


def test_a_node_is_never_worth_nothing() -> None:
    known = Joining(warm_up_s=500.0, count=warm_up.ENOUGH)
    assert warm_up.warm_up_s(known, 120.0, T0) == 60.0


def test_while_it_is_unknown_it_is_no_shorter_than_a_node_has_waited() -> None:
    joining = Joining(since_s={"n1": T0 - 3.0, "n2": T0 - 40.0}, warm_up_s=9.0, count=1)
    assert warm_up.warm_up_s(joining, 120.0, T0) == 40.0
    assert warm_up.warm_up_s(joining, 60.0, T0) == 30.0


def test_a_clock_that_went_back_makes_no_negative_warm_up() -> None:
    assert warm_up.warm_up_s(Joining(since_s={"n1": 3600.0}), 120.0, 0.0) == 0.0
