"""Which pending jobs could start now, on what, and why not."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest

from bftrainer.decide.queue.matching import Matching
from bftrainer.model.cluster import Job, Node, NodeLeft, NodeState, Partition, Reservation, meets
from bftrainer.model.hostlist import ParseError
from bftrainer.model.node_sets import NodeSets, first
from bftrainer.model.queue import NodeDemand
from slurm_plugins.fields import ways_of
from tests.support.snapshots import T0, given_back, held, node, pending, snapshot

FREE, OURS = NodeState.IDLE, NodeState.ALLOCATED


class Answer(enum.Enum):
    """What becomes of a job."""

    STARTS_ON_FREE = enum.auto()
    NEEDS = enum.auto()  # nodes of ours
    CANNOT = enum.auto()


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The same, with what goes for it."""

    answer: Answer
    n_ours: int
    why: str


def host(name: str, **changes: Any) -> Node:
    """A node with 4 processors and 4000 MB; ours unless a state says otherwise."""
    made = Node(name=name, state=OURS, cpus=4, memory_mb=4000, partitions=("batch",))
    return replace(made, **changes)


def verdicts(
    nodes: Sequence[Node],
    jobs: Sequence[Job],
    *,
    ours: Sequence[str] | None = None,
    partitions: Sequence[Partition] = (),
    reservations: Sequence[Reservation] = (),
    others: Sequence[Job] = (),
    slot_s: float = 0.0,
) -> dict[str, Verdict]:
    """Judge; by default every allocated node of which nothing is left is ours."""
    if ours is None:
        ours = [n.name for n in nodes if n.state is OURS and n.left is None]
    seen = replace(
        snapshot(nodes, [*jobs, *others], reservations=reservations),
        partitions=tuple(partitions),
        plan_resolution_s=slot_s,
    )
    draft = given_back(seen, held(*ours))
    gone = Counter(release.for_job for release in draft.releases)
    assert gone.keys().isdisjoint(draft.refused)
    return {j.job_id: _verdict(gone[j.job_id], draft.refused.get(j.job_id, "")) for j in jobs}


def _verdict(n_ours: int, why: str) -> Verdict:
    answer = Answer.NEEDS if n_ours else Answer.CANNOT if why else Answer.STARTS_ON_FREE
    return Verdict(answer=answer, n_ours=n_ours, why=why)


def answer(nodes: Sequence[Node], job: Job, **site: Any) -> tuple[Answer, int]:
    found = verdicts(nodes, [job], **site)[job.job_id]
    assert found.why == "" or found.why.endswith(".")
    return found.answer, found.n_ours


FOUR = [host(f"n{k}") for k in range(1, 5)]


# ---- sizes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asks", "expected"),
    [
        ({"n_nodes": 4}, (Answer.NEEDS, 4)),
        ({"n_nodes": 5}, (Answer.CANNOT, 0)),
        ({"n_nodes_max": 3}, (Answer.NEEDS, 3)),  # it would have had three without us
        ({"n_nodes_max": 9}, (Answer.NEEDS, 4)),
        ({"cpus": 9}, (Answer.NEEDS, 3)),
        ({"cpus": 17}, (Answer.CANNOT, 0)),
        ({"cpus": 2, "n_nodes": 2}, (Answer.NEEDS, 2)),
        ({"cpus_per_node": 5}, (Answer.CANNOT, 0)),
        ({"memory_mb": 4001}, (Answer.CANNOT, 0)),
        ({"cpus": 8, "memory_per_cpu_mb": 1000}, (Answer.NEEDS, 2)),
        ({"cpus": 4, "memory_per_cpu_mb": 2000}, (Answer.NEEDS, 2)),
        ({"gpus": 1}, (Answer.CANNOT, 0)),
    ],
    ids=str,
)
def test_sizes(asks: dict[str, Any], expected: tuple[Answer, int]) -> None:
    assert answer(FOUR, replace(pending("7", 1), **asks)) == expected


def test_gpus_in_all_are_shared_out_evenly() -> None:
    nodes = [host("n1", gpus=4), host("n2", gpus=4), host("n3", gpus=2), host("n4", state=FREE)]
    assert answer(nodes, replace(pending("7", 1), gpus=8)) == (Answer.NEEDS, 2)
    assert answer(nodes, replace(pending("7", 1), gpus=6)) == (Answer.NEEDS, 2)
    # Two each on three nodes: what is there is enough, so that it is not left to chance.
    assert answer(nodes, replace(pending("7", 3), gpus=6)) == (Answer.NEEDS, 3)
    assert answer(nodes, replace(pending("7", 1), gpus=12)) == (Answer.CANNOT, 0)


