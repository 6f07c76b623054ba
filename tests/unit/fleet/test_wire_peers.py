"""The agents' own sockets: who gets an answer, and what a refused connection says."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import ValidationError

from bftrainer.fleet.wire.keys import KeyPair, generate_pair
from bftrainer.fleet.wire.peers import (
    Done,
    PassCommit,
    PeerAnswer,
    PeerServer,
    Promise,
    ask,
    refuses,
)
from bftrainer.ground import protocol
from bftrainer.ground.protocol import Warm


def test_peers_answer_members_of_a_known_roster_only() -> None:
    async def scenario() -> None:
        ours, theirs = generate_pair(), generate_pair()
        question = Promise(trainer_id="t1", worker_id="t1-1-1", generation=3, attempt=1)
        answer = Done(refusal="a daemon is running")
        asked: list[str] = []

        def answered(public_key: str, asked_for: object) -> Done:
            assert asked_for == question
            asked.append(public_key)
            return answer

        server = PeerServer(keys=ours, answer=answered)
        endpoint = server.start("127.0.0.1")
        known = generate_pair()

        async def promise(keys: KeyPair, timeout_s: float) -> PeerAnswer | None:
            return await ask(
                endpoint, question, public_key=ours.public, keys=keys, timeout_s=timeout_s
            )

        assert await promise(theirs, 0.3) is None
        assert server.counts["stranger"] >= 1
        server.allow(known.public)
        assert await promise(known, 15.0) == answer
        assert asked == [known.public]
        assert await refuses(endpoint, 5.0) is False
        server.close()
        assert await refuses(endpoint, 5.0) is True

    asyncio.run(scenario())


def test_nothing_but_a_commit_is_forwarded_as_one() -> None:
    said = {
        "trainer_id": "t1",
        "worker_id": "t1-1-1",
        "body": protocol.to_body(Warm(warm_up_s=1.0)),
    }
    with pytest.raises(ValidationError, match="not a commit"):
        PassCommit.model_validate(said)
