"""Numbers that are none, whenever they come: no decision is taken of one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from bftrainer.daemon.decider import Decider, DecisionFailures
from bftrainer.decide.policies.milp import POLICY
from bftrainer.model.canonical import encode
from bftrainer.model.decision import DecisionInput, Memory, Settings
from tests.support.snapshots import T0, idle_nodes, pending, record, snapshot

SOUND = DecisionInput(
    now_s=T0,
    snapshot=snapshot(idle_nodes(2), [pending("7", 1)]),
    is_new_snapshot=True,
    pilots=(),
    trainers=(record("t1"),),
    settings=Settings(reserve_nodes_per_type=0),
    memory=Memory(),
)
ODD_JOB = replace(pending("7", 1), priority=math.nan)
ODD_LOOK = replace(SOUND, snapshot=snapshot(idle_nodes(2), [ODD_JOB]))
ODD_TRAINER = replace(SOUND, trainers=(replace(record("t1"), submitted_s=math.inf),))


@pytest.mark.parametrize(
    ("odd", "who"), [(ODD_LOOK, "request 7"), (ODD_TRAINER, "trainer t1")], ids=["look", "trainer"]
)
@pytest.mark.parametrize("is_looked_into", [True, False], ids=["look into", "or not"])
@pytest.mark.parametrize("order", ["o", "so", "oo", "oso"])
def test_whoever_is_odd_is_left_out_each_time(
    odd: DecisionInput, who: str, *, is_looked_into: bool, order: str
) -> None:
    failures = DecisionFailures()
    decider = Decider(POLICY, "x", failures)
    for which in order:
        given = odd if which == "o" else SOUND
        if is_looked_into:
            decider.look_into(given.snapshot)
        decision = decider.take(given)
        assert encode(decision.input)
        assert set(decision.plan.memory.left_out) == ({who} if which == "o" else set())
    assert failures.count == order.count("o")
