"""A look that knows the last one's rows shows what a look without them shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bftrainer.batch.process import Completed
from bftrainer.model.cluster import Snapshot
from slurm_plugins import commands, doctor
from slurm_plugins.parse import FIELD, RECORD, ControllerClock
from slurm_plugins.snapshot import SnapshotReader
from tests.support.examples import examples

NOW_S = int(time.time())
NODES = ("n1", "n2", "n3")
PARTITIONS = "".join(
    f"PartitionName={name} MaxCPUsPerNode=UNLIMITED OverSubscribe=NO\n" for name in ("batch", "bf")
)
LIMITS = "".join(
    f"NodeName={name} CoresPerSocket=8 CPUTot=8 CPUEfctv=8 Sockets=1 ThreadsPerCore=1\n"
    for name in NODES
)
CONFIG = "SLURM_VERSION = 22.05.8\nSelectType = select/cons_tres\n"


class Clock(ControllerClock):
    """Ahead by as much as it was made with."""

    def hear(self, text: str, *, sent_s: float, received_s: float) -> None:
        """Learn nothing."""


class Printed:
    """Answers as Slurm's commands would of this state."""

    def __init__(self, site: dict[str, Any]) -> None:
        self._site = site

    def base_environment(self) -> dict[str, str]:
        return {}

    def query(self, argv: Sequence[str]) -> Completed:
        made: dict[tuple[str, ...], Callable[[], str]] = {
            commands.SINFO: self._nodes,
            commands.SQUEUE: self._jobs,
            commands.ASKED: self._asked,
            commands.names_argv("bft", "bf"): lambda: f"{RECORD}7{FIELD}p000007\n",
            commands.RESERVATIONS: lambda: "No reservations in the system\n",
            commands.SDIAG: lambda: "Backfilling stats\n\tLast cycle when: x (17)\n",
            commands.CONFIG: lambda: CONFIG,
            commands.VERSION: lambda: "slurm 22.05.8\n",
            doctor.PARTITION_ARGV: lambda: PARTITIONS,
            commands.NODES: lambda: LIMITS,
        }
        text = made[tuple(argv)]()
        return Completed(argv=tuple(argv), returncode=0, stdout=text, stderr="", wall_s=0.0)

    def _nodes(self) -> str:
        rows = [
            (name, state, part, "gpu:a100:4", "8", "1000", "a,b", "8/0/0/8", "0", "gpu:0", "up",
             "infinite", "1-infinite", "1", "NO", "none")
            for name, state in zip(NODES, self._site["states"], strict=True)
            for part in ("batch", "bf")[: 2 if name != "n3" else self._site["n3_parts"]]
        ]  # fmt: skip
        return "".join(f"{FIELD.join(row)}{RECORD}\n" for row in rows)

    def _jobs(self) -> str:
        rows = [
            (f"{number}", "bf" if number == 7 else "batch", state, reason, f"{NOW_S + start_s}",
             "1:00:00", planned, "n1" if state == "RUNNING" else "", "1", f"{NOW_S}",
             "bft" if number == 7 else "alice", "(null)", "N/A", f"{priority}", "", excluded,
             waits)
            for number, state, reason, start_s, priority, excluded, waits, planned
            in self._site["jobs"]
        ]  # fmt: skip
        return "".join(f"{RECORD}{FIELD.join(row)}\n" for row in rows)

    def _asked(self) -> str:
        rows = [
            (f"{job[0]}", "4", "1", "1", "100M", "0", "N/A", "OK", "(null)", "0", "0@00:00", "0",
             "a", "N/A", "N/A", "N/A", "cpu=4,mem=100M,node=1")
            for job in self._site["jobs"]
            if job[1] == "PENDING"
        ]  # fmt: skip
        return "".join(f"{FIELD.join(row)}{RECORD}\n" for row in rows)


def jobs() -> st.SearchStrategy[list[tuple[Any, ...]]]:
    one = st.tuples(
        st.integers(5, 9),
        st.sampled_from(["PENDING", "PENDING", "RUNNING"]),
        st.sampled_from(["Priority", "JobHeldUser", "BeginTime", "Dependency"]),
        st.integers(0, 2),
        st.integers(0, 1),
        st.sampled_from(["", "n1", "n[1-3]", "n[1-90]"]),
        st.sampled_from(["(null)", "afterok:5"]),
        st.sampled_from(["", "n1", "n[1-2]", "n[1-2"]),
    )
    return st.lists(one, max_size=5, unique_by=lambda job: job[0])


def sites() -> st.SearchStrategy[dict[str, Any]]:
    state = st.sampled_from(["idle", "allocated", "completing"])
    return st.fixed_dictionaries(
        {
            "states": st.tuples(*[state] * 3),
            "n3_parts": st.integers(1, 2),
            "jobs": jobs(),
            "ahead_s": st.sampled_from([0.0, 0.0, 90.0]),
        }
    )


def _reader(site: dict[str, Any]) -> SnapshotReader:
    printed: Any = Printed(site)  # answers as SlurmCommands does
    return SnapshotReader(
        commands=printed,
        user="bft",
        pilot_partition="bf",
        partition=None,
        reservations_interval_s=0.0,
    )


def _look(reader: SnapshotReader) -> Snapshot:
    return replace(reader.read(), taken_at_s=0.0)


@settings(max_examples=examples(300), deadline=None)
@given(history=st.lists(sites(), min_size=2, max_size=5))
def test_a_look_is_the_same_whatever_was_seen_before(history: list[dict[str, Any]]) -> None:
    known = _reader(history[0])
    for site in history:
        fresh = _reader(site)
        for reader in (known, fresh):
            reader.commands = fresh.commands
            reader.clock = Clock(least_s=site["ahead_s"], most_s=site["ahead_s"])
        assert _look(known) == _look(fresh)
