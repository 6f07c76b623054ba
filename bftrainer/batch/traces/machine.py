"""A trace of a Slurm log, completed with what ``sinfo`` says of the machine's nodes.

Nodes on which no job ran are then part of the trace, and each node has a type and a partition, so
that nodes of different types or partitions are counted apart. Whole nodes are idle as before: while
no job runs on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bftrainer.batch.traces.fragments import Fragments
from bftrainer.batch.traces.gpu_use import gpu_use
from bftrainer.batch.traces.jobs import JobTable, partitions_of
from bftrainer.batch.traces.sinfo import ListedNode, other_cluster
from bftrainer.batch.traces.text import ReadOptions
from bftrainer.model.columns import counted


def add_nodes(table: JobTable, nodes: Mapping[str, ListedNode], path: Path) -> None:
    """Add the nodes on which no job ran; note how many there are.

    Raises:
        TraceError: BFT-4013, no job of the log ran on any of these nodes.
    """
    unlisted = [name for name in table.names if name not in nodes]
    if len(unlisted) == len(table.names):
        raise other_cluster(path.name, table.path.name, unlisted[0])
    if unlisted:
        table.notes.append(
            f"{path.name} lacks {counted(len(unlisted), 'node')} of jobs, such as {unlisted[0]}, "
            "whose GPUs and types are not known"
        )
    n_before = len(table.names)
    for name in nodes:
        table.index(name)
    if len(table.names) > n_before:
        n_added = len(table.names) - n_before
        table.notes.append(
            f"no job ran on {counted(n_added, 'node')} of {path.name}: idle, unless --closed says "
            "more"
        )


def with_machine(
    trace: Fragments, table: JobTable, nodes: Mapping[str, ListedNode], options: ReadOptions
) -> Fragments:
    """Return the trace with types, partitions and GPUs of its nodes."""
    use = gpu_use(table, nodes, trace.span_s)
    used_s = np.clip(np.array(table.run_end_s), *trace.span_s)
    used_s -= np.clip(np.array(table.run_start_s), *trace.span_s)
    ran = partitions_of(table, used_s, len(trace.names), fewest=1)
    return replace(
        trace,
        node_types=tuple(_types(trace.names, nodes)),
        partitions=tuple(_partitions(trace.names, ran, table, nodes, options.ignored)),
        gpus=use.times,
        notes=(*trace.notes, *use.notes),
    )


def _types(names: Sequence[str], nodes: Mapping[str, ListedNode]) -> Iterator[str]:
    for name in names:
        if name in nodes:
            yield nodes[name].node_type
        else:
            yield ""


def _partitions(
    names: Sequence[str],
    ran: Sequence[str] | None,
    table: JobTable,
    nodes: Mapping[str, ListedNode],
    ignored: Sequence[str],
) -> Iterator[str]:
    """Yield the partition of each node, of those that ``sinfo`` lists.

    It is the one whose jobs ran there longest, else the first with any jobs, else the first.
    """
    for number, name in enumerate(names):
        longest = ran[number] if ran is not None else ""
        if name not in nodes:
            yield longest
            continue
        listed = [partition for partition in nodes[name].partitions if partition not in ignored]
        with_jobs = [partition for partition in listed if partition in table.partitions]
        preferred = [longest] if longest in listed else []
        yield next(iter([*preferred, *with_jobs, *listed]), "")
