"""The canonical encoding: equal values, equal bytes; what goes out comes back."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftrainer.model.canonical import CanonicalError, decode, digest, encode, from_plain, to_plain
from bftrainer.model.cluster import Job, JobState, Node, NodeState, Snapshot
from bftrainer.model.decision import (
    Claim,
    DecisionInput,
    Losses,
    Memory,
    PilotView,
    Plan,
    PoolNode,
    Release,
    Settings,
    VainReleases,
)
from bftrainer.model.trainer import (
    MeasuredCosts,
    TrainerProgress,
    TrainerRecord,
    TrainerSpec,
    TrainerState,
)
from milp.problem import (
    Allocation,
    Curve,
    Marginal,
    Objective,
    Problem,
    ProblemNode,
    ProblemTrainer,
)
from tests.support.values import snapshots, trainer_records


class Colour(enum.Enum):
    RED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Many:
    flags: frozenset[str] = frozenset()
    by_size: Mapping[int, float] = field(default_factory=dict)
    pair: tuple[str, int] = ("", 0)
    items: list[Leaf] = field(default_factory=list)
    either: int | float | None = None
    choice: Literal["a", "b"] = "a"
    where: Path = Path()
    colour: Colour = Colour.RED
    child: Many | None = None
    free: Any = None


@settings(deadline=None)
@given(snapshots())
def test_a_snapshot_survives_the_round_trip(snapshot: Snapshot) -> None:
    data = encode(snapshot)
    back = decode(data, Snapshot)
    assert back == snapshot
    assert encode(back) == data


@settings(deadline=None)
@given(trainer_records())
def test_a_trainer_survives_the_round_trip(record: TrainerRecord) -> None:
    data = encode(record)
    back = decode(data, TrainerRecord)
    assert back == record
    assert encode(back) == data
    assert json.loads(data)["type"] == "TrainerRecord"


def test_a_problem_and_its_answer_survive_the_round_trip() -> None:
    problem = Problem(
        nodes=(ProblemNode(name="n1", expected_remaining_s=3.5), ProblemNode(name="n2")),
        trainers=(
            ProblemTrainer(
                trainer_id="t1",
                n_min=1,
                n_max=2,
                curve=Curve(sizes=(1, 2), samples_per_s=(10.0, 19.5)),
                rescale_up_s=0.5,
                rescale_down_s=0.2,
                current=("n1",),
            ),
        ),
        t_fwd_s=120.0,
        p_jmax=10,
        objective=Objective.WEIGHTED,
    )
    answer = Allocation(
        assignment={"n2": "t1", "n1": "t1"},
        objective=1 / 3,
        node_price=0.0,
        marginals={"t1": Marginal(gain_of_one_more=None, loss_of_one_fewer=0.1)},
    )
    assert decode(encode(problem), Problem) == problem
    assert decode(encode(answer), Allocation) == answer


@settings(deadline=None)
@given(snapshots(), st.lists(trainer_records(), max_size=2).map(tuple))
def test_a_decision_and_its_input_survive_the_round_trip(
    snapshot: Snapshot, trainers: tuple[TrainerRecord, ...]
) -> None:
    memory = Memory(
        assignment={"n1": "t1"},
        idle_seen={"n2": 2},
        held_off={"n3": 5.0},
        cycles=(3.0, 4.0),
        vain={"77": VainReleases(job_id="77_1", times=2, refused_s=4.0)},
    )
    given_input = DecisionInput(
        now_s=7.0,
        snapshot=snapshot,
        is_new_snapshot=True,
        pilots=(PilotView(pilot_id="p000001", node="n1", requested_s=1.0, is_held=True),),
        trainers=trainers,
        settings=Settings(),
        memory=memory,
    )
    plan = Plan(
        assignment={"n1": "t1"},
        claims=(Claim(node="n2", time_limit_s=60.0, for_trainer="t1"),),
        releases=(Release(pilot_id="p000001", node="n1", reason="r"),),
        pool=(PoolNode(name="n1", node_type="gpu", gpus=4, usable_until_s=None),),
        not_used={"n3": "Held off."},
        reserve=("n4",),
        allocation=Allocation(assignment={"n1": "t1"}, objective=1.5, node_price=0.25),
        memory=memory,
    )
    assert decode(encode(given_input), DecisionInput) == given_input
    assert decode(encode(plan), Plan) == plan


@settings(deadline=None)
@given(
    st.builds(
        Many,
        flags=st.frozensets(st.text(max_size=3)),
        by_size=st.dictionaries(st.integers(), st.floats(allow_nan=False, allow_infinity=False)),
        pair=st.tuples(st.text(), st.integers()),
        items=st.lists(st.builds(Leaf, n=st.integers())),
        either=st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
        choice=st.sampled_from(["a", "b"]),
        where=st.sampled_from([Path("/a/b"), Path("c")]),
        child=st.none() | st.builds(Many, pair=st.tuples(st.text(), st.integers())),
    )
)
def test_every_kind_of_field_survives_the_round_trip(value: Many) -> None:
    assert decode(encode(value), Many) == value


@settings(deadline=None)
@given(st.dictionaries(st.text(), st.integers()))
def test_equal_mappings_have_equal_bytes_whatever_their_order(value: dict[str, int]) -> None:
    assert encode(dict(reversed(value.items()))) == encode(value)


def test_equal_values_have_equal_bytes() -> None:
    whole = Curve(sizes=(1,), samples_per_s=(10.0,))
    assert encode(dataclasses.replace(whole, samples_per_s=(10,))) == encode(whole)
    assert encode(Many(by_size={1: -0.0})) == encode(Many(by_size={1: 0.0}))
    assert digest(Many(flags=frozenset("abc"))) == digest(Many(flags=frozenset("cba")))


def test_the_form_itself_is_pinned() -> None:
    node = Node(name="n1", state=NodeState.IDLE, features=("a",))
    assert encode(node) == (
        b'{"cpus":1,"features":["a"],"gpus":0,"left":null,"memory_mb":0,"name":"n1",'
        b'"node_type":"default","partitions":[],"reason":"","state":"idle","switch":"",'
        b'"type":"Node"}'
    )
    assert encode({"b": 0.1, "a": [None, True, "ä"]}) == b'{"a":[null,true,"\\u00e4"],"b":0.1}'
    assert digest(Leaf(n=1)) == hashlib.sha256(b'{"n":1,"type":"Leaf"}').hexdigest()


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (float("nan"), "The value"),
        ({"a": [1.0, float("inf")]}, "['a'][1]"),
        (Curve(sizes=(1,), samples_per_s=(float("-inf"),)), "Curve.samples_per_s[0]"),
        (Curve(sizes=(1.5,), samples_per_s=(1.0,)), "Curve.sizes[0]"),  # type: ignore[arg-type]  # wrong on purpose
        (Leaf(n=True), "Leaf.n"),
        (Many(by_size={1: 2**53 + 1}), "Many.by_size[1]"),
        (Many(child=Many(pair=("a",))), "Many.child.pair"),  # type: ignore[arg-type]  # wrong on purpose
        (Many(either="no"), "Many.either"),  # type: ignore[arg-type]  # wrong on purpose
        (object(), "The value"),
        ({"a": b"bytes"}, "['a']"),
        ({1: "a", "1": "b"}, "The value"),
        ({None: 1}, "The value"),
    ],
)
def test_what_has_no_canonical_form_is_refused_with_its_place(value: object, where: str) -> None:
    with pytest.raises(CanonicalError) as caught:
        encode(value)
    assert caught.value.code == "BFT-2220"
    assert caught.value.cause.startswith(f"{where}: ")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"n":1,"n":2,"type":"Leaf"}',
        b'{"n":NaN,"type":"Leaf"}',
        b'{"n":1}',
        b'{"n":1,"type":"Node"}',
        b'{"type":"Leaf"}',
        b'{"n":1,"more":1,"type":"Leaf"}',
        b'{"n":1.0,"type":"Leaf"}',
        b'{"n":true,"type":"Leaf"}',
        b'{"n":"1","type":"Leaf"}',
        b"[]",
        b"null",
    ],
)
def test_bytes_that_are_not_the_class_are_refused(data: bytes) -> None:
    with pytest.raises(CanonicalError):
        decode(data, Leaf)


def test_an_unknown_enum_value_is_refused() -> None:
    plain = to_plain(Node(name="n1", state=NodeState.IDLE))
    plain["state"] = "asleep"
    with pytest.raises(CanonicalError, match=r"Node\.state: must be one of idle, .*, not 'asleep'"):
        from_plain(plain, Node)


def test_a_missing_field_takes_its_default_so_old_entries_stay_readable() -> None:
    assert decode(b'{"name":"n1","state":"idle","type":"Node"}', Node) == Node(
        name="n1", state=NodeState.IDLE
    )


def test_numbers_from_numpy_are_written_as_python_numbers() -> None:
    np = pytest.importorskip("numpy")
    leaf = Leaf(n=np.int64(7))
    assert encode(leaf) == encode(Leaf(n=7))
    assert encode({"x": np.float64(0.1)}) == b'{"x":0.1}'


def test_states_in_payloads_are_written_by_value() -> None:
    assert encode([JobState.PENDING, TrainerState.PARKED]) == b'["pending","parked"]'
    job = Job(
        job_id="1",
        user="u",
        partitions=("p",),
        state=JobState.RUNNING,
        n_nodes=1,
        time_limit_s=None,
    )
    assert json.loads(encode({"job": job}))["job"]["type"] == "Job"


def test_a_class_checks_its_own_values_when_decoded() -> None:
    record = TrainerRecord(
        trainer_id="t1",
        spec=TrainerSpec(name="a", user="u", script="/s.py"),
        state=TrainerState.QUEUED,
        submitted_s=1.0,
        progress=TrainerProgress(),
        costs=MeasuredCosts(samples_per_s_by_size=((1, 2.0),)),
    )
    plain = to_plain(record)
    plain["costs"]["samples_per_s_by_size"] = [[1, 2.0, 3.0]]
    where = r"TrainerRecord\.costs\.samples_per_s_by_size\[0\]"
    with pytest.raises(CanonicalError, match=f"{where}: must have 2 items, not 3"):
        from_plain(plain, TrainerRecord)


def test_later_fields_are_where_the_release_before_looks_for_nothing() -> None:
    """It ignores the names of fields that it once had, and refuses all others that it lacks."""
    learnt = Losses(run_node_s=5.0, life_node_s=90.0, count=7)
    memory = Memory(assignment={"n1": "t1"}, losses=learnt)
    plain = to_plain(memory)
    assert "losses" not in plain
    assert plain["joins"]["losses"]["count"] == 7
    assert from_plain(plain, Memory) == memory
    settings = to_plain(Settings(expects_losses=True))
    assert "expects_losses" not in settings
    assert from_plain(settings, Settings) == Settings(expects_losses=True)


def test_what_such_a_name_held_in_earlier_releases_is_ignored() -> None:
    plain = to_plain(Memory(assignment={"n1": "t1"}))
    assert "joins" not in plain
    earlier = {**plain, "joins": {"n1": {"since_s": 3.0}}}
    assert from_plain(earlier, Memory) == Memory(assignment={"n1": "t1"})
    between = {**plain, "losses": to_plain(Losses(count=3))}  # written where it is read first
    assert from_plain(between, Memory).losses.count == 3
