"""The bound on waits (``max_wait_s``): whoever has waited so long has a turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from bftrainer.daemon.explain.sizes import explain_trainer
from bftrainer.decide.decision import decide
from bftrainer.decide.policies.base import load_policy
from bftrainer.model.decision import DecisionInput, Memory, Plan, Settings
from bftrainer.model.trainer import TrainerRecord, TrainerState
from tests.support.snapshots import T0, held, idle_nodes, node_names, record, snapshot

BOUND_S = 600.0
LONG = replace(record("t1", n_max=8), started_s=T0, state=TrainerState.RUNNING)


class Site:
    """Four nodes whose pilots are there; trainers train where the last plan says."""

    def __init__(self, policy: str, bound_s: float | None) -> None:
        self.settings = Settings(
            policy=policy, reserve_nodes_per_type=0, p_jmax=4, max_wait_s=bound_s
        )
        self.memory, self.training = Memory(), dict[str, str]()

    def decide(self, at_s: float, *trainers: TrainerRecord) -> Mapping[str, str]:
        given = DecisionInput(
            now_s=T0 + at_s,
            snapshot=snapshot(idle_nodes(4), at_s=T0 + at_s),
            is_new_snapshot=True,
            pilots=held(*node_names(4)),
            trainers=trainers,
            settings=self.settings,
            memory=self.memory,
            training=self.training,
        )
        self.plan: Plan = decide(given, load_policy(self.settings.policy))
        self.memory, self.training = self.plan.memory, dict(self.plan.assignment)
        return self.plan.assignment


def _sizes(assignment: Mapping[str, str]) -> dict[str, int]:
    return {one: list(assignment.values()).count(one) for one in set(assignment.values())}


@pytest.mark.parametrize("policy", ["fcfs-greedy", "srtf", "tetris", "milp"])
def test_who_has_waited_so_long_gets_its_smallest_size_for_as_long(policy: str) -> None:
    site, waits = Site(policy, BOUND_S), record("t2", n_min=2, n_max=2)
    long = replace(LONG, spec=replace(LONG.spec, n_min=4, n_max=4, samples=10, weight=9.0))
    trainers = (long, replace(waits, spec=replace(waits.spec, samples=10**9)))
    assert _sizes(site.decide(0.0, *trainers)) == {"t1": 4}
    assert _sizes(site.decide(BOUND_S - 1.0, *trainers)) == {"t1": 4}
    assert _sizes(site.decide(BOUND_S, *trainers)) == {"t2": 2}, "t1 needs four"
    turn = site.plan.assignment
    assert site.decide(BOUND_S + 300.0, *trainers) == turn
    assert _sizes(site.decide(2 * BOUND_S + 1.0, *trainers))["t1"] == 4, "t1 has waited, too"


def test_without_a_bound_it_waits_for_ever_and_explain_says_for_whom() -> None:
    site, waits = Site("fcfs-greedy", None), record("t2")
    for hour in range(24):
        assert _sizes(site.decide(3600.0 * hour, LONG, waits)) == {"t1": 4}
    assert site.memory.waits == {}
    said = explain_trainer(
        waits, site.plan, site.settings, (LONG, waits), idle_nodes(4), 0, now_s=T0 + 3600.0
    )
    assert "It has had no nodes for 60 min; they go to t1 (4)." in said
    assert any("max_wait_s" in sentence for sentence in said)


def test_nodes_of_the_largest_trainer_go_first_and_free_ones_before() -> None:
    site = Site("fcfs-greedy", BOUND_S)
    small = replace(record("t0", n_max=1), started_s=T0)
    greedy = replace(LONG, spec=replace(LONG.spec, n_max=3))
    waits = record("t2")
    assert _sizes(site.decide(0.0, small, greedy, waits)) == {"t0": 1, "t1": 3}
    assert _sizes(site.decide(BOUND_S, small, greedy, waits)) == {"t0": 1, "t1": 2, "t2": 1}


def test_at_most_half_of_those_that_may_run_have_a_turn() -> None:
    site = Site("fcfs-greedy", BOUND_S)
    waiting = [record(f"t{k}", n_max=1) for k in range(2, 7)]
    site.decide(0.0, LONG, *waiting)
    sizes = _sizes(site.decide(BOUND_S, LONG, *waiting))
    assert sizes == {"t1": 2, "t2": 1, "t3": 1}


def test_one_that_cannot_start_takes_nothing_from_others() -> None:
    site, huge = Site("milp", BOUND_S), record("t2", n_min=9, n_max=9)
    site.decide(0.0, LONG, huge)
    assert _sizes(site.decide(BOUND_S, LONG, huge)) == {"t1": 4}
