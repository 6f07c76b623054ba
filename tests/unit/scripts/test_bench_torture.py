"""The parts of bench_torture that see, count and burn."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from _bench.torture.attack import Attack, Attacker, Burner
from _bench.torture.pairs import HEADER, RECEIVE_READY, SEND_BUFFER, SEND_READY, Racer
from _bench.torture.ports import Ports
from _bench.torture.probe import Seen
from _bench.torture.slices import steps_in

from tests.support.hosts.own_daemon import Update
from tests.support.other_users import needs_root
from tests.support.waiting import wait_for

NOBODY_ELSE = 61234  # an account that nobody has, so that nothing else is attacked
CHANCE = random.Random(1)  # noqa: S311 - an attack, not a secret


@pytest.fixture
def ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], Ports]:
    monkeypatch.setenv("HOME", str(tmp_path))
    hosts = {"a": "127.0.0.1", "b": "10.0.0.2"}
    return lambda host, uid: Ports(host, hosts, uid)


def test_only_ports_of_the_victim_are_found(ports: Callable[[str, int], Ports]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert server.getsockname() in ports("a", os.getuid()).found()
        assert server.getsockname() not in ports("a", os.getuid() + 1).found()


def test_other_hosts_are_told_of_ports_that_they_can_reach(
    ports: Callable[[str, int], Ports],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as loop, socket.create_server(("", 0)) as every:
        ports("b", os.getuid()).found()
        found = ports("a", os.getuid() + 1).found()
        assert ("10.0.0.2", every.getsockname()[1]) in found
        assert loop.getsockname() not in found


@needs_root
def test_a_racer_is_first_and_plays_the_member(ports: Callable[[str, int], Ports]) -> None:
    racer = Racer(ports("a", NOBODY_ELSE))
    os.seteuid(NOBODY_ELSE)
    try:
        server = socket.create_server(("127.0.0.1", 0))
    finally:
        os.seteuid(0)
    with server, ExitStack() as stack:
        stack.callback(racer.end)
        server.settimeout(0.0)

        def connected() -> socket.socket | None:
            racer.race(CHANCE)
            try:
                return server.accept()[0]
            except BlockingIOError:
                return None

        pair = stack.enter_context(wait_for(connected, what="somebody connects"))
        pair.settimeout(0.0)
        for asked, answered in ((SEND_READY, RECEIVE_READY), (RECEIVE_READY, SEND_BUFFER)):
            pair.sendall(HEADER.pack(HEADER.size, asked, 7, 0, 4, 0))
            said = b""

            def whole() -> bool:
                nonlocal said
                racer.race(CHANCE)
                try:
                    said += pair.recv(1 << 16)
                except BlockingIOError:
                    return False
                return len(said) >= HEADER.size

            wait_for(whole, what="the answer")
            opened = said[8:] if asked == SEND_READY else said  # the pair's number comes first
            assert HEADER.unpack_from(opened)[1:3] == (answered, 7)


def test_an_attack_that_fails_is_told() -> None:
    def once(_chance: random.Random) -> str:
        raise OSError("nobody there")

    attacker = Attacker(Attack(name="odd", once=once, pause_s=0.0), 1)
    with pytest.raises(RuntimeError, match=r"odd: (?s:.*)nobody there"):
        attacker.stop()


def test_what_is_burnt_is_measured_as_an_attack_is(tmp_path: Path) -> None:
    turns = tmp_path / "turns"
    burner = Burner(0.3)

    def once(chance: random.Random) -> str:
        with turns.open("a") as stream:
            stream.write("x")
        return burner.burn(chance)

    attacker = Attacker(Attack(name="burner", once=once, pause_s=0.0), 1)
    wait_for(lambda: turns.exists() and len(turns.read_text()) > 5, what="some turns")
    cpu_s, answers = attacker.stop()
    assert answers["turn"] >= 5
    assert cpu_s > 0.0


def test_steps_that_are_redone_count_once() -> None:
    steps = ((1.0, 1), (2.0, 2), (6.0, 2), (7.0, 3), (8.0, 4), (9.5, 4), (11.0, 5))
    found = [Update(at_s=at_s, step=step, generation=1, size=1) for at_s, step in steps]
    assert steps_in(found, Seen(began_s=5.0, span_s=5.0)) == (2, 2.0)
    assert steps_in(found, Seen(began_s=12.0, span_s=5.0)) == (0, 5.0)


def test_an_attack_that_does_not_exist_is_refused_before_anything_is_set_up() -> None:
    bench = [sys.executable, "scripts/bench_torture.py", "--quick", "--only", "pears"]
    done = subprocess.run(bench, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "nothing is named 'pears'; there are: pairs, ports" in done.stdout
    assert "target" not in done.stdout
