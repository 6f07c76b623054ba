"""Which parts of shared hosts go when ordinary jobs wait for GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bftrainer.decide import allocation
from bftrainer.decide.division import PilotPart, divided, parts_of
from bftrainer.decide.draft import Draft
from bftrainer.decide.host_rooms import HostRoom, LentPart, RoomNeed
from bftrainer.model.cluster import Job, JobState, LentGpus, Node, NodeState
from bftrainer.model.decision import DecisionInput, Memory, Settings
from tests.support.gpu_hosts import (
    exclusive_job,
    gpu_host,
    gpu_job,
    gpu_trainer,
    ordinary,
    part,
    part_pilot,
    pilot_job,
)
from tests.support.snapshots import T0, Fold, given_back, pending, snapshot

SETTINGS = Settings(reserve_nodes_per_type=0, cycle_s=30.0)


def _given_back(hosts: list[Node], jobs: list[Job], *ours: str) -> Draft:
    """What goes when pilots of ours run on these parts."""
    seen = snapshot(hosts, [*jobs, *map(pilot_job, ours)])
    return given_back(seen, [part_pilot(name) for name in ours], settings=SETTINGS)


def _released(draft: Draft) -> dict[str, set[str]]:
    by_job: dict[str, set[str]] = {}
    for release in draft.releases:
        by_job.setdefault(release.for_job, set()).add(release.node)
    return by_job


# ---- the parts of a host ------------------------------------------------------------------


def test_free_gpus_have_the_smallest_numbers_that_no_pilot_has() -> None:
    host = gpu_host("n1", ordinary=1, ours=1)
    shown = parts_of(host, _held("n1/1", JobState.RUNNING))
    states = {node.name: node.state for node in shown.nodes}
    assert states == {
        "n1/1": NodeState.ALLOCATED,
        "n1/0": NodeState.IDLE,
        "n1/2": NodeState.IDLE,
    }
    assert {node.node_type for node in shown.nodes} == {"gpu:a100"}
    assert not shown.taken


def test_a_pilot_whose_gpu_an_ordinary_job_has_taken_is_taken() -> None:
    shown = parts_of(gpu_host("n1", ordinary=4), _held("n1/1", None))
    assert shown.taken == ("n1/1",)


def test_a_remembered_name_stands_for_the_gpu_that_was_given_back() -> None:
    shown = parts_of(gpu_host("n1", ordinary=3), (), ("n1/2",))
    assert [(node.name, node.state) for node in shown.nodes] == [("n1/2", NodeState.IDLE)]
    assert parts_of(gpu_host("n1", ordinary=4), (), ("n1/2",)).taken == ("n1/2",)


def _division(host: Node, jobs: list[Job], held_off: dict[str, float]) -> dict[str, NodeState]:
    """The states of a host's parts after parts of it were given back at these times."""
    given = DecisionInput(
        now_s=T0 + 0.2,
        snapshot=snapshot([host], jobs),
        is_new_snapshot=True,
        pilots=(),
        trainers=(),
        settings=SETTINGS,
        memory=Memory(held_off=held_off),
    )
    return {node.name: node.state for node in divided(given).snapshot.nodes or ()}


def test_the_part_given_back_last_stands_for_what_is_free() -> None:
    """The job for which the first one was given back has started; the second's waits."""
    jobs = [ordinary("7", "n1", 1), ordinary("8", "n1", 2)]
    shown = _division(gpu_host("n1", ordinary=3), jobs, {"n1/0": T0 - 9.0, "n1/1": T0 - 5.0})
    assert shown == {"n1/0": NodeState.ALLOCATED, "n1/1": NodeState.IDLE}


@pytest.mark.parametrize(
    ("n_used", "left_s", "state"),
    [
        (3, 0.0, NodeState.IDLE),  # one of the four that the host shows used is nobody's
        (3, -5.0, NodeState.ALLOCATED),  # long ago: the look would show it
        (4, 0.0, NodeState.ALLOCATED),
    ],
)
def test_a_part_left_during_the_look_is_not_taken(
    n_used: int, left_s: float, state: NodeState
) -> None:
    """Nodes are read before jobs: the pilot ended between."""
    jobs = [ordinary("8", "n1", n_used)]
    shown = _division(gpu_host("n1", ordinary=4), jobs, {"n1/2": T0 + left_s})
    assert shown == {"n1/2": state}


