"""A large Slurm site as its commands print it, and what we hold there. Seeded, pure.

The texts are in the formats of ``slurm_plugins.commands``; ``Printed`` answers for the
commands, so that the adapter's own reader makes the snapshot.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bftrainer.batch.process import Completed
from bftrainer.model.decision import PilotView
from bftrainer.model.trainer import MeasuredCosts, TrainerRecord, TrainerSpec, TrainerState
from slurm_plugins import commands, doctor, job_requests
from slurm_plugins.parse import FIELD, NODE_FIELDS, RECORD

PARTITIONS = ("batch", "bf", "debug")  # of a node: the first two; of one in ten all
KINDS = (  # generic resources, processors, megabytes, features
    ("gpu:a100:4", 64, 512_000, "a100,ib"),
    ("(null)", 128, 256_000, "epyc,ib"),
    ("gpu:v100:4", 40, 384_000, "v100"),
)
IDLE = 0.2  # of the nodes; half of them we hold
N_PLANNED = 50  # jobs that backfill has planned
STATE, START = 2, 4  # fields of a row of squeue
SIZES = (1, 1, 1, 1, 2, 4, 8, 16, 64, 256)  # of jobs, in nodes
CONFIG = (
    "SLURM_VERSION           = 22.05.8\nSchedulerParameters     = bf_interval=30,bf_window=1440\n"
    "SelectType              = select/cons_tres\nSelectTypeParameters    = CR_CORE_MEMORY\n"
    "SlurmUser               = slurm(64030)\nKillWait                = 30 sec\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large a site is."""

    n_nodes: int
    n_trainers: int
    n_pending: int
    holds_all: bool = False  # every idle node is ours, so that the reserve is to be restored

    @property
    def name(self) -> str:
        """How reports call it."""
        words = f"{self.n_nodes:,} nodes, {self.n_trainers:,} trainers, {self.n_pending:,} jobs"
        return f"{words}, no reserve" if self.holds_all else words


