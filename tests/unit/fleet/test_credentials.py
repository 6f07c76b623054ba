"""What opens one trainer, or was right once, opens no other; nobody raises their own limits."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import fields, replace

import pytest

from bftrainer.api.documents import CodecError, schema
from bftrainer.api.http_messages import read_change
from bftrainer.decide.policies.base import load_policy, policy_names
from bftrainer.elastic.process.store import StoreClient, StoreServer
from bftrainer.fleet.wire.keys import generate_pair
from bftrainer.fleet.wire.peers import (
    Done,
    PassCommit,
    PeerStanding,
    Promise,
    Surveyed,
    SurveyTrainer,
)
from bftrainer.ground.protocol import Commit, Member
from bftrainer.model.trainer import TrainerChange
from tests.support.snapshots import record_of
from tests.unit.decide.test_limits import decided, settings_with
from trainers.agent.peer_recovery import PeerRecovery
from trainers.agent.workers import Workers

A, B, LEFT, GONE = "key of A", "key of B", "key of one that left", "key of an earlier generation"


@pytest.mark.parametrize("token", ["of B", "of A, generation 1", "", "of A, generation 2 "])
def test_a_store_opens_to_the_token_of_its_trainer_and_generation_alone(token: str) -> None:
    server = StoreServer("127.0.0.1")
    server.expect("of A, generation 2")
    try:
        right = StoreClient("127.0.0.1", server.port, "of A, generation 2", 60.0)
        right.set("key", b"value")
        wrong = StoreClient("127.0.0.1", server.port, token, 60.0)
        with pytest.raises(RuntimeError, match="does not answer"):
            wrong.get("key")
        server.expect(token)  # as a late message would
        with pytest.raises(RuntimeError, match="does not answer"):
            StoreClient("127.0.0.1", server.port, token, 60.0).get("key")
        assert right.get("key") == b"value"
        right.close()
    finally:
        server.close()


def commit(generation: int, *keys: str) -> Commit:
    members = tuple(
        Member(worker_id=f"w{rank}", rank=rank, node="n", address="a", agent_public_key=key)
        for rank, key in enumerate(keys)
    )
    where = {"store_host": "", "store_port": 0}
    return Commit(generation=generation, attempt=1, token="", members=members, **where)  # type: ignore[arg-type]


class OneWorker(Workers):
    """An agent's workers: one, of trainer A."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def trainers(self) -> list[str]:
        return ["A"]

    def standings(self, trainer_id: str) -> list[PeerStanding]:
        # It has heard of generation 3, and trains in generation 2, where LEFT was a member.
        heard, entered = commit(3, A), commit(2, A, LEFT)
        one = PeerStanding(worker_id="w0", commit=heard, entered=entered)
        return [one] if trainer_id == "A" else []

    def tell(self, message: object) -> None:
        self.told.append(message)


@pytest.fixture
def workers() -> OneWorker:
    return OneWorker()


@pytest.fixture
def agent(workers: OneWorker) -> PeerRecovery:
    """An agent without a daemon, which would promise and pass commits on."""
    found = PeerRecovery(
        pilot_id="p",
        daemon_endpoint=lambda: "",
        keys=generate_pair(),
        workers=workers,
        silent=lambda _: frozenset(),
        is_up=lambda: False,
        was_in_touch=lambda: True,
    )
    found._is_orphaned = True
    return found


@pytest.mark.parametrize("key", [B, GONE, "", "key of A "])
def test_an_agent_serves_no_peer_of_another_trainer_or_an_earlier_generation(
    agent: PeerRecovery, workers: OneWorker, key: str
) -> None:
    """The handshake lets in whoever was ever in a roster; each question is asked of the newest."""
    questions = (
        SurveyTrainer(trainer_id="A", generation=9, attempt=1),
        Promise(trainer_id="A", worker_id="w0", generation=9, attempt=1),
        PassCommit(trainer_id="A", worker_id="w0", body=commit(9, key)),
    )
    for question in questions:
        assert agent.answer(key, question) == Done(refusal="not a member's agent")
    other = agent.answer(key, SurveyTrainer(trainer_id="B", generation=9, attempt=1))
    assert isinstance(other, Surveyed)
    assert not other.workers
    assert not workers.told


def test_an_agent_serves_the_peers_of_its_newest_rosters(agent: PeerRecovery) -> None:
    """That of the generation it is in, too: its members may not have heard of the next."""
    for key in (A, LEFT):
        found = agent.answer(key, SurveyTrainer(trainer_id="A", generation=2, attempt=1))
        assert isinstance(found, Surveyed)
        assert [one.worker_id for one in found.workers] == ["w0"]


def test_a_user_changes_neither_whose_a_trainer_is_nor_what_it_is_charged_to() -> None:
    """There are no project leaders (CVE-2025-43904): caps and shares are in the policy alone."""
    names = {field.name for field in fields(TrainerChange)}
    assert names == {
        *("is_held", "n_min", "n_max", "sizes", "weight", "name", "budget", "time_limit_s")
    }
    for name in ("user", "account", "priority", "share", "max_nodes_by_user", "qos"):
        body = {"schema": schema("change"), "change": {name: "root"}}
        with pytest.raises(CodecError):
            read_change(json.dumps(body).encode())


@pytest.mark.parametrize("name", [n for n in policy_names() if not n.startswith("example")])
def test_no_weight_lifts_a_cap(name: str) -> None:
    """The greatest weight and size that a user may ask for, under every policy."""
    greedy = [record_of("ann", f"t{j}") for j in range(1, 4)]
    greedy = [
        replace(one, spec=replace(one.spec, weight=1e6, n_max=10, account="x")) for one in greedy
    ]
    trainers = [*greedy, record_of("bob", "t9")]
    settings = settings_with(by_user={"ann": 3}, by_account={"x": 2})
    plan = decided(trainers, settings, load_policy(name))
    whose = {one.trainer_id: one.spec.user for one in trainers}
    assert Counter(whose[one] for one in plan.assignment.values())["ann"] <= 2
