"""A large Slurm site whose jobs share nodes, as its commands print it: GPUs are lent one by one.

Every node has 8 GPUs. Ordinary jobs have some, pilots of ours about two thirds of the others, each
one unit of a trainer. Seeded, pure; ``Printed`` of ``scale_site`` answers for the commands.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from _bench.scale_site import PARTITIONS, Printed, Size
from bftrainer.model.cluster import PART_MARK
from bftrainer.model.decision import PilotView
from bftrainer.model.parts import NodePart
from bftrainer.model.trainer import MeasuredCosts, TrainerRecord, TrainerSpec, TrainerState
from slurm_plugins.parse import NODE_FIELDS

HOST_GPUS: Final = 8
CPUS_PER_GPU, MEMORY_PER_GPU_MB = 8, 64_000
GPU_TYPE: Final = "gpu:a100"
USED: Final = (0, 0, 0, 1, 2, 4, 8)  # GPUs of a node that ordinary jobs have
HELD_SHARE: Final = 0.645  # of those that they do not have
WIDTHS: Final = {"single GPUs": (1,), "mixed widths": (1, 2, 4, 8)}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSize(Size):
    """How large a site is whose GPUs are lent."""

    widths: str = "single GPUs"  # one of ``WIDTHS``

    @property
    def name(self) -> str:
        """How reports call it."""
        gpus = f"{self.n_nodes:,} nodes of {HOST_GPUS} GPUs"
        return f"{gpus}, {self.n_trainers:,} trainers, {self.n_pending:,} jobs, {self.widths}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """A pilot of ours."""

    part: NodePart
    pilot_id: str
    number: int  # of its job
    trainer: int


class PrintedGpus(Printed):
    """Such a site at one moment, and what we hold there."""

    def __init__(self, size: GpuSize, now_s: float, seed: int = 1) -> None:
        self._widths = WIDTHS[size.widths]
        self._used: list[int] = []  # GPUs of ordinary jobs by node
        self._pilots_of: list[list[_Held]] = []  # by node
        super().__init__(size, now_s, seed)

    def _hold(self) -> None:
        """Draw what ordinary jobs and our pilots have."""
        chance = self._chance
        number = 900_000
        for name in self._names:
            n_used = chance.choice(USED)
            n_free, pilots = HOST_GPUS - n_used, list[_Held]()
            while n_free:
                trainer = chance.randrange(self._size.n_trainers)
                width = self._widths[trainer % len(self._widths)]
                if width > n_free or chance.random() >= HELD_SHARE:
                    n_free -= 1
                    continue
                part = NodePart(
                    name=f"{name}{PART_MARK}{HOST_GPUS - n_free}",
                    node=name,
                    gpu_type=GPU_TYPE,
                    gpus=width,
                    cores=width * CPUS_PER_GPU,
                    memory_mb=width * MEMORY_PER_GPU_MB,
                )
                number += 1
                pilots.append(
                    _Held(part=part, pilot_id=f"p{number:06d}", number=number, trainer=trainer)
                )
                n_free -= width
            self._used.append(n_used)
            self._pilots_of.append(pilots)

    def views(self) -> tuple[PilotView, ...]:
        """Return our pilots."""
        return tuple(
            [
                PilotView(
                    pilot_id=lent.pilot_id,
                    node=lent.part.name,
                    requested_s=self._now_s - 600,
                    is_held=True,
                    end_s=self._now_s + 7200,
                    part=lent.part,
                )
                for lent in self._all_held()
            ]
        )

    def _all_held(self) -> Iterator[_Held]:
        for pilots in self._pilots_of:
            yield from pilots

    def trainers(self) -> tuple[TrainerRecord, ...]:
        """Return the trainers, in order of submission."""
        records: list[TrainerRecord] = []
        for k in range(self._size.n_trainers):
            width = self._widths[k % len(self._widths)]
            rate = 90.0 + k % 20
            costs = MeasuredCosts(
                rescale_up_s=0.4,
                rescale_down_s=0.2,
                samples_per_s_by_size=((1, rate), (4, 3.8 * rate), (16, 13.0 * rate)),
            )
            spec = TrainerSpec(
                name=f"t{k}",
                user=f"u{k % 50}",
                script="/s.py",
                n_max=128 // width,
                gpus_per_unit=width,
            )
            records.append(
                TrainerRecord(
                    trainer_id=f"t{k}",
                    spec=spec,
                    state=TrainerState.RUNNING,
                    submitted_s=self._now_s,
                    costs=costs,
                )
            )
        return tuple(records)

    def training(self, n_running: int) -> dict[str, str]:
        """Return who trains where, of the first so many trainers."""
        return {
            lent.part.name: f"t{lent.trainer}"
            for lent in self._all_held()
            if lent.trainer < n_running
        }

    # ---- texts ---------------------------------------------------------------------------

    def _nodes(self) -> Iterator[tuple[str, ...]]:
        cpus, memory_mb = HOST_GPUS * CPUS_PER_GPU, HOST_GPUS * MEMORY_PER_GPU_MB
        for k, name in enumerate(self._names):
            n_gpus = self._used[k] + sum([lent.part.gpus for lent in self._pilots_of[k]])
            n_cpus = n_gpus * CPUS_PER_GPU
            state = "mixed" if n_gpus else "idle"
            if n_gpus == HOST_GPUS:
                state = "allocated"
            used_mb = n_gpus * MEMORY_PER_GPU_MB - ((k + self._at) % 100 == 0 and n_gpus > 0)
            indices = f"IDX:0-{n_gpus - 1}" if n_gpus else "IDX:N/A"
            for partition in PARTITIONS if k % 10 == 0 else PARTITIONS[:2]:
                row = {
                    "NodeList": name, "StateLong": state, "PartitionName": partition,
                    "Gres": f"{GPU_TYPE}:{HOST_GPUS}", "CPUs": f"{cpus}",
                    "Memory": f"{memory_mb}", "Features": "a100,ib",
                    "CPUsState": f"{n_cpus}/{cpus - n_cpus}/0/{cpus}", "AllocMem": f"{used_mb}",
                    "GresUsed": f"{GPU_TYPE}:{n_gpus}({indices})", "Available": "up",
                    "Time": "1-00:00:00", "Size": "1-infinite",
                    "PriorityTier": "1" if partition == "bf" else "10",
                    "OverSubscribe": "NO", "Reason": "none",
                }  # fmt: skip
                yield tuple([row[field] for field in NODE_FIELDS])

    def _running(self) -> Iterator[tuple[tuple[str, ...], None]]:
        self._hold()
        for k, n_used in enumerate(self._used):
            if n_used:
                hours = self._chance.randint(1, 24)
                start_s = self._now_s - self._chance.uniform(0, 3600)
                row = self._job(f"{k + 1}", "RUNNING", 1, hours, start_s, nodes=self._names[k])
                yield row, None

    def _pilots(self) -> Iterator[tuple[tuple[str, ...], None]]:
        begun_s = self._now_s - 600
        for lent in self._all_held():
            node = lent.part.node
            number = f"{lent.number}"
            row = self._job(
                number, "RUNNING", 1, 2, begun_s, nodes=node, user="bft", partition="bf"
            )
            yield row, None

    def _limits(self) -> Iterator[str]:
        cpus = HOST_GPUS * CPUS_PER_GPU
        for name in self._names:
            cores = f"CoresPerSocket={cpus} ThreadsPerCore=1 Sockets=1"
            yield f"NodeName={name} {cores} CPUEfctv={cpus} CPUTot={cpus}\n"

    def _pilot_names(self) -> Iterator[tuple[str, str]]:
        for lent in self._all_held():
            yield f"{lent.number}", lent.pilot_id
