"""The nodes of a Slurm cluster, with their partitions and GPUs: the output of ``sinfo``.

``sacct`` knows jobs only. ``sinfo`` says which nodes there are, also those without a job, and what
they have; it says so of the moment at which it ran. A line is a node in a partition (sinfo(1),
"--Node" and "--format", Slurm 20.11 to 26.05); further columns and a header do no harm. The star
behind the default partition, which ``%P`` prints, is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from bftrainer.batch.traces.text import TraceError, read_lines, unreadable
from bftrainer.model.generic_resources import GPU, by_kind, gpus_of, items_of
from bftrainer.model.hostlist import expand

COMMAND = 'sinfo --noheader --Node --all --format "%N|%R|%G"'
_HEADINGS = frozenset({"NODELIST", "HOSTNAMES"})
_COLUMNS = 3
MOST_GPUS = 100_000  # of a node, MIG slices and all: more is a mistake


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedNode:
    """A node of ``sinfo``."""

    partitions: tuple[str, ...]  # in the order in which they are listed
    node_type: str  # such as gpu:a100:4, or cpu
    gpus: Mapping[str, int]  # by type, "" where it has no name; those whose use Slurm counts


def read_sinfo(path: Path) -> dict[str, ListedNode]:
    """Return the nodes by name, in the order of the file.

    Raises:
        TraceError: BFT-4002, it cannot be read; BFT-4012, it is not the output of ``COMMAND``.
    """
    nodes: dict[str, ListedNode] = {}
    try:
        for number, line in read_lines(path):
            cells = list(map(str.strip, line.split("|")))
            if number == 1 and cells[0] in _HEADINGS:
                continue
            if len(cells) < _COLUMNS:
                raise _malformed(f"{path.name}:{number}", f"it has {len(cells)} of 3 fields")
            try:
                _add(nodes, cells)
            except ValueError as problem:
                raise _malformed(f"{path.name}:{number}", str(problem)) from problem
    except OSError as problem:
        raise unreadable(path, problem) from problem
    if not nodes:
        raise _malformed(path.name, "it names no node")
    return nodes


def _add(nodes: dict[str, ListedNode], cells: list[str]) -> None:
    """Add a line; raises ``ValueError``: a field cannot be read."""
    names, partition, gres = cells[:_COLUMNS]
    partition = partition.removesuffix("*")
    n_gpus, node_type = gpus_of(gres)
    if n_gpus > MOST_GPUS:
        raise ValueError(f"a node has {n_gpus:,} GPUs")
    listed = ListedNode(
        partitions=(partition,) if partition else (),
        node_type=node_type,
        gpus=by_kind(item for item in items_of(gres) if item.name == GPU and item.is_counted),
    )
    for name in expand(names):
        before = nodes.get(name)
        if before is None:
            nodes[name] = listed
        elif partition and partition not in before.partitions:
            nodes[name] = replace(before, partitions=(*before.partitions, partition))


def other_cluster(listed: str, log: str, node: str) -> TraceError:
    """Return the error of a list that has no node of a log, such as ``node``."""
    return TraceError(
        "BFT-4013",
        f"{listed} lists no node on which a job of {log} ran, such as {node}.",
        f"Write the file of --sinfo on the cluster of the log with: {COMMAND}",
    )


def _malformed(where: str, what: str) -> TraceError:
    return TraceError(
        "BFT-4012",
        f"{where}: this is not a list of nodes, their partitions and GPUs: {what}.",
        f"Write the file of --sinfo with: {COMMAND}",
    )
