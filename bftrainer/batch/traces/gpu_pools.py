"""Idle GPUs of a trace, by partition and type: in figures, sentences and rows. Pure.

A *pool* is the GPUs of one type on the nodes of one partition; pools are never added up, because
trainers do not use different types together. ``trace info``, ``whatif`` and ``simulate`` say the
same of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bftrainer.batch.traces.fragments import HOUR_S, Fragments
from bftrainer.model.columns import counted
from bftrainer.model.quantities import quantity

DAY_S = 24 * HOUR_S
MOST_ROWS = 40
UNNAMED = "gpu"  # a type without a name
NOT_TOLD = "not told"
TITLE = "Idle GPUs"
HEADERS = ("PARTITION", "GPU TYPE", ">NODES", ">GPUS", ">IDLE, WHOLE NODES", ">IDLE, LEFTOVER")
WORDS = (
    "The table has idle GPU-hours a day: on whole nodes, on which no job runs, and leftover, on "
    "nodes of which jobs use a part."
)
ADVICE = (
    "Lending whole nodes alone cannot use the leftover. 'lend: auto' in the policy lends single "
    "GPUs (docs/howto/slurm-site.md); that takes processors and memory of the node, too, and "
    "whether jobs leave them is not counted here."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPool:
    """The GPUs of one type in one partition."""

    partition: str  # "": not known
    gpu_type: str  # such as a100; gpu: the type has no name
    n_nodes: int  # that have such GPUs
    n_gpus: int
    whole_gpu_h_per_day: float  # idle GPU-hours a day on nodes without a job
    leftover_gpu_h_per_day: float | None  # on nodes of which jobs use a part; null: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleGpus:
    """The GPUs of a machine and when they are idle."""

    n_gpus_by_type: dict[str, int]  # of the machine
    pools: tuple[GpuPool, ...]  # the one with most idle time first
    unclear: str  # why the leftover is not known; "": it is


def idle_gpus(trace: Fragments) -> IdleGpus | None:
    """Return the idle GPUs of a trace by partition and type; None: its GPUs are not known."""
    times = trace.gpus
    if times is None:
        return None
    installed = times.installed
    idle_s = np.bincount(trace.node, weights=trace.length_s, minlength=len(trace.names))
    whole_s = idle_s[:, None] * installed
    leftover_s = times.idle_gpu_s()
    labels = np.array(trace.partitions or ("",) * len(trace.names))
    per_day = trace.duration_s / DAY_S * HOUR_S
    pools = []
    for partition in sorted(set(labels.tolist())):
        is_in_partition = labels == partition
        for kind, name in enumerate(times.kinds):
            has = is_in_partition & (installed[:, kind] > 0)
            if not has.any():
                continue
            leftover = float(leftover_s[has, kind].sum()) / per_day
            pools.append(
                GpuPool(
                    partition=partition,
                    gpu_type=name or UNNAMED,
                    n_nodes=int(has.sum()),
                    n_gpus=int(installed[has, kind].sum()),
                    whole_gpu_h_per_day=float(whole_s[has, kind].sum()) / per_day,
                    leftover_gpu_h_per_day=None if times.unclear else leftover,
                )
            )
    return IdleGpus(
        n_gpus_by_type=_by_type(times.kinds, installed),
        pools=tuple(sorted(pools, key=_idle_most)),
        unclear=times.unclear,
    )


def _by_type(kinds: tuple[str, ...], installed: NDArray[np.int32]) -> dict[str, int]:
    sums = installed.sum(axis=0).tolist()
    return {name or UNNAMED: count for name, count in zip(kinds, sums, strict=True) if count}


def _idle_most(pool: GpuPool) -> tuple[float, str, str]:
    idle_h = pool.whole_gpu_h_per_day + (pool.leftover_gpu_h_per_day or 0.0)
    return -idle_h, pool.partition, pool.gpu_type


def gpu_sentences(gpus: IdleGpus) -> Iterator[str]:
    """Yield what the machine has, and what the table means."""
    if not gpus.pools:
        yield "The nodes have no GPU that sinfo counts."
        return
    *before_last, all_types = (f"{count:,} {name}" for name, count in gpus.n_gpus_by_type.items())
    if before_last:
        all_types = f"{', '.join(before_last)} and {all_types}"
    n_gpus = sum(gpus.n_gpus_by_type.values())
    yield f"The nodes have {counted(n_gpus, 'GPU')}: {all_types}."
    yield WORDS
    if gpus.unclear:
        yield f"The leftover is not known: {gpus.unclear}."
    yield ADVICE
    if len(gpus.pools) > MOST_ROWS:
        yield f"The table has the {MOST_ROWS} of {len(gpus.pools)} pools with most idle time."


def gpu_rows(gpus: IdleGpus) -> list[tuple[str, ...]]:
    """Return the pools, under ``HEADERS``."""
    return [
        (
            pool.partition or NOT_TOLD,
            pool.gpu_type,
            f"{pool.n_nodes:,}",
            f"{pool.n_gpus:,}",
            quantity(pool.whole_gpu_h_per_day),
            _shown(pool.leftover_gpu_h_per_day),
        )
        for pool in gpus.pools[:MOST_ROWS]
    ]


def _shown(gpu_h: float | None) -> str:
    if gpu_h is None:
        return NOT_TOLD
    return quantity(gpu_h)
