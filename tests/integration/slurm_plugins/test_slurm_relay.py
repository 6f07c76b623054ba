"""Relays of the hook's file: as processes beside a listener, and in a real Slurm."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from bftrainer.batch.announcer import Announcement
from bftrainer.batch.tail import MOST_BYTES
from bftrainer.fleet.wire.keys import generate_pair, save_pair
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.errors import BatchSystemError
from slurm_plugins.hook.relay import SILENT_S, RelayWord, encode, shown
from slurm_plugins.hook.relay_receiver import RelayedHook, Relays
from slurm_plugins.hook.squeue_row import ClusterFacts
from slurm_plugins.hook.watch import Heard
from slurm_plugins.testcluster import SlurmTestCluster
from tests.integration.slurm_fixtures import running_cluster
from tests.integration.slurm_plugins.test_slurm_hook import (
    given_back,
    starts,
    training_everywhere,
    view,
)
from tests.support.relays import RelayProcess, end, free_port, heard, hook_file
from tests.support.waiting import wait_for


class Told:
    """A daemon's ear, with two relays on files of their own."""

    def __init__(self, directory: Path) -> None:
        self.keys, self.port = generate_pair(), free_port()
        self.relays: Relays | None = None
        self.parts = [
            RelayProcess(
                directory=directory / name,
                file=hook_file(directory / name),
                port=self.port,
                daemon_key=shown(self.keys.public),
            )
            for name in ("primary", "backup")
        ]

    def write(self, which: int, text: str) -> None:
        with self.parts[which].file.open("a") as file:
            file.write(text)

    def hook(self) -> RelayedHook:
        assert self.relays is not None
        return RelayedHook(self.relays, Heard("bf", ClusterFacts))

    def telling(self, number: int) -> None:
        assert self.relays is not None
        relays = self.relays
        wait_for(lambda: relays.telling == number, what=f"{number} relays tell")

    def count(self, kind: str) -> int:
        assert self.relays is not None
        return self.relays.counts().get(kind, 0)


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    made = Told(tmp_path)
    keys = [part.keys.public for part in made.parts]
    with heard(*keys, port=made.port, keys=made.keys) as made.relays:
        made.relays.start()
        try:
            for part in made.parts:
                part.start()
            made.telling(2)
            yield made
        finally:
            for part in made.parts:
                part.end()


def numbers(hook: RelayedHook, count: int) -> list[float]:
    """The times in the next lines; a poll may be asked for beside them."""
    found: list[Announcement] = []

    def enough() -> bool:
        select.select([hook], [], [], 0.2)
        found.extend(said for said in hook.read() if said.nodes)
        return len(found) >= count

    wait_for(enough, what=f"{count} lines are told")
    return [said.at_s for said in found]


def test_both_controllers_tell_within_milliseconds(told: Told) -> None:
    hook, took_s = told.hook(), list[float]()
    assert hook.hears_all
    for number in range(1, 101):
        began_s = time.perf_counter()
        told.write(number % 2, end(number))
        assert numbers(hook, 1) == [float(number)]
        took_s.append(time.perf_counter() - began_s)
    median_ms, most_ms = 1000 * statistics.median(took_s), 1000 * max(took_s)
    sys.stdout.write(f"line to announcement: median {median_ms:.2f} ms, most {most_ms:.2f} ms\n")
    assert median_ms < 50  # of a busy machine; 0.2 ms on an idle one


def test_half_lines_torn_files_and_any_bytes(told: Told) -> None:
    hook = told.hook()
    told.write(0, "end\t7\t5")
    told.write(1, end(1))
    assert numbers(hook, 1) == [1.0]
    told.write(0, "\tbatch\tn1\n")
    assert numbers(hook, 1) == [7.0]
    with told.parts[0].file.open("ab") as file:
        file.write(bytes(range(256)) * 20 + b"\n\xff\xfe\0\n" + end(2).encode())
    assert numbers(hook, 1) == [2.0]
    told.parts[0].file.rename(told.parts[0].file.with_suffix(".old"))
    told.write(0, "bftrainer-hook 1\n" + end(3))
    assert numbers(hook, 1) == [3.0]


