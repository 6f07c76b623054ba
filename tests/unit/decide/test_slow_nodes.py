"""What the decision does about slow nodes: replace, leave out, keep, remember, try again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bftrainer.daemon.explain.nodes import slow_sentences, straggler_sentences
from bftrainer.decide.decision import decide
from bftrainer.decide.policies.base import AllocationPolicy, load_policy
from bftrainer.decide.slow_nodes import fraction_now
from bftrainer.model import canonical
from bftrainer.model.cluster import NodeState
from bftrainer.model.decision import DecisionInput, Memory, Plan, Replacing, Settings
from bftrainer.model.trainer import MeasuredCosts, TrainerRecord
from milp.problem import Curve
from tests.support.snapshots import (
    T0,
    Fold,
    claimed,
    held,
    idle_nodes,
    pilot,
    record,
    released,
    snapshot,
    with_state,
)

SETTINGS = Settings(
    reserve_nodes_per_type=0, straggler_threshold=0.8, straggler_memory_s=1800.0, hold_idle_s=5.0
)
LINEAR = Curve(sizes=(1, 8), samples_per_s=(100.0, 800.0))
FLAT = Curve(sizes=(1, 2, 8), samples_per_s=(100.0, 110.0, 120.0))


def _trainer(
    trainer_id: str = "t1", *, n_max: int, curve: Curve = LINEAR, n_min: int = 1, up_s: float = 0.5
) -> TrainerRecord:
    costs = MeasuredCosts(rescale_up_s=up_s, rescale_down_s=0.2)
    made = record(trainer_id, n_min=n_min, n_max=n_max, costs=costs)
    return replace(made, spec=replace(made.spec, curve=curve))


class Site:
    """Nodes of which some train; each ``decide`` is a look some seconds later."""

    def __init__(self, count: int, *trainers: TrainerRecord, settings: Settings = SETTINGS) -> None:
        self.nodes, self.trainers = idle_nodes(count), trainers
        self.fold = Fold(settings=settings)
        self.policy: AllocationPolicy = self.fold.policy
        self.training: dict[str, str] = {}
        self.held: set[str] = set()

    def decide(self, after_s: float = 1.0, **speeds: float) -> Plan:
        ours, fold = sorted(self.held), self.fold
        fold.now_s += after_s
        given = DecisionInput(
            now_s=fold.now_s,
            snapshot=snapshot(with_state(self.nodes, NodeState.ALLOCATED, *ours)),
            is_new_snapshot=True,
            pilots=held(*ours),
            trainers=self.trainers,
            settings=fold.settings,
            memory=fold.memory,
            training=self.training,
            speeds=speeds,
        )
        plan = decide(given, self.policy)
        fold.memory = plan.memory
        self.held = (self.held | claimed(plan)) - released(plan)
        return plan

    def train_as_planned(self) -> None:
        self.training = dict(self.fold.memory.assignment)


def _training(count: int, *trainers: TrainerRecord, settings: Settings = SETTINGS) -> Site:
    site = Site(count, *trainers, settings=settings)
    site.decide()
    site.train_as_planned()
    return site


def test_a_straggler_stays_until_its_replacement_trains() -> None:
    site = _training(4, _trainer(n_max=3))
    assert sorted(site.training) == ["n1", "n2", "n3"]
    plan = site.decide(n2=0.4)
    assert plan.assignment == {"n1": "t1", "n3": "t1", "n4": "t1"}
    assert claimed(plan) == {"n4"}
    assert plan.memory.replacing == {"n2": Replacing(node="n4", trainer_id="t1")}
    for _ in range(4):  # for as long as it takes, and longer than an idle node is held
        plan = site.decide(5.0, n2=0.4)
        assert (released(plan), plan.claims) == (set(), ())
        assert plan.memory.replacing.keys() == {"n2"}
    site.train_as_planned()
    assert site.decide().memory.replacing == {}
    assert released(site.decide(6.0)) == {"n2"}
    # Nobody takes it again: it is remembered.
    plan = site.decide(20.0)
    assert plan.assignment == {"n1": "t1", "n3": "t1", "n4": "t1"}
    assert plan.memory.slow_nodes["n2"].fraction == 0.4


def test_without_a_threshold_nothing_is_replaced_and_nothing_remembered() -> None:
    site = _training(4, _trainer(n_max=3), settings=replace(SETTINGS, straggler_threshold=0.0))
    before = site.fold.memory
    plan = site.decide(n2=0.1)
    assert plan.assignment == before.assignment
    assert plan.memory.slow_nodes == {}


@pytest.mark.parametrize("name", ["equal-share", "fcfs-greedy", "no-rescale"])
def test_every_rule_replaces_but_the_one_that_never_rescales(name: str) -> None:
    site = _training(4, _trainer(n_max=3), settings=replace(SETTINGS, policy=name))
    site.policy = load_policy(name)
    before = site.fold.memory.assignment
    plan = site.decide(n2=0.4)
    assert (plan.memory.replacing.keys() == {"n2"}) == (name != "no-rescale")
    assert (plan.assignment == before) == (name == "no-rescale")


def test_a_replacement_that_is_lost_gives_the_straggler_its_place_back() -> None:
    site = _training(4, _trainer(n_max=3, curve=FLAT, n_min=3))
    assert "n4" in site.decide(n2=0.4).assignment
    site.nodes = with_state(site.nodes, NodeState.DOWN, "n4")
    site.held.discard("n4")
    plan = site.decide(n2=0.4)
    assert plan.assignment == {"n1": "t1", "n2": "t1", "n3": "t1"}
    assert plan.memory.replacing == {}
    assert released(plan) == set()


def test_a_straggler_that_is_gone_ends_the_wait() -> None:
    site = _training(4, _trainer(n_max=3))
    site.decide(n2=0.4)
    site.held.discard("n2")
    site.nodes = with_state(site.nodes, NodeState.DOWN, "n2")
    del site.training["n2"]
    plan = site.decide()
    assert plan.memory.replacing == {}
    assert plan.assignment == {"n1": "t1", "n3": "t1", "n4": "t1"}


def test_the_free_node_that_is_worth_more_elsewhere_is_not_taken() -> None:
    """0.75 x 3 + 1 with the new node for the trainer that waits; 3 with it in n2's place."""
    first, second = _trainer("t1", n_max=3), _trainer("t2", n_max=1)
    site = _training(3, first)
    site.nodes = idle_nodes(4)
    site.trainers = (first, second)
    plan = site.decide(n2=0.75)
    assert plan.assignment == {"n1": "t1", "n2": "t1", "n3": "t1", "n4": "t2"}
    assert plan.memory.replacing == {}


