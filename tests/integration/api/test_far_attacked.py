"""The TCP port of an own daemon's verbs while another user attacks it.

What is awaited is that the owner's verbs are answered meanwhile, and that nobody else's are. From
another host: ``tests/hosts/test_own_daemon.py``.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import zmq

from bftrainer.api import address
from bftrainer.api.address import ADDRESS_NAME, KEY_NAME, Address
from bftrainer.api.remote_client import FarClient
from bftrainer.batch.local.client import start_server
from bftrainer.fleet.wire.keys import generate_pair
from bftrainer.model.errors import BftError
from tests.integration.api.test_far import POLICY, OwnDaemon
from tests.integration.daemon_scripts import light_spec
from tests.support import far_attacker
from tests.support.far_attack import at_work
from tests.support.far_attacker import ANSWERS, KINDS
from tests.support.other_users import needs_root
from tests.support.recorder import CLIENT, SERVER, recording

STRANGER = 65534
HELLO_BYTES = 202  # of a client's first command
VERBS = 5  # of the owner's that are answered during an attack


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnDaemon]:
    base = tmp_path_factory.mktemp("far")
    with start_server(base / "site", n_nodes=1) as site:
        own = OwnDaemon(
            base / "state",
            batch_system="local",
            batch_options={"socket": str(site.socket_path)},
            policy=POLICY,
        )
        try:
            own.start()
            yield own
        finally:
            own.stop()


def _address(daemon: OwnDaemon) -> Address:
    there = address.read(daemon.state_dir)
    assert there is not None
    return there


def _place(there: Address) -> tuple[str, int]:
    host, _, port = there.endpoint.removeprefix("tcp://").rpartition(":")
    return host, int(port)


def _far(state_dir: Path, there: Address, timeout_s: float = 60.0) -> FarClient:
    return FarClient(state_dir, there, timeout_s=timeout_s)


@pytest.fixture(scope="module")
def recorded(daemon: OwnDaemon) -> list[bytes]:
    """What a client said that submitted a trainer."""
    there = _address(daemon)
    with recording(*_place(there)) as recorder:
        relayed = replace(there, endpoint=f"tcp://127.0.0.1:{recorder.port}")
        spec = light_spec(daemon.state_dir.parent / "light", name="recorded", n_min=9, n_max=9)
        client = _far(daemon.state_dir, relayed)
        trainer = client.submit(spec).record.trainer_id
        said = recorder.said(CLIENT)
        assert len(said) > 2
        assert not any(word in piece for piece in said for word in (b"recorded", b"method"))
        assert not any(word in piece for piece in recorder.said(SERVER) for word in ANSWERS)
        client.cancel(trainer, now=True)  # submitted again it would be another one
    return said


@needs_root
@pytest.mark.parametrize("kind", KINDS)
def test_verbs_are_answered_while_another_user_attacks(
    daemon: OwnDaemon, recorded: list[bytes], kind: str
) -> None:
    there = _address(daemon)
    before = [view.record.trainer_id for view in _far(daemon.state_dir, there).status().trainers]
    with at_work(kind, *_place(there), recorded, uid=STRANGER):
        for _ in range(VERBS):
            status = _far(daemon.state_dir, there).status()
            assert status.pid == daemon.pid
    after = [view.record.trainer_id for view in _far(daemon.state_dir, there).status().trainers]
    assert after == before
    told = daemon.log.read_text() + daemon.out.read_text()
    assert "Traceback" not in told, told[-3000:]


def test_the_key_of_an_earlier_daemon_opens_nothing(daemon: OwnDaemon, tmp_path: Path) -> None:
    for name in (KEY_NAME, ADDRESS_NAME):
        shutil.copy(daemon.state_dir / name, tmp_path / name)
    client = _far(daemon.state_dir, _address(daemon))
    assert client.status().incarnation == 1
    daemon.stop()
    daemon.start()
    there = _address(daemon)
    assert there.public_key == _read(tmp_path).public_key, "agents know it"
    with pytest.raises(BftError, match="BFT-1105"):
        _far(tmp_path, there, timeout_s=1.0).status()
    assert client.status().incarnation == 2, "a client that was there before takes the new one"
    assert (daemon.state_dir / KEY_NAME).stat().st_mode & 0o777 == 0o600


def _read(directory: Path) -> Address:
    there = address.read(directory)
    assert there is not None
    return there


def test_a_false_daemon_hears_nothing_of_a_verb(daemon: OwnDaemon) -> None:
    """It has the port that the file names, and another key."""
    heard: list[bytes] = []
    with zmq.Context() as context, context.socket(zmq.ROUTER) as false:
        false.set(zmq.LINGER, 0)
        false.set(zmq.CURVE_SERVER, 1)
        false.set(zmq.CURVE_SECRETKEY, generate_pair().secret.encode())
        port = false.bind_to_random_port("tcp://127.0.0.1")
        with recording("127.0.0.1", port) as recorder:
            there = replace(_address(daemon), endpoint=f"tcp://127.0.0.1:{recorder.port}")
            with pytest.raises(BftError, match="BFT-1105"):
                _far(daemon.state_dir, there, timeout_s=1.0).status()
            heard += recorder.said(CLIENT)
        assert not false.poll(0)
    assert heard
    assert b"/v1/status" not in b"".join(heard)


def test_a_false_daemon_that_refuses_does_not_keep_a_verb_from_the_true_one(
    daemon: OwnDaemon,
) -> None:
    """At one of the addresses of the daemon's file that others can have, such as a bridge's."""
    there = _address(daemon)
    with socket.create_server(("127.0.0.1", 0)) as false:
        threading.Thread(target=_refuse, args=(false,), daemon=True).start()
        first = f"tcp://127.0.0.1:{false.getsockname()[1]}"
        both = replace(there, endpoint=first, further=(there.endpoint,))
        assert _far(daemon.state_dir, both).status().pid == daemon.pid


def _refuse(false: socket.socket) -> None:
    """Say that a key is unknown, which nobody proves (ZMTP 3.1, RFC 26)."""
    greeting = bytearray(far_attacker.greeting(b"CURVE"))
    greeting[32] = 1  # a server
    with contextlib.suppress(OSError):
        while True:
            client, _ = false.accept()
            with client:
                client.sendall(greeting)
                client.recv(len(greeting) + HELLO_BYTES, socket.MSG_WAITALL)
                client.sendall(b"\x04\x0a\x05ERROR\x03400")
                client.recv(1)