def test_a_job_with_all_of_a_host_has_the_part_left_during_the_look() -> None:
    """With --exclusive a job names no GPUs, and has all."""
    jobs = [replace(ordinary("8", "n1", 0), can_share=False)]
    assert _division(gpu_host("n1", ordinary=4), jobs, {"n1/2": T0}) == {
        "n1/2": NodeState.ALLOCATED
    }


def test_on_a_host_that_completes_a_remembered_name_is_not_taken() -> None:
    lends = (
        LentGpus(gpu_type="a100", n_gpus=2, n_free=0, cpus=4, memory_mb=1000),
        LentGpus(gpu_type="1g.10gb", n_gpus=4, n_free=0, cpus=4, memory_mb=1000),
    )
    host = replace(gpu_host("n1", ours=4), state=NodeState.COMPLETING, left=None, lends=lends)
    held = (*_held("n1/0", JobState.RUNNING), *_held("n1/1", JobState.RUNNING))
    shown = parts_of(host, held, ("n1/2", "n1/3"))
    assert shown.taken == ()
    by_name = {node.name: (node.state, node.node_type) for node in shown.nodes}
    ending = (NodeState.COMPLETING, "gpu:1g.10gb")  # all others are held
    assert (by_name["n1/2"], by_name["n1/3"]) == (ending, ending)
    waits = PilotPart(part=part("n1/5", gpu_type="1g.10gb"), job_state=None, is_leaving=False)
    assert parts_of(host, (*held, waits)).taken == ()


def test_a_host_with_nothing_to_lend_stays_a_host() -> None:
    (host,) = parts_of(gpu_host("n1", ordinary=4)).nodes
    assert (host.name, host.state) == ("n1", NodeState.ALLOCATED)
    drained = replace(gpu_host("n1"), state=NodeState.DRAINED, reason="disk")
    (host,) = parts_of(drained).nodes
    assert (host.state, host.reason) == (NodeState.DRAINED, "disk")


def _held(name: str, state: JobState | None) -> tuple[PilotPart, ...]:
    return (PilotPart(part=part(name), job_state=state, is_leaving=False),)


def test_a_look_is_divided_once_while_the_pilots_are_the_same() -> None:
    seen = snapshot([gpu_host("n1", ours=1), gpu_host("n2")], [pilot_job("n1/0")])
    given = DecisionInput(
        now_s=T0,
        snapshot=seen,
        is_new_snapshot=True,
        pilots=(part_pilot("n1/0"),),
        trainers=(),
        settings=SETTINGS,
        memory=Memory(),
    )
    first = divided(given).snapshot
    later = replace(given, now_s=T0 + 5.0, is_new_snapshot=False, pilots=(part_pilot("n1/0"),))
    assert divided(later).snapshot is first
    second_pilot = replace(later, pilots=(*later.pilots, part_pilot("n2/3", is_held=False)))
    names = [node.name for node in divided(second_pilot).snapshot.nodes or ()]
    assert names != [node.name for node in first.nodes or ()]
    remembered = replace(later, memory=Memory(held_off={"n2/9": T0}))
    assert "n2/9" in [node.name for node in divided(remembered).snapshot.nodes or ()]


# ---- what is given back -------------------------------------------------------------------


def test_a_job_gets_the_gpus_that_it_lacks_and_no_more() -> None:
    hosts = [gpu_host("n1", ordinary=1, ours=2), gpu_host("n2", ordinary=2, ours=2)]
    jobs = [ordinary("1", "n1", 1), ordinary("2", "n2", 2), gpu_job("7", 2)]
    draft = _given_back(hosts, jobs, "n1/0", "n1/1", "n2/0", "n2/1")
    assert _released(draft) == {"7": {"n1/0"}}  # of n1 one is free already


