"""A user's own daemon, asked from another host: what verbs, strangers and a second daemon see.

All hosts are this machine: a client is told by ``daemon.json`` that the daemon is elsewhere.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import zmq

from bftrainer.api import address
from bftrainer.api.address import KEY_NAME, Address
from bftrainer.api.client import Client
from bftrainer.api.remote_client import FarClient
from bftrainer.api.remote_server import MAX_FRAME_BYTES
from bftrainer.batch import process
from bftrainer.batch.local.client import LocalServer, start_server
from bftrainer.cli.common import FollowingClient
from bftrainer.fleet.wire.keys import KeyPair, generate_pair, load_pair, save_pair
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.errors import BftError, ExitCode
from bftrainer.model.trainer import TrainerState
from tests.integration.daemon_scripts import light_spec
from tests.support.waiting import wait_for

POLICY = "poll_interval_s: 0.1\nreserve_nodes_per_type: 0\nagent_timeout_s: 2\n"


class OwnDaemon(DaemonProcess):
    """A daemon as ``bftrainer up`` starts it, on an address of this machine."""

    host = "127.0.0.1"

    def argv(self) -> tuple[str, ...]:
        words = [self.host if word == "127.0.0.1" else word for word in super().argv()]
        at = words.index("--agent-address") + 1
        return (*words[:at], "127.0.0.1", *words[at + 1 :], "--shared-state")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[LocalServer]:
    with start_server(tmp_path / "site", n_nodes=2) as server:
        yield server


@pytest.fixture
def daemon(site: LocalServer, tmp_path: Path) -> Iterator[OwnDaemon]:
    one = OwnDaemon(
        tmp_path / "state",
        batch_system="local",
        batch_options={"socket": str(site.socket_path)},
        policy=POLICY,
    )
    try:
        one.start()
        yield one
    finally:
        one.stop()


def _address(daemon: DaemonProcess) -> Address:
    found = address.read(daemon.state_dir)
    assert found is not None
    return found


def _elsewhere(daemon: DaemonProcess) -> Address:
    """Let the file say that the daemon is on another host."""
    found = replace(_address(daemon), host="elsewhere", boot_id="another")
    address.write(daemon.state_dir, found)
    return found


def _far(daemon: DaemonProcess, timeout_s: float = 20.0) -> FarClient:
    return FarClient(daemon.state_dir, _address(daemon), timeout_s=timeout_s)


def _verb(daemon: DaemonProcess, *words: str) -> process.Completed:
    env = {**os.environ, "BFTRAINER_STATE_DIR": str(daemon.state_dir)}
    argv = (sys.executable, "-m", "bftrainer", *words)
    return process.run(argv, timeout_s=60, env=env, cwd=Path("/"))


@pytest.mark.long
def test_both_ways_give_the_same_answers(daemon: OwnDaemon, tmp_path: Path) -> None:
    far, near = _far(daemon), Client(daemon.state_dir / "daemon.sock")
    trainer = far.submit(light_spec(tmp_path / "light")).record.trainer_id
    wait_for(lambda: near.trainer(trainer).observed_nodes, what="it trains")
    assert far.trainer(trainer).record.spec == near.trainer(trainer).record.spec
    assert [n.name for n in far.nodes()] == [n.name for n in near.nodes()]
    assert far.status().pid == near.status().pid == daemon.pid
    assert far.logs(trainer) == near.logs(trainer)
    assert far.explain(trainer).trainer_id == trainer
    assert "bftrainer_" in far.metrics()
    with pytest.raises(BftError, match="BFT-1004"):
        far.trainer("t99")
    far.cancel(trainer, now=True)
    assert near.trainer(trainer).record.state is TrainerState.CANCELLED


def test_verbs_find_a_daemon_on_another_host(daemon: OwnDaemon) -> None:
    _elsewhere(daemon)
    (daemon.state_dir / "daemon.sock").rename(daemon.state_dir / "hidden")  # of that host
    try:
        assert f"pid {daemon.pid}" in _verb(daemon, "status").stdout
        assert "n1" in _verb(daemon, "nodes").stdout
        down = _verb(daemon, "down", "--now")
        assert "Your daemon has ended." in down.stdout, down.stderr
    finally:
        (daemon.state_dir / "hidden").unlink(missing_ok=True)
    wait_for(lambda: not daemon.is_running(), what="it ends")
    assert address.read(daemon.state_dir) is None


@pytest.mark.long
def test_who_runs_a_study_follows_it_to_another_host(daemon: OwnDaemon) -> None:
    client = FollowingClient(str(daemon.state_dir / "daemon.sock"))
    assert client.study("own-000000").trials == ()
    _elsewhere(daemon)
    (daemon.state_dir / "daemon.sock").rename(daemon.state_dir / "hidden")
    assert client.study("own-000000").trials == ()
    (daemon.state_dir / "hidden").unlink()


@pytest.mark.long
def test_a_daemon_that_is_gone_is_named_with_the_next_step(daemon: OwnDaemon) -> None:
    found = _elsewhere(daemon)
    daemon.kill()
    said = _verb(daemon, "status")
    assert said.returncode == ExitCode.DAEMON_UNREACHABLE
    assert f"BFT-1101: Your daemon (process {found.pid} on elsewhere) cannot be reached" in (
        said.stderr
    )
    assert "next: If its host or job is gone, start it again: bftrainer up." in said.stderr
    daemon.start()  # takes over, since nobody answers
    assert _far(daemon).status().incarnation == 2


def test_a_stranger_gets_no_answer(daemon: OwnDaemon, tmp_path: Path) -> None:
    for name in ("daemon.json",):
        (tmp_path / name).write_bytes((daemon.state_dir / name).read_bytes())
    save_pair(generate_pair(), tmp_path / KEY_NAME)
    with pytest.raises(BftError, match="BFT-1105"):
        FarClient(tmp_path, _address(daemon), timeout_s=1.0).status()
    assert _far(daemon).status().pid == daemon.pid


def _sent(where: Address, keys: KeyPair, frame: bytes) -> bytes | None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.set(zmq.LINGER, 0)
        dealer.set(zmq.CURVE_SERVERKEY, where.public_key.encode())
        dealer.set(zmq.CURVE_PUBLICKEY, keys.public.encode())
        dealer.set(zmq.CURVE_SECRETKEY, keys.secret.encode())
        dealer.connect(where.endpoint)
        dealer.send(frame)
        return dealer.recv() if dealer.poll(1000) else None


def test_garbage_of_the_user_is_refused(daemon: OwnDaemon) -> None:
    where, keys = _address(daemon), load_pair(daemon.state_dir / KEY_NAME)
    for frame in (b"", b"x", b"[1]\n", b'{"method": "TRACE", "path": "/"}\n', b"[" * 100_000):
        answer = _sent(where, keys, frame)
        assert answer is not None
        assert answer.startswith(b"400\n")
        assert b"BFT-1103" in answer
    assert _sent(where, keys, b'{"method": "GET", "path": "/nix"}\n' + b"y" * 100).startswith(  # type: ignore[union-attr]
        b"404\n"
    )
    assert _sent(where, keys, b"z" * (MAX_FRAME_BYTES + 1000)) is None
    assert _far(daemon).status().pid == daemon.pid


@pytest.mark.long
def test_a_second_daemon_is_refused_with_the_first_ones_host(daemon: OwnDaemon) -> None:
    _elsewhere(daemon)
    done = process.run(daemon.argv(), timeout_s=60, env=dict(os.environ), cwd=Path("/"))
    assert done.returncode == ExitCode.ALREADY_RUNNING
    assert f"process {daemon.pid} on elsewhere" in done.stderr


def test_a_daemon_that_has_a_successor_ends_itself(daemon: OwnDaemon) -> None:
    own = _address(daemon)
    address.write(daemon.state_dir, replace(own, nonce="other", host="elsewhere", pid=7))
    wait_for(lambda: not daemon.is_running(), what="it ends")
    assert _address(daemon).pid == 7  # the successor's file stays


@pytest.mark.parametrize(
    "changes",
    [{"pid": "7"}, {"host": 3}, {"endpoint": None}, {"nonce": ["x"]}],
)
def test_a_file_that_no_daemon_wrote_is_none(tmp_path: Path, changes: Mapping[str, object]) -> None:
    good = address.own_address(("tcp://127.0.0.1:1",), "k", {"SLURM_JOB_ID": "5"})
    address.write(tmp_path, good)
    assert address.read(tmp_path) == good
    path = tmp_path / "daemon.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    assert address.read(tmp_path) is None
    path.write_text("[" * 3000)
    assert address.read(tmp_path) is None


def test_the_state_directory_is_found(tmp_path: Path) -> None:
    home = tmp_path / ".bftrainer"
    where = {"HOME": str(tmp_path)}
    assert address.state_dir(where) == home
    for name in ("one", "pilots"):
        (home / name).mkdir(parents=True)
    (home / "one" / "daemon.json").touch()
    assert address.state_dir(where) == home / "one"
    (home / "two").mkdir()
    (home / "two" / "daemon.sock").touch()
    with pytest.raises(BftError, match="BFT-1108: You have daemons on several clusters: one, two"):
        address.state_dir(where)
    assert address.state_dir({**where, "BFTRAINER_STATE_DIR": "/x"}) == Path("/x")
    (home / "daemon.sock").touch()  # a daemon without a cluster comes first
    assert address.state_dir(where) == home


def test_whether_a_daemon_has_ended_for_sure() -> None:
    here = address.own_address(("tcp://127.0.0.1:1",), "k", {"SLURM_JOB_ID": "5"})
    assert not address.is_gone(here, {})
    assert address.is_gone(here, {"SLURM_JOB_ID": "5"})  # its own job, requeued
    assert address.is_gone(replace(here, boot_id="before"), {})
    assert not address.is_gone(replace(here, host="elsewhere", boot_id="x"), {})
    assert address.is_gone(replace(here, pid=2**22 + 1), {})


@pytest.mark.long
def test_agents_follow_a_daemon_to_another_host(daemon: OwnDaemon, tmp_path: Path) -> None:
    trainer = daemon.client.submit(light_spec(tmp_path / "light")).record.trainer_id
    wait_for(lambda: len(daemon.client.trainer(trainer).observed_nodes) == 2, what="it trains")
    before = daemon.client.trainer(trainer).record
    daemon.kill()
    daemon.host = "127.0.0.2"
    daemon.start()
    assert "tcp://127.0.0.2:" in (daemon.state_dir / "endpoint").read_text()
    step = before.progress.step

    def found() -> bool:
        view = daemon.client.trainer(trainer)
        return len(view.observed_nodes) == 2 and view.record.progress.step > step

    wait_for(found, what="the agents have followed")
    assert daemon.client.trainer(trainer).record.failures == 0