def test_of_more_than_a_relay_reads_at_once_a_poll_is_wanted(told: Told) -> None:
    hook = told.hook()
    told.write(0, end(1) * (MOST_BYTES // 10))
    said = wait_for(hook.read, what="a poll is wanted")
    assert {(one.partition, one.nodes) for one in said} <= {("", ()), ("batch", ("n1",))}
    assert said[0].partition == ""


def test_a_killed_relay_is_noticed_at_once_and_comes_back(told: Told) -> None:
    hook = told.hook()
    told.parts[0].end(signal.SIGKILL)
    told.telling(1)
    assert not hook.hears_all, "the daemon polls"
    told.write(1, end(1))
    assert numbers(hook, 1) == [1.0], "and is told by the other"
    told.write(0, end(2))  # nobody carries it: a poll shows the job
    told.parts[0].start()
    wait_for(lambda: hook.hears_all, what="it is there again")
    told.write(0, end(3))
    assert numbers(hook, 1) == [3.0]
    for part in told.parts:
        part.end(signal.SIGKILL)
    told.telling(0)
    with pytest.raises(BatchSystemError, match="None of 2 is connected") as raised:
        hook.read()
    assert raised.value.code == "BFT-1511"


@pytest.mark.long
def test_a_relay_that_hangs_is_lost_and_its_late_lines_only_call_for_a_poll(told: Told) -> None:
    hook, process = told.hook(), told.parts[0].process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    wait_for(lambda: not hook.hears_all, what="it is lost", timeout_s=3 * SILENT_S)
    assert told.count("lost") == 1
    process.send_signal(signal.SIGCONT)
    told.telling(2)
    told.write(0, end(4))
    assert numbers(hook, 1) == [4.0]


def test_two_relays_of_one_file_tell_each_job_once(told: Told) -> None:
    shared, second = told.parts
    second.end()
    told.telling(1)  # its end was noticed
    second.file = shared.file
    second.start()
    told.telling(2)
    hook = told.hook()
    for number in range(1, 21):
        told.write(0, end(number) + end(number))
    assert numbers(hook, 40) == [float(n) for n in range(1, 21) for _ in "12"]
    # On a busy machine some are late: then they are not told either, and a poll is wanted.
    wait_for(
        lambda: told.count("repeated") + told.count("late") == 40, what="the other's are recognised"
    )
    assert not any(said.nodes for said in hook.read())


def test_a_file_that_others_may_write_makes_a_relay_deaf(told: Told) -> None:
    hook = told.hook()
    told.parts[0].file.chmod(0o666)
    told.write(0, end(1))
    wait_for(lambda: not hook.hears_all, what="it says that it is deaf")
    assert "BFT-1233" in told.parts[0].log
    told.write(1, end(2))
    assert numbers(hook, 1) == [2.0], "the forged line was not carried"
    told.parts[0].file.chmod(0o644)
    told.telling(2)


def test_the_relay_of_a_controller_that_was_never_in_charge_waits_for_its_file(told: Told) -> None:
    backup, hook = told.parts[1], told.hook()
    backup.end()
    backup.file.unlink()
    backup.start()
    wait_for(lambda: told.count("waiting") == 1, what="it waits")
    assert hook.hears_all
    assert told.relays is not None
    assert told.relays.telling == 1
    told.parts[0].end()
    told.telling(0)
    with pytest.raises(BatchSystemError, match="BFT-1511"):
        hook.read()  # nobody tells
    backup.file.write_text("bftrainer-hook 1\n" + end(1))
    told.telling(1)
    assert hook.read() == (Announcement(at_s=0.0, partition=""),), "a poll shows the first jobs"
    told.write(1, end(2))
    assert numbers(hook, 1) == [2.0]


def test_only_registered_keys_are_heard(told: Told) -> None:
    stranger = RelayProcess(
        directory=told.parts[0].directory,
        file=told.parts[0].file,
        port=told.port,
        daemon_key=shown(told.keys.public),
        name="stranger",
    )
    wrong = RelayProcess(
        directory=told.parts[1].directory,
        file=told.parts[1].file,
        port=told.port,
        daemon_key=shown(generate_pair().public),
    )
    told.parts[1].end()
    told.telling(1)
    stranger.start()
    wrong.start()  # it would tell only the true daemon
    try:
        wait_for(lambda: f"hook_relay_keys: {stranger.key}" in stranger.log, what="it is told why")
        wait_for(lambda: told.count("stranger") > 0, what="it is counted")
        wait_for(
            lambda: told.count("handshake-failed") > 0, what="no handshake with a false daemon"
        )
        told.write(0, end(1))
        assert numbers(told.hook(), 0) == [] or told.count("repeated") == 0
        assert told.relays is not None
        assert told.relays.telling == 1
    finally:
        stranger.end()
        wrong.end()


@contextlib.contextmanager
def dealer(told: Told, part: RelayProcess) -> Iterator[zmq.Socket[bytes]]:
    """A connection with a relay's key, to say what no relay says."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as made:
        made.set(zmq.LINGER, 0)
        made.set(zmq.CURVE_SERVERKEY, told.keys.public.encode())
        made.set(zmq.CURVE_PUBLICKEY, part.keys.public.encode())
        made.set(zmq.CURVE_SECRETKEY, part.keys.secret.encode())
        made.connect(f"tcp://127.0.0.1:{told.port}")
        yield made


def test_lines_that_were_long_on_their_way_only_call_for_a_poll(told: Told) -> None:
    told.parts[1].end()
    told.telling(1)
    with dealer(told, told.parts[1]) as late:
        late.send(encode(RelayWord(sent_s=1000.0)))
        told.telling(2)
        hook = told.hook()
        late.send(encode(RelayWord(sent_s=995.0, lines=(end(1).strip(), end(2).strip()))))
        (said,) = wait_for(hook.read, what="a poll is wanted")
        assert said == Announcement(at_s=0.0, partition="")
        assert told.count("late") == 2
        late.send(encode(RelayWord(sent_s=1000.1, lines=(end(3).strip(),))))
        assert numbers(hook, 1) == [3.0]


def test_a_flood_of_one_relay_costs_neither_memory_nor_the_others_lines(told: Told) -> None:
    """Even a registered one may go mad."""
    told.parts[1].end()
    told.telling(1)
    over = threading.Event()
    lines = tuple(f"end\t{n}\t5\tbatch\tn2" for n in range(2000))

    def flood() -> None:
        with dealer(told, told.parts[1]) as mad:
            while not over.is_set():  # none is late, however slow this machine is
                word = encode(RelayWord(sent_s=time.monotonic(), lines=lines))
                for frame in (word, b"\0" * 1000, b'{"sent_s": 1}'):
                    with contextlib.suppress(zmq.Again):
                        mad.send(frame, flags=zmq.DONTWAIT)

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        wait_for(lambda: told.count("skipped") > 1000, what="the flood is heard")
        hook = told.hook()
        told.write(0, end(77))
        said: list[float] = []

        def heard_it() -> bool:
            read = hook.read()
            assert len(read) <= MOST_BYTES
            said.extend(one.at_s for one in read if one.nodes == ("n1",) or not one.nodes)
            return bool(said)

        wait_for(heard_it, what="the other's line, or that a poll is wanted", timeout_s=20)
        assert told.count("malformed") > 0
    finally:
        over.set()
        thread.join()


@pytest.mark.long
@pytest.mark.slurm
class TestInSlurm:
    @pytest.fixture
    def cluster(self) -> Iterator[SlurmTestCluster]:
        with running_cluster(n_nodes=4, has_hook=True) as running:
            yield running

    @pytest.fixture
    def relay(self, cluster: SlurmTestCluster, tmp_path: Path) -> Iterator[RelayProcess]:
        keys = generate_pair()
        path = tmp_path / "daemon.key"

        save_pair(keys, path)
        (tmp_path / "slurm.conf").write_text(f"SlurmUser={os.getuid()}\n")
        made = RelayProcess(
            directory=tmp_path,
            file=cluster.config.hook_file,
            port=free_port(),
            daemon_key=shown(keys.public),
        )
        try:
            yield made
        finally:
            made.end()

    def test_a_daemon_elsewhere_gives_back_for_jobs_that_a_relay_tells_and_polls_without(
        self,
        cluster: SlurmTestCluster,
        relay: RelayProcess,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        options = {k: v for k, v in cluster.config.batch_options().items() if k != "hook_file"}
        options |= {
            "hook_relay": f"tcp://127.0.0.1:{relay.port}",
            "hook_relay_keys": relay.key,
            "hook_relay_key_file": str(tmp_path / "daemon.key"),
        }
        monkeypatch.setattr(type(cluster.config), "batch_options", lambda _: options)
        with training_everywhere(cluster, tmp_path) as (sidecar, _trainer):
            assert view(sidecar).mode == "polling"
            assert sidecar.log.read_text().count("BFT-1511") == 1, "said once"
            relay.start()
            wait_for(lambda: view(sidecar).mode == "hook", what="a relay tells")
            self.gives_back(cluster, sidecar)
            relay.end(signal.SIGKILL)
            wait_for(lambda: view(sidecar).mode == "polling", what="the daemon polls")
            looks = view(sidecar).looks
            wait_for(lambda: view(sidecar).looks > looks + 2, what="it looks every second")
            relay.start()
            wait_for(lambda: view(sidecar).mode == "hook", what="it is told again")
            told = {one.kind: one.total for one in view(sidecar).told}
            assert (told["connected"], told["lost"], told["lines"] > 0) == (2, 1, True)
            assert 'bftrainer_hook_relays_total{kind="lost"} 1' in sidecar.client.metrics()

    def gives_back(self, cluster: SlurmTestCluster, sidecar: DaemonProcess) -> None:
        seen = len(given_back(sidecar))
        job_id = cluster.submit(n_nodes=2, duration_s=1, limit_s=60)
        wait_for(lambda: len(given_back(sidecar)) > seen, what="nodes are given back")
        starts(cluster, job_id)