def test_a_job_that_fits_into_what_is_free_takes_nothing_and_has_it_kept_free() -> None:
    hosts = [gpu_host("n1", ordinary=1, ours=1)]
    draft = _given_back(hosts, [ordinary("1", "n1", 1), gpu_job("7", 1)], "n1/0")
    assert not draft.releases
    (name,) = draft.memory.held_off
    assert name in {"n1/1", "n1/2"}


@pytest.mark.parametrize("are_ended", [True, False])
@pytest.mark.parametrize("n_shown_used", [4, 3, 2, 1])
def test_parts_left_during_the_look_are_room_for_their_job(
    n_shown_used: int, *, are_ended: bool
) -> None:
    """Nodes are read before jobs: three pilots ended before, between or after."""
    left = ("n1/0", "n1/1", "n1/2")
    job = replace(gpu_job("17", 3), cpus=12, cpus_per_node=12, memory_mb=3000)
    seen = snapshot([gpu_host("n1", ordinary=n_shown_used)], [job, pilot_job("n1/3")])
    pilots = [part_pilot("n1/3")]
    if not are_ended:
        pilots += [part_pilot(name, is_leaving=True) for name in left]
    memory = Memory(held_off=dict.fromkeys(left, T0))
    draft = given_back(seen, pilots, memory, settings=SETTINGS)
    assert not draft.releases
    assert not draft.refused  # it is about to start


def test_a_part_that_leaves_and_one_that_has_left_during_the_look_are_room_for_two() -> None:
    job = replace(gpu_job("17", 2), cpus=8, cpus_per_node=8, memory_mb=2000)
    jobs = [job, ordinary("5", "n1", 1), pilot_job("n1/1"), pilot_job("n1/3")]
    seen = snapshot([gpu_host("n1", ordinary=4)], jobs)
    pilots = [part_pilot("n1/1", is_leaving=True), part_pilot("n1/3")]
    draft = given_back(seen, pilots, Memory(held_off={"n1/0": T0, "n1/1": T0}), settings=SETTINGS)
    assert not draft.releases
    assert not draft.refused


def test_an_exclusive_job_that_cannot_start_gets_nothing() -> None:
    """G3: ordinary jobs hold GPUs on all hosts; 24 of 34 were given back in vain."""
    hosts = [gpu_host(f"n{k}", ordinary=1, ours=3) for k in range(1, 7)]
    jobs: list[Job] = [ordinary(str(k), f"n{k}", 1) for k in range(1, 7)]
    names = [f"n{k}/{part}" for k in range(1, 7) for part in range(3)]
    draft = _given_back(hosts, [*jobs, exclusive_job("9", 6)], *names)
    assert not draft.releases
    assert "9" in draft.refused


def test_an_exclusive_job_gets_all_parts_of_hosts_that_only_we_use() -> None:
    hosts = [gpu_host("n1", ours=2), gpu_host("n2", ordinary=1, ours=3)]
    names = ["n1/0", "n1/1", "n2/0", "n2/1", "n2/2"]
    draft = _given_back(hosts, [ordinary("2", "n2", 1), exclusive_job("9", 1)], *names)
    assert _released(draft) == {"9": {"n1/0", "n1/1"}}
    assert set(draft.memory.held_off) == {"n1/0", "n1/1", "n1/2", "n1/3"}


def test_a_job_of_several_nodes_gets_its_gpus_on_each() -> None:
    hosts = [gpu_host(f"n{k}", ordinary=1, ours=3) for k in (1, 2, 3)]
    jobs: list[Job] = [ordinary(str(k), f"n{k}", 1) for k in (1, 2, 3)]
    names = [f"n{k}/{part}" for k in (1, 2, 3) for part in range(3)]
    draft = _given_back(hosts, [*jobs, gpu_job("9", 2, n_nodes=2)], *names)
    released = _released(draft)["9"]
    assert len(released) == 4
    assert len({name.partition("/")[0] for name in released}) == 2


