"""Which of the trainers' nodes go: the fewest, and the cheapest of those."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from bftrainer.decide.decision import decide
from bftrainer.model.cluster import Job, NodeState
from bftrainer.model.decision import DecisionInput, Memory, PilotView, Plan, Settings
from bftrainer.model.trainer import TrainerRecord
from tests.support.snapshots import T0, ExactPolicy, node, pending, pilot, record, snapshot


def plan_for(
    jobs: Sequence[Job],
    has: Mapping[str, str],
    trainers: Sequence[TrainerRecord],
    *,
    features: Mapping[str, tuple[str, ...]] | None = None,
    pilots: Sequence[PilotView] = (),
) -> Plan:
    """Decide once; ``has``: node → trainer, all held."""
    known = features or {}
    extra = {p.node for p in pilots}
    names = sorted({*has, *known, *extra})
    nodes = [node(n, NodeState.ALLOCATED, features=known.get(n, ())) for n in names]
    views = (*[pilot(n) for n in names if n not in extra], *pilots)
    return decide(
        DecisionInput(
            now_s=T0,
            snapshot=snapshot(nodes, jobs),
            is_new_snapshot=True,
            pilots=views,
            trainers=tuple(trainers),
            settings=Settings(reserve_nodes_per_type=0),
            memory=Memory(assignment=dict(has)),
            training=dict(has),
        ),
        ExactPolicy(),
    )


def given_up(plan: Plan, has: Mapping[str, str]) -> Counter[str]:
    return Counter(has.get(r.node, "nobody") for r in plan.releases if r.for_job)


EIGHT = {**{f"n{k}": "t1" for k in range(4)}, **{f"n{k}": "t2" for k in range(4, 8)}}


def test_nobody_is_parked_who_need_not_be() -> None:
    trainers = [record("t1", n_min=4), record("t2", n_min=1)]
    for count in (1, 2, 3):
        plan = plan_for([pending("7", count)], EIGHT, trainers)
        assert given_up(plan, EIGHT) == {"t2": count}
    # Four from one trainer park it; from both they would park the other one.
    assert given_up(plan_for([pending("7", 4)], EIGHT, trainers), EIGHT) == {"t2": 4}


def test_a_trainer_that_is_parked_anyway_gives_all() -> None:
    trainers = [record("t1", n_min=4), record("t2", n_min=3)]
    counts = given_up(plan_for([pending("7", 4)], EIGHT, trainers), EIGHT)
    assert sorted(counts.values()) == [4]


def test_nodes_of_nobody_go_first_and_those_not_held_before_them() -> None:
    has = {"n1": "t1", "n2": "t1", "n4": "t1"}
    waiting = [pilot("n4", is_held=False), pilot("n5", is_held=False), pilot("n3")]
    for count, expected in ((1, ["n5"]), (2, ["n5", "n3"]), (3, ["n5", "n3", "n4"])):
        plan = plan_for([pending("7", count)], has, [record("t1")], pilots=waiting)
        assert [r.node for r in plan.releases if r.for_job] == expected


def test_those_that_leave_soonest_go_first() -> None:
    has = {"n1": "t1", "n2": "t1", "n3": "t1"}
    views = [replace(pilot(n), end_s=T0 + 9000 - 100 * k) for k, n in enumerate(sorted(has))]
    plan = plan_for([pending("7", 1)], has, [record("t1")], pilots=views)
    assert [r.node for r in plan.releases if r.for_job] == ["n3"]


def test_a_choice_that_does_not_serve_all_is_made_again_for_the_rest() -> None:
    """Cheapest of three would be all of t2, but one job wants what only t1 has."""
    trainers = [record("t1", n_min=1), record("t2", n_min=4)]
    has = {**{f"n{k}": "t1" for k in range(4)}, **{f"n{k}": "t2" for k in range(4, 8)}}
    features = {n: ("a",) if t == "t1" else ("b",) for n, t in has.items()}
    jobs = [pending("7", 2, features="a"), pending("8", 2), pending("9", 3, features="b")]
    plan = plan_for(jobs, has, trainers, features=features)
    by_job: dict[str, set[str]] = {}
    for release in plan.releases:
        by_job.setdefault(release.for_job, set()).add(features[release.node][0])
    assert Counter(r.for_job for r in plan.releases if r.for_job) == {"7": 2, "8": 2, "9": 3}
    assert by_job["7"] == {"a"}
    assert by_job["9"] == {"b"}


def test_overlapping_jobs_share_what_both_can_use() -> None:
    """One wants a or b, one b: two nodes go, not three, though the first picks b by name."""
    has = {"n1": "t1", "n2": "t1", "n3": "t2"}
    features = {"n1": ("b",), "n2": ("a",), "n3": ("c",)}
    jobs = [pending("7", 1, features="a|b"), pending("8", 1, features="b")]
    plan = plan_for(jobs, has, [record("t1"), record("t2")], features=features)
    assert {r.node: r.for_job for r in plan.releases if r.for_job} == {"n1": "8", "n2": "7"}


def test_hundreds_of_nodes_go_in_one_decision() -> None:
    has = {f"n{k:03d}": f"t{k % 10}" for k in range(700)}
    trainers = [record(f"t{k}", n_min=1 + k, n_max=80) for k in range(10)]
    plan = plan_for([pending("7", 350), pending("8", 250)], has, trainers)
    assert Counter(r.for_job for r in plan.releases if r.for_job) == {"7": 350, "8": 250}
    assert len({r.node for r in plan.releases}) == 600