def test_no_replacement_when_the_pause_does_not_pay_back() -> None:
    cheap = _training(4, _trainer(n_max=3, n_min=3))
    assert cheap.decide(n2=0.79).memory.replacing
    dear = _training(4, _trainer(n_max=3, n_min=3, up_s=100.0))
    assert dear.decide(n2=0.79).memory.replacing == {}
    assert dear.fold.memory.assignment.keys() == {"n1", "n2", "n3"}


@pytest.mark.parametrize(
    ("fraction", "size"),
    [(0.7, 3), (0.25, 2)],  # 0.7 x 3 > 2 > 0.25 x 3
)
def test_without_another_node_it_is_left_out_only_if_the_others_are_quicker_alone(
    fraction: float, size: int
) -> None:
    site = _training(3, _trainer(n_max=3))
    plan = site.decide(n2=fraction)
    assert len(plan.assignment) == size
    assert ("n2" in plan.assignment) == (size == 3)
    assert plan.memory.replacing == {}


def test_of_two_stragglers_both_go_in_one_pause_and_never_more_than_n_max_are_planned() -> None:
    site = _training(6, _trainer(n_max=4))
    plan = site.decide(n1=0.5, n3=0.3)
    assert plan.assignment == dict.fromkeys(("n2", "n4", "n5", "n6"), "t1")
    assert {n: pair.node for n, pair in plan.memory.replacing.items()} == {"n1": "n5", "n3": "n6"}