def test_a_job_for_one_type_gets_gpus_of_that_type() -> None:
    hosts = [gpu_host("n1", ours=4, gpu_type="v100"), gpu_host("n2", ours=4)]
    seen_jobs = [gpu_job("7", 1, gpu_type="a100")]
    names = [f"n{k}/{part}" for k in (1, 2) for part in range(4)]
    pilots = []
    for name in names:
        gpu_type = "v100" if name.startswith("n1") else "a100"
        pilots.append(replace(part_pilot(name), part=part(name, gpu_type=gpu_type)))
    seen = snapshot(hosts, [*seen_jobs, *map(pilot_job, names)])
    draft = given_back(seen, pilots, settings=SETTINGS)
    assert _released(draft) == {"7": {"n2/0"}}


@pytest.mark.parametrize("gpu_type", ["", "a100"])
def test_a_pilot_that_has_a_whole_host_goes_for_a_job_that_needs_a_gpu_of_it(
    gpu_type: str,
) -> None:
    whole_pilot = replace(part_pilot("n1"), part=None)
    job = replace(pilot_job("n1"), gpus_per_node=4)
    seen = snapshot([gpu_host("n1", ours=4)], [job, gpu_job("7", 1, gpu_type=gpu_type)])
    draft = given_back(seen, [whole_pilot], settings=SETTINGS)
    assert _released(draft) == {"7": {"n1"}}


def test_jobs_add_up_in_the_order_of_the_scheduler() -> None:
    hosts = [gpu_host("n1", ours=2, ordinary=2)]
    jobs = [ordinary("1", "n1", 2), gpu_job("7", 1), gpu_job("8", 2, priority=5.0)]
    draft = _given_back(hosts, jobs, "n1/0", "n1/1")
    assert _released(draft) == {"8": {"n1/0", "n1/1"}}
    assert "7" in draft.refused


def test_a_job_for_cpus_alone_gets_a_part_for_its_cpus() -> None:
    hosts = [gpu_host("n1", ours=4)]
    cpu_job = replace(pending("7", 1), cpus_per_node=6, memory_mb=10, can_share=True)
    draft = _given_back(hosts, [cpu_job], "n1/0", "n1/1", "n1/2", "n1/3")
    assert len(_released(draft)["7"]) == 2  # 4 CPUs each


def test_an_announced_job_gets_the_gpus_that_it_is_known_to_need() -> None:
    announced = replace(gpu_job("announced-1", 2), can_share=False, cpus_per_node=0, memory_mb=0)
    names = ["n1/0", "n1/1", "n1/2", "n1/3"]
    draft = _given_back([gpu_host("n1", ours=4)], [announced], *names)
    assert _released(draft) == {"announced-1": {"n1/0", "n1/1"}}


@pytest.mark.parametrize(
    ("request_of_it", "n_parts"),
    [
        ({"cpus": 1, "can_share": False}, 4),  # the node for itself
        ({"cpus": 1, "can_share": True, "gpus": 2}, 2),
        ({"cpus": 8, "can_share": True}, 2),  # 4 CPUs each
        ({"cpus": 1, "can_share": True, "memory_mb": 3000}, 3),
        ({"cpus": 1, "can_share": True, "gpus": 1, "memory_per_gpu_mb": 2000}, 2),
    ],
)
def test_an_announced_job_whose_whole_request_is_known_gets_what_it_needs(
    request_of_it: dict[str, Any], n_parts: int
) -> None:
    announced = replace(pending("announced-1", 1), cpus_per_node=1, **request_of_it)
    names = ["n1/0", "n1/1", "n1/2", "n1/3"]
    draft = _given_back([gpu_host("n1", ours=4)], [announced], *names)
    assert len(_released(draft)["announced-1"]) == n_parts


