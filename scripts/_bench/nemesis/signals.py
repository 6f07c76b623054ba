"""Faults that signals are: daemon, agents and workers are killed, or stopped for a while."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from _bench.nemesis.bed import Bed
from _bench.nemesis.schedule import DAEMON, Fault, Kind
from bftrainer.lab.try_records import Records
from tests.support.hosts import HostError
from tests.support.hosts.plan import USERS

AGENT: Final = "trainers.agent"
USER: Final = USERS["ada"]
NUMBERS: Final = {
    Kind.DAEMON_KILL: signal.SIGKILL,
    Kind.DAEMON_TERM: signal.SIGTERM,
    Kind.DAEMON_STOP: signal.SIGSTOP,
    Kind.AGENT_KILL: signal.SIGKILL,
    Kind.AGENT_STOP: signal.SIGSTOP,
    Kind.WORKER_KILL: signal.SIGKILL,
    Kind.WORKER_STOP: signal.SIGSTOP,
    Kind.WORKERS_KILL: signal.SIGKILL,
    Kind.WORKERS_STOP: signal.SIGSTOP,
}


class Signals:
    """Sends them, and wakes whom it has stopped."""

    def __init__(self, bed: Bed) -> None:
        self._bed = bed
        self._stopped: dict[Fault, list[int]] = {}  # descriptors of processes

    def begin(self, fault: Fault) -> None:
        """Kill or stop what is there of it."""
        number = NUMBERS[fault.kind]
        if fault.kind in DAEMON and number != signal.SIGSTOP:
            self._bed.keeper.is_wanted = False
        for pid in self._victims(fault):
            with suppress(ProcessLookupError):
                descriptor = os.pidfd_open(pid)  # the number may be another's when it is woken
                self._stopped.setdefault(fault, []).append(descriptor)
                signal.pidfd_send_signal(descriptor, number)

    def end(self, fault: Fault) -> None:
        """Wake them; let the daemon be started again."""
        for descriptor in self._stopped.pop(fault, []):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGCONT)
            os.close(descriptor)
        if fault.kind in DAEMON:
            self._bed.keeper.is_wanted = True

    def _victims(self, fault: Fault) -> list[int]:
        if fault.kind in DAEMON:
            return self._bed.keeper.pids()
        if fault.kind in (Kind.AGENT_KILL, Kind.AGENT_STOP):
            return self._bed.cluster.processes(fault.target, AGENT)
        if fault.kind in (Kind.WORKERS_KILL, Kind.WORKERS_STOP):
            records = [self._bed.records[int(fault.target)]]
            return [pid for pid, _ in self._workers(records, self._bed.cluster.powered)]
        on_node = list(self._workers(self._bed.records, [fault.target]))
        if not on_node:
            return []
        newest, _ = max(on_node, key=lambda worker: worker[1])
        return [newest]

    def _workers(
        self, records: Iterable[Records], hosts: Iterable[str]
    ) -> Iterator[tuple[int, float]]:
        """Yield processes that have written records, and when they last did, since the epoch."""
        running = {host: self._numbers(host) for host in hosts}
        for trainer in records:
            for path in trainer.directory.glob("samples-*.jsonl"):
                _, host, pid = path.stem.split("-")
                if outside := running.get(host, {}).get(int(pid)):
                    yield outside, path.stat().st_mtime

    def _numbers(self, host: str) -> dict[int, int]:
        """Return the user's processes of a host, numbered there -> numbered outside."""
        outside = {}
        with suppress(OSError, HostError):  # it has no power
            for pid in self._bed.cluster.processes(host):
                with suppress(OSError):
                    text = Path(f"/proc/{pid}/status").read_text()
                    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
                    if int(lines["Uid"].split()[0]) == USER:
                        outside[int(lines["NSpid"].split()[-1])] = pid
        return outside
