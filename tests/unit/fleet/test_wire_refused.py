"""What the daemon's end of the wire refuses: strangers, impostors, bad frames, errors."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import time
from typing import Any

import pytest
import zmq

from bftrainer.fleet.wire import messages, router
from bftrainer.fleet.wire.keys import KeyPair, generate_pair
from bftrainer.fleet.wire.messages import (
    AgentMessage,
    Heartbeat,
    Leave,
    Leaving,
    Refused,
    WorkerSaid,
)
from bftrainer.model.errors import BftError
from tests.support.effort import effort_s
from tests.unit.fleet.test_wire import WELCOME, Agent, Daemon, hello, run, until


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
        await until(lambda: len(thief.heard) == 3, "it is told that its pilot has ended")
        assert isinstance(thief.heard[2], Leave)
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


def test_a_hello_longer_than_any_is_refused_with_a_code_and_others_are_answered() -> None:
    async def scenario(ours: KeyPair, theirs: KeyPair) -> None:
        daemon, second = Daemon(ours), generate_pair()
        daemon.server.register("p1", theirs.public)
        daemon.server.register("p2", second.public)
        endpoint = await daemon.server.start("127.0.0.1")
        bad, good = Agent(endpoint, ours, theirs), Agent(endpoint, ours, second)
        good.connection.send(hello("p2"))
        await until(lambda: good.heard, "the other's welcome")
        frame = messages.encode(hello())[:-1] + b',"x":[' + b"[]," * 600_000 + b"1]}"
        began_s = time.thread_time()
        bad.connection._dealer.send(frame)
        good.connection.send(WorkerSaid(worker_id="w", body={}))
        await until(lambda: bad.heard, "an answer")
        (said,) = bad.heard
        assert isinstance(said, messages.Refused)
        assert re.fullmatch(r"BFT-1301: a Hello of \d+ bytes, not 67584", said.reason)
        await until(lambda: "worker-said" in daemon.types(), "the other is heard")
        assert daemon.types() == ["hello", "worker-said"]
        assert time.thread_time() - began_s < effort_s(lambda: json.loads(frame))
        assert daemon.server.counts["malformed"] == 1
        bad.connection.close()
        good.connection.close()
        await daemon.server.stop()

    run(scenario)


def test_a_flood_of_what_takes_long_to_read_leaves_everything_else_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(router, "TURN_S", 0.0005)  # each frame takes longer, on any machine

    async def scenario(ours: KeyPair, theirs: KeyPair) -> None:
        daemon = Daemon(ours, timeout_s=0.2)
        daemon.server.register("p1", theirs.public)
        bad = Agent(await daemon.server.start("127.0.0.1"), ours, theirs)
        frame = messages.encode(hello())[:-1] + b',"x":[' + b"[]," * 20_000 + b"1]}"
        for _ in range(15):
            bad.connection._dealer.send(frame)
        refused = [0]
        while refused[-1] < 15:
            if daemon.server.counts["malformed"] > refused[-1]:
                refused.append(daemon.server.counts["malformed"])
            await asyncio.sleep(0)
        assert len(refused) > 4  # one a turn, and a few turns each time that the loop comes round
        bad.connection.close()
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
    assert caplog.text.count("BFT-1309: message from p1 dropped (failed, 1 so far)") == 1


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