def test_of_jobs_that_ask_for_the_same_the_short_fits_before_a_plan_and_the_long_does_not() -> None:
    """The first job waits for the ordinary one's GPUs; its plan closes the host in an hour."""
    ours = ("n1/0", "n1/1")
    seen = [gpu_host("n1", ordinary=2, ours=2)]
    planned = replace(
        gpu_job("1", 4, priority=9.0),
        start_s=T0 + 3600.0,
        planned_nodes=("n1",),
        reason="Resources",
    )
    limits_s = {"2": 7200.0, "3": 9000.0, "4": 600.0, "5": 600.0}
    jobs = [
        replace(gpu_job(job_id, 1, priority=5.0 - int(job_id)), time_limit_s=limit_s)
        for job_id, limit_s in limits_s.items()
    ]
    draft = _given_back(seen, [ordinary("9", "n1", 2), planned, *jobs], *ours)
    assert {job_id: len(names) for job_id, names in _released(draft).items()} == {"4": 1, "5": 1}
    assert {"2", "3"} <= draft.refused.keys()


def test_hosts_are_asked_once_for_jobs_that_need_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    victims = HostRoom.victims

    def counted(room: HostRoom, need: RoomNeed | None) -> list[LentPart] | None:
        asked.append(room.name)
        return victims(room, need)

    monkeypatch.setattr(HostRoom, "victims", counted)
    hosts = [gpu_host(f"n{k}", ordinary=4) for k in range(1, 21)]
    running = [ordinary(f"r{k}", f"n{k}", 4) for k in range(1, 21)]
    jobs = [
        replace(gpu_job(str(k), 2, priority=-k), time_limit_s=600.0 + 60.0 * k)
        for k in range(1, 31)
    ]
    draft = _given_back(hosts, [*running, *jobs])
    assert len(draft.refused) == 30
    assert len(asked) == 20


# ---- from decision to decision ------------------------------------------------------------


def test_gpus_given_back_are_not_asked_for_again_until_the_job_has_them() -> None:
    fold = Fold(settings=replace(SETTINGS, idle_confirmations=1))
    trainers = [gpu_trainer("t1")]
    running_job = ordinary("1", "n1", 2)
    full = snapshot([gpu_host("n1", ordinary=2, ours=2)], [running_job, *_ours("n1/0", "n1/1")])
    pilots = [part_pilot("n1/0"), part_pilot("n1/1")]
    assert not fold.decide(full, pilots, trainers).releases
    waits = snapshot(
        full.nodes or (), [running_job, *_ours("n1/0", "n1/1"), gpu_job("7", 1)], at_s=T0 + 1
    )
    (release,) = fold.decide(waits, pilots, trainers, at_s=T0 + 1).releases
    left = [pilot for pilot in pilots if pilot.pilot_id != release.pilot_id]
    stays = left[0].node
    freed = snapshot(
        [gpu_host("n1", ordinary=2, ours=1)],
        [running_job, *_ours(stays), gpu_job("7", 1)],
        at_s=T0 + 2,
    )
    plan = fold.decide(freed, left, trainers, at_s=T0 + 2)
    assert not plan.claims
    assert not plan.releases
    starts = replace(gpu_job("7", 1), state=JobState.RUNNING, nodes=("n1",), start_s=T0 + 3)
    taken = snapshot(
        [gpu_host("n1", ordinary=3, ours=1)], [running_job, starts, *_ours(stays)], at_s=T0 + 4
    )
    plan = fold.decide(taken, left, trainers, at_s=T0 + 4)
    assert not plan.claims
    assert not fold.memory.held_off


@pytest.mark.parametrize("cpus", [8, 10])
def test_while_their_host_completes_gpus_given_back_are_for_the_job(cpus: int) -> None:
    """The announced job gets no others when it is shown, whether or not it needs more CPUs."""
    fold = Fold(settings=replace(SETTINGS, idle_confirmations=1))
    trainers = [gpu_trainer("t1")]
    names = ["n1/0", "n1/1", "n1/2", "n1/3"]
    host, pilots = gpu_host("n1", ours=4), [part_pilot(name) for name in names]
    assert not fold.decide(snapshot([host], _ours(*names)), pilots, trainers).releases
    announced = replace(gpu_job("announced-1", 2), can_share=False, cpus_per_node=0, memory_mb=0)
    seen = snapshot([host], [*_ours(*names), announced], at_s=T0 + 1)
    gone = {release.node for release in fold.decide(seen, pilots, trainers, at_s=T0 + 1).releases}
    assert len(gone) == 2
    left = [pilot for pilot in pilots if pilot.node not in gone]
    completes = replace(host, state=NodeState.COMPLETING, left=None)
    job = replace(gpu_job("7", 2), cpus_per_node=cpus)
    stay = _ours(*[pilot.node for pilot in left])
    seen = snapshot([completes], [*stay, job], at_s=T0 + 2)
    plan = fold.decide(seen, left, trainers, at_s=T0 + 2)
    assert not plan.releases
    assert not plan.claims
    assert set(fold.memory.held_off) == gone