class Printed:
    """A site at one moment: what each command prints, and what we know of our own."""

    def __init__(self, size: Size, now_s: float, seed: int = 1) -> None:
        self._size, self._now_s = size, now_s
        self._chance = random.Random(seed)  # noqa: S311 - a workload, not a secret
        self._names = [f"nid{k:06d}" for k in range(size.n_nodes)]
        self.idle = sorted(self._chance.sample(range(size.n_nodes), int(IDLE * size.n_nodes)))
        self.held = self.idle if size.holds_all else self.idle[::2]
        self._at = 0  # looks so far: what moves is printed otherwise at each
        jobs = [*self._running(), *self._pending(), *self._pilots()]
        head = f"Backfilling stats\n\tLast cycle when: Sun ({int(now_s) - 9})\n"
        self._texts: Mapping[tuple[str, ...], Callable[[], str]] = {
            commands.SINFO: lambda: _long(self._nodes()),
            commands.SQUEUE: lambda: _short(self._moved(job) for job, _ in jobs),
            commands.ASKED: lambda: _long(asks for _, asks in jobs if asks),
            commands.names_argv("bft", "bf"): lambda: _short(self._pilot_names()),
            commands.RESERVATIONS: lambda: "No reservations in the system\n",
            commands.SDIAG: lambda: f"{head}\tLast cycle: 2000000\n\tLast depth cycle: 100\n",
            commands.CONFIG: lambda: CONFIG,
            commands.VERSION: lambda: "slurm 22.05.8\n",
            doctor.PARTITION_ARGV: lambda: "".join(
                f"PartitionName={name} MaxCPUsPerNode=UNLIMITED OverSubscribe=NO\n"
                for name in PARTITIONS
            ),
            commands.NODES: lambda: "".join(self._limits()),
        }
        self._answers: dict[tuple[str, ...], str] = {}

    def base_environment(self) -> dict[str, str]:
        """Return no variable: no file of this host is that site's."""
        return {}

    def query(self, argv: Sequence[str]) -> Completed:
        """Answer as the command would."""
        key = tuple(argv)
        if key not in self._answers:
            self._answers[key] = self._texts[key]()
        return Completed(argv=key, returncode=0, stdout=self._answers[key], stderr="", wall_s=0.0)

    def move(self) -> None:
        """Go on: plans are later, and on one node in a hundred something else is used."""
        self._at += 1
        self._answers = {key: self._texts[key]() for key in self._answers}

    def _moved(self, job: tuple[str, ...]) -> tuple[str, ...]:
        start = job[START]
        is_planned = job[STATE] == "PENDING" and start.isdecimal()
        later = (f"{int(start) + self._at}",) if is_planned else (start,)
        return (*job[:START], *later, *job[START + 1 :])

    def views(self) -> tuple[PilotView, ...]:
        """Return our pilots."""
        asked_s, end_s = self._now_s - 600, self._now_s + 7200
        return tuple(
            PilotView(
                pilot_id=f"p{k:06d}",
                node=self._names[k],
                requested_s=asked_s,
                is_held=True,
                end_s=end_s,
            )
            for k in self.held
        )

    def trainers(self) -> tuple[TrainerRecord, ...]:
        """Return the trainers, in order of submission."""
        costs = MeasuredCosts(
            rescale_up_s=0.4,
            rescale_down_s=0.2,
            samples_per_s_by_size=((1, 100.0), (4, 380.0), (8, 720.0)),
        )
        return tuple(
            TrainerRecord(
                trainer_id=f"t{k}",
                spec=TrainerSpec(name=f"t{k}", user=f"u{k % 50}", script="/s.py", n_max=512),
                state=TrainerState.RUNNING,
                submitted_s=self._now_s,
                costs=costs,
            )
            for k in range(self._size.n_trainers)
        )

    def training(self, n_running: int) -> dict[str, str]:
        """Return who trains where: so many trainers, a node each in turn."""
        return {self._names[k]: f"t{at % n_running}" for at, k in enumerate(self.held)}

    # ---- texts ---------------------------------------------------------------------------

    def _nodes(self) -> Iterator[tuple[str, ...]]:
        idle, lent = set(self.idle), set(self.held)
        for k, name in enumerate(self._names):
            gres, cpus, memory, features = KINDS[k % len(KINDS)]
            is_used = k not in idle or k in lent
            by_state = f"{cpus}/0/0/{cpus}" if is_used else f"0/{cpus}/0/{cpus}"
            state = "allocated" if is_used else "idle"
            for partition in PARTITIONS if k % 10 == 0 else PARTITIONS[:2]:
                row = {
                    "NodeList": name, "StateLong": state, "PartitionName": partition,
                    "Gres": gres, "CPUs": f"{cpus}", "Memory": f"{memory}", "Features": features,
                    "CPUsState": by_state,
                    "AllocMem": f"{(k + self._at) % 100 == 0:d}" if is_used else "0",
                    "GresUsed": "gpu:0", "Available": "up", "Time": "1-00:00:00",
                    "Size": "1-infinite", "PriorityTier": "1" if partition == "bf" else "10",
                    "OverSubscribe": "NO", "Reason": "none",
                }  # fmt: skip
                yield tuple([row[field] for field in NODE_FIELDS])

    def _running(self) -> Iterator[tuple[tuple[str, ...], None]]:
        idle = set(self.idle)
        busy = [k for k in range(self._size.n_nodes) if k not in idle]
        number = 0
        while busy:
            mine, busy = busy[: (n := self._chance.choice(SIZES))], busy[n:]
            number += 1
            hours = self._chance.randint(1, 24)
            start_s = self._now_s - self._chance.uniform(0, 3600)
            nodes = ",".join(self._names[k] for k in mine)
            yield self._job(f"{number}", "RUNNING", len(mine), hours, start_s, nodes=nodes), None

    def _pending(self) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
        reasons = ("Priority",) * 6 + ("Dependency", "QOSMaxJobsPerUserLimit", "AssocGrpCpuLimit")
        for at in range(self._size.n_pending):
            reason = "Resources" if at == 0 else self._chance.choice(reasons)
            lacks_nodes = reason in ("Resources", "Priority")  # else they would not be idle
            share = self._chance.uniform(IDLE, 3 * IDLE)
            n_nodes = int(share * self._size.n_nodes) if lacks_nodes else self._chance.choice(SIZES)
            number, is_planned = f"{100_000 + at}", at < N_PLANNED
            asks = dict.fromkeys(job_requests.FIELDS, "0") | {
                "JobArrayID": number, "NumCPUs": f"{n_nodes}", "MinCpus": "1",
                "NumTasks": f"{n_nodes}", "MinMemory": "0", "MaxNodes": "0", "MinTime": "N/A",
                "OverSubscribe": "NO", "Reservation": "(null)", "ReqSwitch": "0@00:00",
                "Prefer": "(null)",
                "tres-per-job": "N/A", "tres-per-socket": "N/A", "tres-per-task": "N/A",
                "tres-alloc": "(null)",
            }  # fmt: skip
            row = self._job(
                number,
                "PENDING",
                n_nodes,
                self._chance.randint(1, 24),
                self._now_s + 3600 + 60 * at if is_planned else None,
                reason=reason,
                planned=",".join(self._names[:n_nodes]) if is_planned else "",
                priority=1_000_000 - at,
                features=self._chance.choice(("(null)", "(null)", "a100", "ib&epyc", "a100|v100")),
                partition=self._chance.choice(("batch", "batch", "batch", "debug")),
            )
            yield row, tuple([asks[field] for field in job_requests.FIELDS])

    def _pilots(self) -> Iterator[tuple[tuple[str, ...], None]]:
        for k in self.held:
            number, begun_s = f"{900_000 + k}", self._now_s - 600
            node = self._names[k]
            row = self._job(
                number, "RUNNING", 1, 2, begun_s, nodes=node, user="bft", partition="bf"
            )
            yield row, None

    def _limits(self) -> Iterator[str]:
        for k, name in enumerate(self._names):
            _, cpus, _, _ = KINDS[k % len(KINDS)]
            cores = f"CoresPerSocket={cpus} ThreadsPerCore=1 Sockets=1"
            yield f"NodeName={name} {cores} CPUEfctv={cpus} CPUTot={cpus}\n"

    def _pilot_names(self) -> Iterator[tuple[str, str]]:
        for k in self.held:
            yield f"{900_000 + k}", f"p{k:06d}"

    def _job(
        self,
        number: str,
        state: str,
        n_nodes: int,
        hours: int,
        start_s: float | None,
        *,
        nodes: str = "",
        planned: str = "",
        reason: str = "None",
        priority: int = 1000,
        features: str = "(null)",
        partition: str = "batch",
        user: str = "",
    ) -> tuple[str, ...]:
        start = "N/A" if start_s is None else f"{int(start_s)}"
        submit = f"{int(self._now_s) - 7200}"
        owner = user or f"u{int(number) % 200}"
        return (
            *(number, partition, state, reason, start, f"{hours}:00:00", planned, nodes),
            *(f"{n_nodes}", submit, owner, features, "N/A", f"{priority}", "", "", "(null)"),
        )


def _short(rows: Iterable[Sequence[str]]) -> str:
    return "".join([f"{RECORD}{FIELD.join(row)}\n" for row in rows])


def _long(rows: Iterable[Sequence[str]]) -> str:
    return "".join([f"{FIELD.join(row)}{RECORD}\n" for row in rows])