@pytest.mark.parametrize(
    ("gpus", "per_gpu_mb", "expected"),
    [
        (4, 1000, (Answer.NEEDS, 1)),
        (4, 2000, (Answer.NEEDS, 2)),
        (2, 4000, (Answer.NEEDS, 2)),
        (1, 4001, (Answer.CANNOT, 0)),
    ],
)
def test_memory_per_gpu_takes_more_nodes(
    gpus: int, per_gpu_mb: int, expected: tuple[Answer, int]
) -> None:
    nodes = [host("n1", gpus=4), host("n2", gpus=4)]
    job = replace(pending("7", 1), gpus=gpus, memory_per_gpu_mb=per_gpu_mb)
    assert answer(nodes, job) == expected


def test_free_nodes_are_taken_first() -> None:
    nodes = [host("n1", state=FREE), host("n2"), host("n3", state=FREE), host("n4")]
    assert answer(nodes, pending("7", 2)) == (Answer.STARTS_ON_FREE, 0)
    assert answer(nodes, pending("7", 3)) == (Answer.NEEDS, 1)


# ---- which nodes -----------------------------------------------------------------------


def test_named_nodes_are_all_needed_and_filled_up_with_others() -> None:
    nodes = [host("n1", state=FREE), host("n2", state=FREE), host("n3"), host("n4")]
    assert answer(nodes, pending("7", 2, required=("n3",))) == (Answer.NEEDS, 1)
    assert answer(nodes, pending("7", 1, required=("n3", "n4"))) == (Answer.NEEDS, 2)
    assert answer(nodes, pending("7", 1, required=("n3", "n9"))) == (Answer.CANNOT, 0)
    busy = [host("n1", state=FREE), host("n2", state=NodeState.COMPLETING)]
    assert answer(busy, pending("7", 1, required=("n2",))) == (Answer.CANNOT, 0)


def test_excluded_nodes_are_no_help() -> None:
    job = replace(pending("7", 2), excluded_nodes=("n1", "n2"))
    nodes = [host("n1", state=FREE), host("n2"), host("n3"), host("n4")]
    assert answer(nodes, job) == (Answer.NEEDS, 2)
    assert answer(nodes[:3], job) == (Answer.CANNOT, 0)


@pytest.mark.parametrize(
    ("expression", "n_nodes", "n_ours"),
    [
        ("a", 2, 2),
        ("a&b", 1, 1),
        ("a|c", 3, 3),
        ("(a|c)&b", 2, 2),
        ("c&b|a", 3, 3),  # either reading of it counts
        ("[a|c]", 2, 2),
        ("b&[a|c]", 1, 1),
        ("a*2", 3, 3),
        ("[a*1&c*1]", 2, 2),
        ("[(a&b)*1&c*1]", 2, 2),
    ],
)
def test_constraints_we_understand(expression: str, n_nodes: int, n_ours: int) -> None:
    nodes = [
        host("n1", features=("a", "b")),
        host("n2", features=("a",)),
        host("n3", features=("b", "c")),
        host("n4", features=("d",), state=FREE),
    ]
    found = answer(nodes, pending("7", n_nodes, features=expression))
    n_free = 1 if expression == "a*2" else 0  # one of the three may be any
    assert found == (Answer.NEEDS, n_ours - n_free)


@pytest.mark.parametrize(
    ("expression", "n_nodes"),
    [("x", 1), ("a&d", 1), ("[a|c]", 3), ("a*3", 3), ("[a*2&c*2]", 4), ("b&[c*1&d*1]", 2)],
)
def test_constraints_that_cannot_be_met(expression: str, n_nodes: int) -> None:
    nodes = [
        host("n1", features=("a", "b")),
        host("n2", features=("a",)),
        host("n3", features=("b", "c")),
        host("n4", features=("d",)),
    ]
    assert answer(nodes, pending("7", n_nodes, features=expression)) == (Answer.CANNOT, 0)


@pytest.mark.parametrize(
    "expression", ["[a*2&(b*2|c)]", "a!b", "[a|b*2]", "[[a]]", "(a", "a&", "[a]b", "a*2&b*2", "%"]
)
def test_a_constraint_beyond_us_is_none(expression: str) -> None:
    with pytest.raises(ParseError):
        ways_of(expression)


def test_spaces_and_nothing_in_a_constraint() -> None:
    (way,) = ways_of(" a & b ")
    assert meets(("a", "b", "c"), way.everywhere)
    assert not meets(("a",), way.everywhere)
    assert ways_of("") == ways_of("(null)") == ()


