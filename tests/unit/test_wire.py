"""Daemon and agents over real CURVE sockets on loopback, strangers included."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import zmq

from bftrainer.errors import BftError
from bftrainer.wire import messages
from bftrainer.wire.client import DaemonConnection
from bftrainer.wire.keys import KeyPair, generate_pair
from bftrainer.wire.messages import (
    AgentMessage,
    DaemonMessage,
    Heartbeat,
    Hello,
    Leaving,
    Refused,
    Welcome,
    WorkerSaid,
)
from bftrainer.wire.server import AgentServer

WELCOME = Welcome(heartbeat_s=0.2, lease_s=60.0)


async def until(condition: Callable[[], Any], what: str, timeout_s: float = 60.0) -> None:
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
                agent.connection.close(linger_ms=2000)
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


def test_a_second_connection_replaces_the_first() -> None:
    async def scenario(ours: KeyPair, theirs: KeyPair) -> None:
        daemon = Daemon(ours)
        daemon.server.register("p1", theirs.public)
        endpoint = await daemon.server.start("127.0.0.1")
        first, second = Agent(endpoint, ours, theirs), Agent(endpoint, ours, theirs)
        first.connection.send(hello())
        await until(lambda: first.heard, "first welcome")
        second.connection.send(hello())
        await until(lambda: second.heard, "second welcome")
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


def test_a_stranger_does_nothing() -> None:
    async def scenario(ours: KeyPair, theirs: KeyPair) -> None:
        daemon = Daemon(ours)
        daemon.server.register("p1", theirs.public)
        endpoint = await daemon.server.start("127.0.0.1")
        counts = daemon.server.counts
        wrong_key = Agent(endpoint, ours, generate_pair())
        wrong_key.connection.send(hello())
        await until(lambda: counts["stranger"] >= 1, "unknown key refused")
        # A plaintext client that says what an agent would say.
        with zmq.Context() as context, context.socket(zmq.DEALER) as plain:
            plain.set(zmq.LINGER, 0)
            plain.connect(endpoint)
            plain.send(messages.encode(hello()))
            failed = counts["handshake-failed"]
            await until(lambda: counts["handshake-failed"] > failed, "plaintext refused")
            assert not plain.poll(0)
        # One that expects another daemon: it must not talk to us.
        misled = Agent(endpoint, generate_pair(), theirs)
        misled.connection.send(hello())
        host, port = endpoint.removeprefix("tcp://").split(":")
        for garbage in (
            b"GET / HTTP/1.1\r\n\r\n" * 50,
            b"\xff" * 4096,
            b"\xff\0\0\0\0\0\0\0\1\x7f",
        ):
            with socket.create_connection((host, int(port))) as raw:
                raw.sendall(garbage)
        agent = Agent(endpoint, ours, theirs)
        agent.connection.send(hello())
        await until(lambda: agent.heard, "the real one is still served")
        assert daemon.types() == ["hello"]
        assert daemon.lost == []
        assert wrong_key.heard == misled.heard == []
        assert wrong_key.ups == misled.ups == 0
        for client in (wrong_key, misled, agent):
            client.connection.close()
        await daemon.server.stop()

    run(scenario)


def test_an_agent_cannot_speak_for_another() -> None:
    async def scenario(ours: KeyPair, theirs: KeyPair) -> None:
        daemon, second = Daemon(ours), generate_pair()
        daemon.server.register("p1", theirs.public)
        daemon.server.register("p2", second.public)
        endpoint = await daemon.server.start("127.0.0.1")
        thief = Agent(endpoint, ours, second)
        thief.connection.send(hello("p1"))
        await until(lambda: thief.heard, "refusal")
        assert isinstance(thief.heard[0], Refused)
        assert daemon.heard == []
        thief.connection.send(hello("p2"))
        await until(lambda: daemon.heard, "its own hello")
        await until(lambda: len(thief.heard) == 2, "welcome")
        thief.connection.send(Heartbeat(pilot_id="p1"))
        thief.connection.send(Leaving(pilot_id="p1", reason="told"))
        await until(lambda: daemon.server.counts["impostor"] == 3, "all three counted")
        assert [p for p, _ in daemon.heard] == ["p2"]
        daemon.server.forget("p2")
        thief.connection.send(Heartbeat(pilot_id="p2"))
        await until(lambda: daemon.server.counts["stranger"] == 1, "forgotten")
        assert daemon.types() == ["hello"]
        assert daemon.lost == []
        thief.connection.close()
        await daemon.server.stop()

    run(scenario)


@pytest.mark.parametrize(
    ("frames", "counted"),
    [
        ([b"not json"], "malformed"),
        ([b"{}"], "malformed"),
        ([b'{"type":"heartbeat","v":2,"pilot_id":"p1"}'], "malformed"),
        ([b'{"type":"heartbeat","v":1,"pilot_id":"p1","more":1}'], "malformed"),
        ([b'{"type":"welcome","heartbeat_s":1,"lease_s":1}'], "malformed"),
        ([b"\x80\x04\x95cos\nsystem\n."], "malformed"),
        ([b"", b'{"type":"heartbeat","pilot_id":"p1"}'], "malformed"),
        ([b'{"type":"heartbeat","pilot_id":"p1","incarnation":6}'], "fenced"),
    ],
)
def test_bad_frames_of_a_known_agent_are_dropped(frames: list[bytes], counted: str) -> None:
    async def scenario(ours: KeyPair, theirs: KeyPair) -> None:
        daemon = Daemon(ours, incarnation=7)
        daemon.server.register("p1", theirs.public)
        agent = Agent(await daemon.server.start("127.0.0.1"), ours, theirs)
        agent.connection.send(hello())
        await until(lambda: agent.heard, "welcome")
        agent.connection._dealer.send_multipart(frames)
        agent.connection.send(Heartbeat(pilot_id="p1"))
        await until(lambda: "heartbeat" in daemon.types(), "served afterwards")
        assert daemon.types() == ["hello", "heartbeat"]
        assert daemon.server.counts[counted] == 1
        agent.connection.close()
        await daemon.server.stop()

    run(scenario)


def test_an_oversize_message_costs_its_sender_the_connection_only() -> None:
    async def scenario(ours: KeyPair, theirs: KeyPair) -> None:
        daemon, second = Daemon(ours), generate_pair()
        daemon.server.register("p1", theirs.public)
        daemon.server.register("p2", second.public)
        endpoint = await daemon.server.start("127.0.0.1")
        agents = [Agent(endpoint, ours, theirs), Agent(endpoint, ours, second)]
        for n, agent in enumerate(agents, start=1):
            agent.connection.send(hello(f"p{n}"))
        await until(lambda: all(a.heard for a in agents), "welcomes")
        agents[0].connection._dealer.send(b" " * (messages.MAX_MESSAGE_BYTES + 1000))
        await until(lambda: daemon.lost, "loss")
        assert daemon.lost == [("p1", "disconnected")]
        assert daemon.server.send("p2", WELCOME)
        await until(lambda: len(agents[1].heard) == 2, "the other is still served")
        with pytest.raises(messages.WireError):
            agents[1].connection.send(
                WorkerSaid(worker_id="w", body={"x": "y" * messages.MAX_MESSAGE_BYTES})
            )
        for agent in agents:
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


def test_an_error_nobody_expected_costs_its_sender_the_connection_and_nobody_else(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("bftrainer"), "propagate", True)

    async def scenario(ours: KeyPair, theirs: KeyPair) -> None:
        daemon, second = Daemon(ours), generate_pair()
        reported: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, c: reported.append(c))
        daemon.server.register("p1", theirs.public)
        daemon.server.register("p2", second.public)
        endpoint = await daemon.server.start("127.0.0.1")
        bad, good = Agent(endpoint, ours, theirs), Agent(endpoint, ours, second)
        bad.connection.send(hello())
        good.connection.send(hello("p2"))
        await until(lambda: bad.heard and good.heard, "both welcome")
        fine = daemon.server._on_message

        def fail(pilot_id: str, message: AgentMessage) -> None:
            if pilot_id == "p1" and isinstance(message, WorkerSaid):
                raise ZeroDivisionError("x\nERROR forged")
            fine(pilot_id, message)

        daemon.server._on_message = fail
        for _ in range(3):
            bad.connection.send(WorkerSaid(worker_id="w", body={}))
        await until(lambda: daemon.lost, "its connection does not count any more")
        good.connection.send(WorkerSaid(worker_id="w", body={}))
        await until(lambda: daemon.types().count("worker-said") == 1, "the other is heard")
        assert daemon.lost == [("p1", "failed")]
        assert daemon.server.counts["failed"] == 1
        bad.connection.send(hello())
        await until(lambda: daemon.server.is_connected("p1"), "it may come again")
        assert reported == []
        bad.connection.close()
        good.connection.close()
        await daemon.server.stop()

    run(scenario)
    assert caplog.text.count("BFT-1309: message of p1 dropped (failed, 1 so far)") == 1


def test_an_error_of_the_daemons_own_is_not_held_against_an_agent() -> None:
    async def scenario(ours: KeyPair, theirs: KeyPair) -> None:
        daemon = Daemon(ours)
        reported: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, c: reported.append(c))
        daemon.server.register("p1", theirs.public)
        agent = Agent(await daemon.server.start("127.0.0.1"), ours, theirs)
        fine = daemon.server._on_message

        def fail_once(pilot_id: str, message: AgentMessage) -> None:
            daemon.server._on_message = fine
            raise BftError("BFT-2201", "The disk is full.", "Make room.")

        daemon.server._on_message = fail_once
        for _ in range(3):
            agent.connection.send(hello())
        await until(lambda: len(daemon.heard) == 2, "the rest")
        assert [type(c["exception"]) for c in reported] == [BftError]
        assert daemon.lost == []
        agent.connection.close()
        await daemon.server.stop()

    run(scenario)


def test_an_agent_cannot_claim_to_be_on_another_node() -> None:
    async def scenario(ours: KeyPair, theirs: KeyPair) -> None:
        daemon = Daemon(ours)
        daemon.server.register("p1", theirs.public, "n7")
        agent = Agent(await daemon.server.start("127.0.0.1"), ours, theirs)
        agent.connection.send(hello())  # of n1
        await until(lambda: daemon.server.counts["impostor"] == 1, "refused")
        assert daemon.heard == []
        agent.connection.send(hello().model_copy(update={"node": "n7"}))
        await until(lambda: daemon.heard, "its own node")
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
