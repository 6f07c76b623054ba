"""The agents' own sockets: who gets an answer, and what a refused connection says."""

from __future__ import annotations

import asyncio

from bftrainer.wire.keys import KeyPair, generate_pair
from bftrainer.wire.peers import IAm, PeerServer, PeerWorker, WhoIs, ask, refuses


def test_peers_answer_members_of_a_known_roster_only() -> None:
    async def scenario() -> None:
        ours, theirs = generate_pair(), generate_pair()
        answer = IAm(pilot_id="p1", workers=[PeerWorker(worker_id="w1", generation=3, step=9)])
        asked: list[str] = []

        def answered(public_key: str, _question: object) -> IAm:
            asked.append(public_key)
            return answer

        server = PeerServer(keys=ours, answer=answered)
        endpoint = server.start("127.0.0.1")
        known = generate_pair()

        async def who_is(keys: KeyPair, timeout_s: float) -> IAm | None:
            return await ask(
                endpoint, WhoIs(), IAm, public_key=ours.public, keys=keys, timeout_s=timeout_s
            )

        assert await who_is(theirs, 0.3) is None
        assert server.counts["stranger"] >= 1
        server.allow(known.public)
        assert await who_is(known, 15.0) == answer
        assert asked == [known.public]
        assert await refuses(endpoint, 5.0) is False
        server.close()
        assert await refuses(endpoint, 5.0) is True

    asyncio.run(scenario())
