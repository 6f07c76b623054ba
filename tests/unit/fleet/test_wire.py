"""Daemon and agents over real CURVE sockets on loopback, strangers included."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from bftrainer.fleet.wire import messages
from bftrainer.fleet.wire.client import DaemonConnection
from bftrainer.fleet.wire.keys import KeyPair, generate_pair
from bftrainer.fleet.wire.messages import (
    AgentMessage,
    DaemonMessage,
    Heartbeat,
    Hello,
    Leaving,
    Welcome,
    WorkerSaid,
)
from bftrainer.fleet.wire.server import ENDED, AgentServer
from bftrainer.model.errors import BftError

WELCOME = Welcome(heartbeat_s=0.2, lease_s=60.0)


async def until(condition: Callable[[], Any], what: str, timeout_s: float = 150.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(0.01)


def hello(pilot_id: str = "p1", **fields: Any) -> Hello:
    return Hello(
        pilot_id=pilot_id, node="n1", address="127.0.0.1", pid=1,
        peer_endpoint="tcp://127.0.0.1:1", peer_public_key="k", **fields,
    )  # fmt: skip


class Daemon:
    """A server that remembers what its callbacks were told."""

    def __init__(
        self, keys: KeyPair, *, incarnation: int = 1, timeout_s: float = 30.0, welcome: bool = True
    ) -> None:
        self.heard: list[tuple[str, AgentMessage]] = []
        self.lost: list[tuple[str, str]] = []
        self.order: list[str] = []
        self.welcome = welcome
        self.server = AgentServer(
            keys=keys,
            incarnation=incarnation,
            agent_timeout_s=timeout_s,
            on_message=self._on_message,
            on_lost=self._on_lost,
        )

    def _on_message(self, pilot_id: str, message: AgentMessage) -> None:
        self.heard.append((pilot_id, message))
        self.order.append(message.type)
        if self.welcome and isinstance(message, Hello):
            self.server.send(pilot_id, WELCOME)

    def _on_lost(self, pilot_id: str, why: str) -> None:
        self.lost.append((pilot_id, why))
        self.order.append("lost")

    def types(self) -> list[str]:
        return [message.type for _, message in self.heard]


class Agent:
    """A client that remembers what it was told."""

    def __init__(self, endpoint: str, daemon: KeyPair, keys: KeyPair, incarnation: int = 0) -> None:
        self.heard: list[DaemonMessage] = []
        self.ups = self.downs = 0
        self.connection = DaemonConnection(
            endpoint=endpoint, daemon_public_key=daemon.public, keys=keys,
            incarnation=incarnation, on_message=self.heard.append, on_up=self._up,
            on_down=self._down,
        )  # fmt: skip
        self.connection.start()

    def _up(self) -> None:
        self.ups += 1

    def _down(self) -> None:
        self.downs += 1


def run(scenario: Callable[[KeyPair, KeyPair], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario(generate_pair(), generate_pair())

    asyncio.run(main())


def test_hello_welcome_and_messages_both_ways() -> None:
    async def scenario(ours: KeyPair, theirs: KeyPair) -> None:
        daemon = Daemon(ours, incarnation=7)
        daemon.server.register("p1", theirs.public)
        endpoint = await daemon.server.start("127.0.0.1")
        assert not daemon.server.send("p1", WELCOME)
        assert daemon.server.counts["unsent-unknown"] == 1
        agent = Agent(endpoint, ours, theirs)
        agent.connection.send(hello())
        await until(lambda: agent.heard, "welcome")
        assert agent.heard == [WELCOME.model_copy(update={"incarnation": 7})]
        assert agent.ups == 1
        assert daemon.server.is_connected("p1")
        body = {"type": "Warm", "warm_up_s": 1.0}
        for _ in range(1000):  # more than one batch of the loop
            assert agent.connection.send(WorkerSaid(worker_id="w1", body=body))
        await until(lambda: len(daemon.heard) == 1001, "all messages")
        assert daemon.heard[-1] == (
            "p1", WorkerSaid(worker_id="w1", body=body, incarnation=7),
        )  # fmt: skip
        for n in range(1000):
            assert daemon.server.send("p1", messages.Leave(reason=str(n)))
        await until(lambda: len(agent.heard) == 1001, "all answers")
        assert [m.reason for m in agent.heard if isinstance(m, messages.Leave)] == [
            str(n) for n in range(1000)
        ]
        agent.connection.close()
        await daemon.server.stop()

    run(scenario)


def test_loss_is_reported_at_once_and_after_the_last_words() -> None:
    async def scenario(ours: KeyPair, theirs: KeyPair) -> None:
        daemon = Daemon(ours, timeout_s=3600.0)
        daemon.server.register("p1", theirs.public)
        endpoint = await daemon.server.start("127.0.0.1")
        for round_ in range(1, 4):  # file descriptors are used again
            agent = Agent(endpoint, ours, theirs)
            agent.connection.send(hello())
            await until(lambda agent=agent: agent.heard, "welcome")  # type: ignore[misc]  # mypy: default in lambda
            agent.connection.send(Leaving(pilot_id="p1", reason="told"))
            agent.connection.close(linger_ms=1000)
            await until(lambda n=round_: len(daemon.lost) == n, "loss")  # type: ignore[misc]  # mypy: default in lambda
        assert daemon.lost == [("p1", "disconnected")] * 3
        assert daemon.order == ["hello", "leaving", "lost"] * 3
        assert not daemon.server.is_connected("p1")
        await daemon.server.stop()

    run(scenario)


def test_many_agents_come_and_go_and_none_is_taken_for_another() -> None:
    async def scenario(ours: KeyPair, theirs: KeyPair) -> None:
        daemon = Daemon(ours, timeout_s=3600.0)
        endpoint = await daemon.server.start("127.0.0.1")
        events: dict[str, list[str]] = {}

        def note(pilot_id: str, message: AgentMessage) -> None:
            events.setdefault(pilot_id, []).append(message.type)
            if isinstance(message, Hello):
                daemon.server.send(pilot_id, WELCOME)

        daemon.server._on_message = note
        daemon.server._on_lost = lambda pilot, _why: events[pilot].append("lost")

        async def live(pilot_id: str) -> None:
            keys = generate_pair()
            daemon.server.register(pilot_id, keys.public)
            for round_ in range(1, 5):
                stranger = Agent(endpoint, ours, theirs)  # takes descriptors in between
                agent = Agent(endpoint, ours, keys)
                agent.connection.send(hello(pilot_id))
                await until(lambda: agent.heard, f"{pilot_id} is welcome")  # noqa: B023 - awaited
                agent.connection.send(Heartbeat(pilot_id=pilot_id))
                agent.connection.send(Leaving(pilot_id=pilot_id, reason="told"))
                agent.connection.close(linger_ms=60_000)
                stranger.connection.close()
                lost = partial(events[pilot_id].count, "lost")
                await until(lambda: lost() == round_, f"{pilot_id} is lost")  # noqa: B023 - awaited

        pilots = [f"p{n}" for n in range(25)]
        await asyncio.gather(*map(live, pilots))
        expected = ["hello", "heartbeat", "leaving", "lost"] * 4
        await until(lambda: sum(map(len, events.values())) >= 25 * 16, "all is said")
        assert events == dict.fromkeys(pilots, expected)
        await daemon.server.stop()

    run(scenario)


async def connected_twice(
    ours: KeyPair, theirs: KeyPair, **second_hello: object
) -> tuple[Daemon, Agent, Agent]:
    """Let an agent connect a second time: the same one, unless its Hello says otherwise."""
    daemon = Daemon(ours)
    daemon.server.register("p1", theirs.public)
    endpoint = await daemon.server.start("127.0.0.1")
    first, second = Agent(endpoint, ours, theirs), Agent(endpoint, ours, theirs)
    first.connection.send(hello())
    await until(lambda: first.heard, "first welcome")
    second.connection.send(hello().model_copy(update=second_hello))
    await until(lambda: second.heard, "second welcome")
    return daemon, first, second


def test_an_agent_that_connects_again_is_not_lost() -> None:
    async def scenario(ours: KeyPair, theirs: KeyPair) -> None:
        daemon, first, second = await connected_twice(ours, theirs)
        first.connection.close()
        second.connection.send(Heartbeat(pilot_id="p1"))
        await until(lambda: "heartbeat" in daemon.order, "it is heard")
        assert daemon.order == ["hello", "hello", "heartbeat"]
        second.connection.close()
        await until(lambda: daemon.lost, "the end of the second is one")
        await daemon.server.stop()

    run(scenario)


def test_what_comes_late_over_a_connection_given_up_since_does_not_replace_its_successor() -> None:
    """TCP delivers after a cut what was written before the agent connected anew."""

    async def scenario(ours: KeyPair, theirs: KeyPair) -> None:
        daemon, first, second = await connected_twice(ours, theirs)
        first.connection.send(hello())
        await until(lambda: daemon.server.counts["superseded"], "the late Hello")
        first.connection.close()
        daemon.server.send("p1", messages.Leave(reason="to the second"))
        await until(lambda: len(second.heard) == 2, "it is still the one that is spoken to")
        assert daemon.order == ["hello", "hello"]
        second.connection.close()
        await until(lambda: daemon.lost, "the end of the second is one")
        await daemon.server.stop()

    run(scenario)


def test_an_agent_whose_pilot_has_ended_is_told_to_leave() -> None:
    async def scenario(ours: KeyPair, theirs: KeyPair) -> None:
        daemon = Daemon(ours)
        daemon.server.register("p1", theirs.public)
        daemon.server.forget("p1")
        agent = Agent(await daemon.server.start("127.0.0.1"), ours, theirs)
        agent.connection.send(hello())
        await until(lambda: agent.heard, "an answer")
        assert agent.heard == [messages.Leave(reason=ENDED, incarnation=1)]
        assert daemon.heard == []
        agent.connection.close()
        await daemon.server.stop()

    run(scenario)


def test_if_most_are_silent_the_daemon_is_the_one_cut_off() -> None:
    async def scenario(ours: KeyPair, theirs: KeyPair) -> None:
        daemon, keys = Daemon(ours, timeout_s=3.0), [theirs, generate_pair(), generate_pair()]
        for number, pair in enumerate(keys):
            daemon.server.register(f"p{number}", pair.public)
        endpoint = await daemon.server.start("127.0.0.1")
        agents = [Agent(endpoint, ours, pair) for pair in keys]
        for number, agent in enumerate(agents):
            agent.connection.send(hello(f"p{number}"))
        await until(lambda: len(daemon.lost) == 3, "silence")
        assert {why for _, why in daemon.lost} == {"unreachable"}
        for number in (0, 1):
            agents[number].connection.send(hello(f"p{number}"))
        await until(lambda: not daemon.server.reach.away & {"p0", "p1"}, "two come back")
        while len(daemon.lost) == 3:
            for number in (0, 1):
                agents[number].connection.send(Heartbeat(pilot_id=f"p{number}"))
            await asyncio.sleep(0.05)
        assert daemon.lost[3] == ("p2", "silent")
        assert daemon.server.reach.since_s is None
        for agent in agents:
            agent.connection.close()
        await daemon.server.stop()

    run(scenario)


def test_a_second_connection_replaces_the_first() -> None:
    async def scenario(ours: KeyPair, theirs: KeyPair) -> None:
        daemon, first, second = await connected_twice(ours, theirs, peer_public_key="another")
        first.connection.send(Heartbeat(pilot_id="p1"))
        await until(lambda: daemon.server.counts["before-hello"], "the first is not heard")
        first.connection.close()
        second.connection.send(Heartbeat(pilot_id="p1"))
        await until(lambda: "heartbeat" in daemon.order, "the second is")
        assert daemon.order == ["hello", "lost", "hello", "heartbeat"]
        assert len(first.heard) == len(second.heard) == 1
        second.connection.close()
        await daemon.server.stop()

    run(scenario)


def test_silence_is_a_loss_until_the_next_hello() -> None:
    async def scenario(ours: KeyPair, theirs: KeyPair) -> None:
        daemon = Daemon(ours, timeout_s=0.4)
        daemon.server.register("p1", theirs.public)
        agent = Agent(await daemon.server.start("127.0.0.1"), ours, theirs)
        agent.connection.send(hello())
        await until(lambda: daemon.lost, "loss")
        assert daemon.lost == [("p1", "silent")]
        agent.connection.send(Heartbeat(pilot_id="p1"))
        await until(lambda: daemon.server.counts["before-hello"], "heartbeat ignored")
        assert daemon.types() == ["hello"]
        agent.connection.send(hello())
        await until(lambda: daemon.types() == ["hello", "hello"], "hello again")
        agent.connection.close()
        await until(lambda: len(daemon.lost) == 2, "second loss")
        await daemon.server.stop()

    run(scenario)


def test_a_daemon_that_was_suspended_loses_nobody() -> None:
    async def scenario(ours: KeyPair, theirs: KeyPair) -> None:
        daemon = Daemon(ours, timeout_s=0.8)
        daemon.server.register("p1", theirs.public)
        agent = Agent(await daemon.server.start("127.0.0.1"), ours, theirs)
        agent.connection.send(hello())
        await until(lambda: agent.heard, "welcome")
        time.sleep(2.0)  # noqa: ASYNC251 - the loop itself stands still, as under SIGSTOP
        agent.connection.send(Heartbeat(pilot_id="p1"))
        await until(lambda: "heartbeat" in daemon.types(), "heartbeat")
        assert daemon.lost == []
        agent.connection.close()
        await daemon.server.stop()

    run(scenario)


def test_a_daemon_returns_on_the_same_port_and_the_earlier_one_is_fenced() -> None:
    async def scenario(ours: KeyPair, theirs: KeyPair) -> None:
        first = Daemon(ours, incarnation=1)
        first.server.register("p1", theirs.public)
        endpoint = await first.server.start("127.0.0.1")
        port = int(endpoint.rsplit(":", 1)[1])
        agent = Agent(endpoint, ours, theirs)
        agent.connection.send(hello())
        await until(lambda: agent.heard, "welcome")
        await first.server.stop()
        await until(lambda: agent.downs, "disconnect")

        second = Daemon(ours, incarnation=2)
        second.server.register("p1", theirs.public)
        assert await second.server.start("127.0.0.1", port) == endpoint
        await until(lambda: agent.ups == 2, "reconnect")
        agent.connection.send(hello())
        await until(lambda: len(agent.heard) == 2, "second welcome")
        assert agent.connection.incarnation == 2
        await second.server.stop()

        # A daemon of incarnation 1 awakes: agents refuse it, and it refuses them.
        stale = Daemon(ours, incarnation=1)
        stale.server.register("p1", theirs.public)
        await stale.server.start("127.0.0.1", port)
        await until(lambda: agent.ups == 3, "reconnect")
        agent.connection.send(hello())
        await until(lambda: stale.server.counts["later"], "hello refused")
        assert stale.heard == []
        await stale.server.stop()
        agent.connection.close()

    run(scenario)


def test_the_agent_refuses_smaller_incarnations() -> None:
    async def scenario(ours: KeyPair, theirs: KeyPair) -> None:
        daemon = Daemon(ours, incarnation=3, welcome=False)
        daemon.server.register("p1", theirs.public)
        agent = Agent(await daemon.server.start("127.0.0.1"), ours, theirs, incarnation=3)
        agent.connection.send(hello())
        await until(lambda: daemon.heard, "hello")
        daemon.server._incarnation = 2
        daemon.server.send("p1", messages.Leave(reason="stale"))
        await until(lambda: agent.connection.counts["fenced"], "fenced")
        daemon.server._incarnation = 4
        daemon.server.send("p1", WELCOME)
        await until(lambda: agent.heard, "newer accepted")
        assert [m.type for m in agent.heard] == ["welcome"]
        agent.connection.close()
        await daemon.server.stop()

    run(scenario)


def test_a_port_in_use_is_a_clear_error() -> None:
    async def scenario(ours: KeyPair, theirs: KeyPair) -> None:
        first, second = Daemon(ours), Daemon(ours)
        port = int((await first.server.start("127.0.0.1")).rsplit(":", 1)[1])
        with pytest.raises(BftError, match="BFT-1306"):
            await second.server.start("127.0.0.1", port)
        await first.server.stop()
        await second.server.stop()

    run(scenario)