def test_free_gpus_of_used_and_unused_hosts_are_claimed_each_with_its_part() -> None:
    fold = Fold(settings=SETTINGS)
    seen = snapshot([gpu_host("n1", ordinary=3), gpu_host("n2")], [ordinary("1", "n1", 3)])
    plan = fold.decide(seen, (), [gpu_trainer("t1")])
    assert {claim.node for claim in plan.claims} == {"n1/0", "n2/0", "n2/1", "n2/2", "n2/3"}
    assert {claim.part for claim in plan.claims} == {part(claim.node) for claim in plan.claims}


def test_a_pilot_that_waits_keeps_its_part() -> None:
    fold = Fold(settings=SETTINGS, memory=Memory(assignment={"n1/0": "t1"}))
    seen = snapshot(
        [gpu_host("n1", ordinary=3)],
        [ordinary("1", "n1", 3), pilot_job("n1/0", JobState.PENDING)],
    )
    waiting = part_pilot("n1/0", is_held=False)
    plan = fold.decide(seen, [waiting], [gpu_trainer("t1")])
    assert (plan.claims, plan.releases) == ((), ())
    assert plan.assignment == {"n1/0": "t1"}


def test_a_look_while_a_pilot_completes_takes_no_more_and_claims_nothing() -> None:
    """n2 of the guide: one part was given back; the look met its pilot on its way out."""
    fold = Fold(settings=SETTINGS)
    names = ["n2/0", "n2/1", "n2/2"]
    pilots = [part_pilot(name) for name in names]
    trainers = [gpu_trainer("t1")]
    seen = snapshot([gpu_host("n2", ours=3)], [*_ours(*names), gpu_job("7", 2)])
    (release,) = fold.decide(seen, pilots, trainers).releases
    leaving = [
        replace(pilot, is_leaving=pilot.pilot_id == release.pilot_id, is_held=False)
        if pilot.pilot_id == release.pilot_id
        else pilot
        for pilot in pilots
    ]
    jobs = [
        pilot_job(name, JobState.COMPLETING if name == release.node else JobState.RUNNING)
        for name in names
    ]
    host = gpu_host("n2", ours=3, state=NodeState.COMPLETING)
    ends = snapshot([host], [*jobs, gpu_job("7", 2)], at_s=T0 + 1)
    plan = fold.decide(ends, leaving, trainers, at_s=T0 + 1)
    assert (plan.releases, plan.claims) == ((), ())


def test_a_name_given_back_is_remembered_while_the_host_completes() -> None:
    host = gpu_host("n1", ordinary=3, state=NodeState.COMPLETING)
    (node,) = parts_of(host, (), ("n1/2",)).nodes
    assert (node.name, node.state) == ("n1/2", NodeState.IDLE)
    (_, new) = parts_of(gpu_host("n1", ordinary=2, state=NodeState.COMPLETING), (), ("n1/2",)).nodes
    assert new.state is NodeState.COMPLETING


# ---- units of several GPUs ----------------------------------------------------------------


def test_gpus_that_are_asked_for_together_are_one_pilot() -> None:
    fold = Fold(settings=SETTINGS)
    seen = snapshot([gpu_host("n1", ordinary=1), gpu_host("n2")], [ordinary("1", "n1", 1)])
    plan = fold.decide(seen, (), [gpu_trainer("t1", per_unit=2)])
    assert sorted(claim.node.partition("/")[0] for claim in plan.claims) == ["n1", "n2", "n2"]
    assert {claim.part.gpus for claim in plan.claims if claim.part} == {2}
    assert {claim.part.cores for claim in plan.claims if claim.part} == {8}
    assert set(plan.assignment) == {claim.node for claim in plan.claims}