def test_a_trainer_that_grows_takes_the_quick_nodes() -> None:
    site = _training(4, _trainer(n_max=3))
    site.decide(n2=0.4)
    site.train_as_planned()
    site.decide()
    site.trainers = (_trainer(n_max=3), _trainer("t2", n_max=1))
    site.nodes = idle_nodes(5)
    plan = site.decide(10.0)
    assert plan.assignment["n5"] == "t2"
    assert "n2" not in plan.assignment
    # One more: for somebody who has nothing, a slow node is better than none.
    site.trainers = (*site.trainers, _trainer("t3", n_max=1))
    assert site.decide(10.0).assignment["n2"] == "t3"


def test_the_memory_fades_and_the_node_is_tried_again() -> None:
    site = _training(4, _trainer(n_max=3))
    site.decide(n2=0.4)
    site.train_as_planned()
    site.decide()
    known = site.fold.memory.slow_nodes["n2"]
    assert fraction_now(known, SETTINGS, known.seen_s + 1800.0) == pytest.approx(0.7)
    site.trainers = (_trainer(n_max=4),)
    assert "n2" not in site.decide(1000.0).assignment
    assert "n2" in site.decide(1900.0).assignment  # 1 - 0.6 / 2^1.6 > 0.8
    assert "n2" in site.fold.memory.slow_nodes
    site.decide(800.0)  # 1 - 0.6 / 2^2.05 > 0.85
    assert site.fold.memory.slow_nodes == {}


def test_a_node_at_the_threshold_is_remembered_for_a_while() -> None:
    site = _training(4, _trainer(n_max=3))
    site.decide(n2=0.8)
    site.train_as_planned()
    assert "n2" in site.decide(600.0).memory.slow_nodes
    assert site.decide(300.0).memory.slow_nodes == {}  # 1 - 0.2 / 2^0.5 > 0.85


def test_a_remembered_node_that_is_measured_quick_is_forgotten() -> None:
    site = _training(3, _trainer(n_max=3, n_min=3))
    site.decide(n2=0.5)
    assert "n2" in site.fold.memory.slow_nodes
    assert site.decide(n2=1.0).memory.slow_nodes == {}


def test_the_same_input_gives_the_same_plan_again_and_survives_the_journal() -> None:
    site = _training(4, _trainer(n_max=3))
    site.decide(n2=0.4)
    memory = site.decide(0.0, n2=0.4).memory
    assert canonical.decode(canonical.encode(memory), Memory) == memory
    for _ in range(3):
        plan = site.decide(0.0, n2=0.4)
        assert (plan.claims, plan.releases) == ((), ())
        assert plan.memory == memory


def test_an_input_of_a_release_without_stragglers_is_read_and_changes_nothing() -> None:
    given = DecisionInput(
        now_s=T0,
        snapshot=snapshot(idle_nodes(2)),
        is_new_snapshot=True,
        pilots=(pilot("n1"),),
        trainers=(record(),),
        settings=Settings(),
        memory=Memory(),
    )
    plain = canonical.to_plain(given)
    del plain["speeds"], plain["memory"]["slow_nodes"], plain["memory"]["replacing"]
    del plain["settings"]["straggler_threshold"], plain["settings"]["straggler_memory_s"]
    assert canonical.from_plain(plain, DecisionInput) == given


def test_users_are_told() -> None:
    trainer = _trainer(n_max=3)
    site = _training(4, trainer)
    plan = site.decide(n2=0.4)
    observed = ("n1", "n2", "n3")
    assert straggler_sentences(trainer, plan, SETTINGS, observed) == (
        "n2 is slow (0.40 of the others' throughput) and stays until n4 trains in its place.",
    )
    assert slow_sentences(plan.memory, SETTINGS, site.fold.now_s + 60.0)["n2"] == (
        "n2 was found slow: 0.40 of the others' throughput (t1, 60 s ago);"
        " that counts for 59 min more."
    )
    site.train_as_planned()
    (said,) = straggler_sentences(trainer, site.decide(), SETTINGS, ("n1", "n3", "n4"))
    assert "left out because it is slow" in said
    alone = _training(3, _trainer(n_max=3, n_min=3))
    (said,) = straggler_sentences(trainer, alone.decide(n2=0.4), SETTINGS, observed)
    assert said.startswith("n2 is slow (0.40 of the others' throughput) and stays: no other node")
    assert straggler_sentences(trainer, None, SETTINGS, ()) == ()