def test_what_it_wants_beyond_that_is_no_condition() -> None:
    job = replace(pending("7", 2), unclear="contiguous nodes")
    assert answer(FOUR, job) == (Answer.NEEDS, 2)


# ---- partitions and reservations ---------------------------------------------------------


@pytest.mark.parametrize(
    ("allows", "reason", "is_refused"),
    [
        ({}, "", False),
        ({"can_start": False}, "", True),
        ({"can_start": False}, "Resources", True),
        ({"time_limit_s": 599.0}, "", True),
        ({"time_limit_s": 599.0}, "Resources", False),  # a QOS may allow it: it is in line
        ({"time_limit_s": 600.0}, "", False),
        ({"n_nodes_max": 1}, "", True),
        ({"n_nodes_max": 2}, "", False),
    ],
    ids=str,
)
def test_limits_of_a_partition(allows: dict[str, Any], reason: str, *, is_refused: bool) -> None:
    job = pending("7", 2, limit_s=600.0, reason=reason)
    found = answer(FOUR, job, partitions=[Partition(name="batch", **allows)])
    assert found == ((Answer.CANNOT, 0) if is_refused else (Answer.NEEDS, 2))


def test_of_several_partitions_the_one_that_is_free_and_never_both() -> None:
    nodes = [
        host("n1", partitions=("batch",)),
        host("n2", partitions=("batch",)),
        host("n3", partitions=("short",), state=FREE),
        host("n4", partitions=("short",)),
    ]
    job = pending("7", 1, partition="batch,short")
    assert answer(nodes, job) == (Answer.STARTS_ON_FREE, 0)
    assert answer(nodes, replace(job, n_nodes=2)) == (Answer.NEEDS, 1)
    assert answer(nodes, replace(job, n_nodes=3)) == (Answer.CANNOT, 0)
    down = [Partition(name="short", can_start=False), Partition(name="batch")]
    assert answer(nodes, job, partitions=down) == (Answer.NEEDS, 1)


@pytest.mark.parametrize(
    ("limit_s", "shortest_s", "expected"),
    [
        (600.0, None, (Answer.STARTS_ON_FREE, 0)),
        (601.0, None, (Answer.CANNOT, 0)),
        (9000.0, 600.0, (Answer.STARTS_ON_FREE, 0)),  # --time-min
        (None, None, (Answer.STARTS_ON_FREE, 0)),  # its limit is not known: in doubt, it fits
    ],
)
def test_a_job_is_over_before_a_reservation_begins(
    limit_s: float | None, shortest_s: float | None, expected: tuple[Answer, int]
) -> None:
    maintenance = Reservation(name="m", start_s=T0 + 600, end_s=T0 + 900, nodes=("n1",))
    job = replace(pending("7", 1, limit_s=limit_s), time_limit_min_s=shortest_s)
    assert answer([host("n1", state=FREE)], job, reservations=[maintenance]) == expected
    # Without one of its own, the partition's limit is the job's.
    if limit_s is None:
        batch = Partition(name="batch", time_limit_s=601.0)
        found = answer(
            [host("n1", state=FREE)], job, reservations=[maintenance], partitions=[batch]
        )
        assert found == (Answer.CANNOT, 0)


def test_a_job_of_a_reservation_starts_on_its_nodes_only() -> None:
    mine = Reservation(name="r", start_s=T0 - 1, end_s=T0 + 900, nodes=("n2",))
    job = replace(pending("7", 1, limit_s=60.0), reservations=("r",))
    nodes = [host("n1", state=FREE), host("n2")]
    assert answer(nodes, job, reservations=[mine]) == (Answer.NEEDS, 1)
    assert answer(nodes, replace(job, reservations=()), reservations=[mine]) == (
        Answer.STARTS_ON_FREE,
        0,
    )


# ---- why it waits ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "can_start"),
    [
        ({}, True),
        ({"is_entitled": False}, False),
        ({"begin_s": T0 + 1}, False),
        ({"begin_s": T0}, True),
    ],
    ids=str,
)
def test_what_the_batch_system_does_not_start(changes: dict[str, Any], *, can_start: bool) -> None:
    job = replace(pending("7", 1, reason="Why"), **changes)
    assert answer(FOUR, job) == ((Answer.NEEDS, 1) if can_start else (Answer.CANNOT, 0))


def test_why_a_job_is_not_started_is_said_in_the_batch_systems_words() -> None:
    job = replace(pending("7", 1, reason="Dependency", is_entitled=False), waits_for="afterok:6")
    [found] = verdicts(FOUR, [job]).values()
    assert "Dependency (afterok:6)" in found.why