def test_a_unit_that_its_pilot_holds_stays_as_it_is() -> None:
    fold = Fold(settings=SETTINGS, memory=Memory(assignment={"n1/0": "t1"}))
    unit = replace(part_pilot("n1/0"), part=part("n1/0", gpus=2))
    seen = snapshot([gpu_host("n1", ours=2)], _ours("n1/0"))
    trainers = [gpu_trainer("t1", per_unit=2), gpu_trainer("t2", n_max=16)]
    plan = fold.decide(seen, [unit], trainers, training={"n1/0": "t1"})
    assert plan.assignment["n1/0"] == "t1"
    assert not plan.releases
    assert len(plan.claims) in {1, 2}  # the other two GPUs: one unit of t1, or two of t2


def test_an_answer_that_is_never_settled_leaves_no_single_gpu_to_a_trainer_of_units(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(allocation, "MOST_CARVINGS", 0)
    seen = snapshot([gpu_host("n1")])
    plan = Fold(settings=SETTINGS).decide(seen, (), [gpu_trainer("t1", per_unit=2)])
    assert (plan.claims, dict(plan.assignment)) == ((), {})


def test_all_gpus_of_a_unit_that_was_given_back_are_held_off() -> None:
    fold = Fold(settings=SETTINGS, memory=Memory(assignment={"n1/0": "t1"}))
    unit = replace(part_pilot("n1/0"), part=part("n1/0", gpus=4))
    trainers = [gpu_trainer("t1", per_unit=4), gpu_trainer("t2")]
    seen = snapshot([gpu_host("n1", ours=4)], [*_ours("n1/0"), gpu_job("7", 2)])
    (release,) = fold.decide(seen, [unit], trainers, training={"n1/0": "t1"}).releases
    assert release.node == "n1/0"
    freed = snapshot([gpu_host("n1")], [gpu_job("7", 2)], at_s=T0 + 1)
    plan = fold.decide(freed, (), trainers, at_s=T0 + 1)
    assert not plan.claims


def test_who_asks_for_nodes_gets_hosts_that_nobody_uses() -> None:
    fold = Fold(settings=SETTINGS)
    seen = snapshot([gpu_host("n1", ordinary=1), gpu_host("n2")], [ordinary("1", "n1", 1)])
    plan = fold.decide(seen, (), [gpu_trainer("t1", per_unit=0)])
    assert [(claim.node, claim.part) for claim in plan.claims] == [("n2", None)]


def test_leftovers_are_filled_before_a_host_is_broken() -> None:
    """A trainer of nodes and one of GPUs: the host that nobody uses stays whole."""
    fold = Fold(settings=SETTINGS)
    seen = snapshot([gpu_host("n1", ordinary=2), gpu_host("n2")], [ordinary("1", "n1", 2)])
    trainers = [gpu_trainer("t1", n_max=2), gpu_trainer("t2", per_unit=0)]
    plan = fold.decide(seen, (), trainers)
    assert plan.assignment == {"n1/0": "t1", "n1/1": "t1", "n2": "t2"}


def _ours(*names: str) -> list[Job]:
    return [pilot_job(name) for name in names]


@pytest.mark.parametrize(
    ("n_nodes_max", "hosts"),
    [(None, 1), (2, 2), (3, 3), (9, 3)],
)
def test_a_job_of_one_to_three_nodes_gets_as_many_as_it_would_begin_on(
    n_nodes_max: int | None, hosts: int
) -> None:
    """Without our pilots all three hosts were free, and Slurm would begin it on three."""
    names = [f"n{number}/{gpu}" for number in (1, 2, 3) for gpu in (0, 1)]
    shared = [gpu_host(f"n{number}", ours=2) for number in (1, 2, 3)]
    job = replace(exclusive_job("7", n_nodes=1), n_nodes_max=n_nodes_max)
    released = _released(_given_back(shared, [job], *names))["7"]
    assert len({name.partition("/")[0] for name in released}) == hosts
    assert len(released) == 2 * hosts