# ---- jobs that start together ------------------------------------------------------------


def parts(*jobs: Job) -> list[Job]:
    as_one = partial(replace, family="50", together="50")
    return [as_one(job, job_id=f"50+{k}") for k, job in enumerate(jobs)]


@pytest.mark.parametrize(
    ("jobs", "n_ours"),
    [
        (parts(pending("", 3), pending("", 3)), 0),
        (parts(pending("", 1), pending("", 3)), 4),
        (parts(pending("", 1), pending("", 1, is_entitled=False)), 0),
        (parts(pending("", 1, required=("n2",)), pending("", 1, required=("n2",))), 0),
        (parts(pending("", 1), pending("", 1, required=("n1",))), 2),
        (parts(pending("", 1), pending("", 1, partition="none")), 0),
        (parts(pending("", 5)), 0),
        (parts(pending("", 3)), 3),
    ],
    ids=str,
)
def test_jobs_that_start_together_get_all_or_nothing(jobs: list[Job], n_ours: int) -> None:
    for queue in (jobs, jobs[::-1]):
        found = verdicts(FOUR, queue)
        assert [found[job.job_id].n_ours for job in jobs if job.job_id != "50+0"] == [0] * (
            len(jobs) - 1
        )
        assert found["50+0"].n_ours == n_ours
        assert (found["50+0"].answer is Answer.NEEDS) == bool(n_ours)


def test_the_longest_of_them_counts() -> None:
    soon = Reservation(name="r", start_s=T0 + 100, end_s=T0 + 200, nodes=("n5",))
    blocked = pending("7", 5, start_s=T0 + 100, planned=tuple(n.name for n in FOUR))
    for limit_s, expected in ((190.0, Answer.NEEDS), (210.0, Answer.CANNOT)):
        both = parts(pending("", 1, limit_s=10.0), pending("", 1, limit_s=limit_s))
        found = verdicts([*FOUR, host("n5", state=FREE)], [blocked, *both], reservations=[soon])
        assert found["50+0"].answer is expected


# ---- jobs that share a node --------------------------------------------------------------


def sharing(
    job_id: str, cpus: int, memory_mb: int = 100, *, gpus: int = 0, n_nodes: int = 1
) -> Job:
    return replace(
        pending(job_id, n_nodes),
        cpus=cpus,
        memory_mb=memory_mb,
        gpus_per_node=gpus,
        can_share=True,
    )


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (sharing("7", 2), (Answer.STARTS_ON_FREE, 0)),
        (sharing("7", 3), (Answer.NEEDS, 1)),
        (sharing("7", 2, 501), (Answer.NEEDS, 1)),
        (sharing("7", 1, gpus=1), (Answer.STARTS_ON_FREE, 0)),
        (sharing("7", 1, gpus=2), (Answer.NEEDS, 1)),
        (replace(sharing("7", 1), can_share=False), (Answer.NEEDS, 1)),
        (replace(sharing("7", 1), excluded_nodes=("n1",)), (Answer.NEEDS, 1)),
        (sharing("7", 4, n_nodes=2), (Answer.NEEDS, 1)),  # one part of it on a node in use
    ],
    ids=str,
)
def test_a_node_in_use_in_part(job: Job, expected: tuple[Answer, int]) -> None:
    part = NodeLeft(cpus=2, memory_mb=500, gpus=1)
    nodes = [host("n1", gpus=4, left=part), host("n2", gpus=4), host("n3", gpus=4)]
    assert answer(nodes, job) == expected


def test_an_exclusive_partition_shares_nothing() -> None:
    nodes = [host("n1", left=NodeLeft(cpus=2, memory_mb=500)), host("n2")]
    batch = Partition(name="batch", is_exclusive=True)
    assert answer(nodes, sharing("7", 1), partitions=[batch]) == (Answer.NEEDS, 1)


def test_small_jobs_share_one_node_of_ours() -> None:
    jobs = [sharing(str(k), 1) for k in range(6)]
    found = [v.n_ours for v in verdicts(FOUR, jobs).values()]
    assert found == [1, 0, 0, 0, 1, 0]
    by_memory = [sharing(str(k), 1, 2000) for k in range(4)]
    assert [v.n_ours for v in verdicts(FOUR, by_memory).values()] == [1, 0, 1, 0]


def test_a_room_in_doubt_is_none() -> None:
    """The first job may get any of our nodes; the second wants one of them."""
    nodes = [host("n1", features=("a",)), host("n2", features=("b",))]
    picky = replace(sharing("8", 1), wants=ways_of("b"))
    found = [v.n_ours for v in verdicts(nodes, [sharing("7", 1), picky]).values()]
    assert found == [1, 1]
    found = [v.n_ours for v in verdicts(nodes, [picky, sharing("9", 1)]).values()]
    assert found == [1, 0]


def test_parts_of_one_job_are_on_different_nodes() -> None:
    nodes = [host("n1", left=NodeLeft(cpus=2, memory_mb=500)), host("n2")]
    assert answer(nodes, sharing("7", 2, n_nodes=2)) == (Answer.NEEDS, 1)
    assert answer(nodes[:1], sharing("7", 2, n_nodes=2)) == (Answer.CANNOT, 0)


# ---- the queue ---------------------------------------------------------------------------


def test_jobs_whose_choices_overlap_move_up() -> None:
    nodes = [node("n1", OURS, features=("a",)), node("n2", FREE, features=("a", "b"))]
    jobs = [pending("7", 1), pending("8", 1, features="b")]
    found = verdicts(nodes, jobs)
    assert Answer.CANNOT not in {v.answer for v in found.values()}
    assert sum(v.n_ours for v in found.values()) == 1


def test_every_blocked_job_keeps_its_plan() -> None:
    nodes = [host(f"n{k}") for k in range(1, 4)]
    first_one = pending("7", 9, start_s=T0 + 1000, planned=("n1",))
    second = pending("8", 9, start_s=T0 + 500, planned=("n2",))
    jobs = [first_one, second, pending("9", 3, limit_s=600.0), pending("10", 2, limit_s=600.0)]
    found = verdicts(nodes, jobs)
    assert [v.answer for v in found.values()] == [Answer.CANNOT] * 3 + [Answer.NEEDS]
    late = [replace(second, start_s=T0 - 5), pending("9", 3, limit_s=600.0)]
    assert verdicts(nodes, late)["9"].answer is Answer.NEEDS  # that plan is out of date


@pytest.mark.parametrize(("beyond_s", "expected"), [(0.0, Answer.NEEDS), (1.0, Answer.CANNOT)])
def test_the_slot_in_which_a_planned_job_begins_is_its_own(
    beyond_s: float, expected: Answer
) -> None:
    slot_s = 60.0 * (T0 // 60.0 + 5.0)
    nodes = [*FOUR, host("n5", left=None)]
    blocked = pending("7", 5, start_s=slot_s + 30.0, planned=tuple(n.name for n in nodes))
    later = pending("8", 1, limit_s=slot_s - T0 + beyond_s)
    found = verdicts(nodes, [blocked, later], ours=[n.name for n in FOUR], slot_s=60.0)
    assert [v.answer for v in found.values()] == [Answer.CANNOT, expected]


def test_a_held_job_holds_up_nobody() -> None:
    jobs = [pending("7", 4, is_entitled=False), pending("8", 4)]
    assert verdicts(FOUR, jobs)["8"].answer is Answer.NEEDS


# ---- sets and matchings --------------------------------------------------------------------


def test_sets_of_nodes() -> None:
    sets = NodeSets.of((host("n2"), host("n1"), host("n3", gpus=1)))
    assert [n.name for n in sets.members(sets.named(["n3", "n1", "n9"]))] == ["n1", "n3"]
    assert len(sets.kinds) == 2
    assert sets.where(lambda n: n.gpus > 0) == sets.bit_of["n3"]
    assert first(0b10110, 2) == 0b110
    assert first(0b1, 5) == 0b1
    assert first(0b1, 0) == 0


def test_a_matching_moves_others_through_a_chain() -> None:
    matching = Matching(0b111)
    assert matching.try_add([NodeDemand(0b011, 1)])  # has node 0
    assert matching.try_add([NodeDemand(0b110, 1)])  # has node 1
    assert matching.try_add([NodeDemand(0b001, 1)])  # 0 → 1, 1 → 2
    assert (matching.unused, matching.has) == (0, {0b011: 0b010, 0b110: 0b100, 0b001: 0b001})
    before = dict(matching.has)
    assert not matching.try_add([NodeDemand(0b111, 1)])
    assert (matching.unused, matching.has) == (0, before)


def test_a_demand_that_fails_in_part_leaves_nothing_behind() -> None:
    matching = Matching(0b1111)
    assert not matching.try_add([NodeDemand(0b0011, 2), NodeDemand(0b0001, 1)])
    assert (matching.unused, matching.has) == (0b1111, {})
    assert matching.add_up_to(0b0011, 5) == 2
