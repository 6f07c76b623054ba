"""The GPUs of a machine, and when some of a partly used node were idle, as columns. Pure.

``gpu_use`` builds ``GpuTimes`` from a log of jobs, ``Fragments`` carries it, npz files keep it, and
``gpu_pools`` adds it up by partition and type. GPUs of nodes without a job are not in the columns:
there all are idle, and the fragments say when.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

MOST = 1_000_000_000  # of nodes, types and GPUs: beyond it a file is wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTimes:
    """Idle GPUs of partly used nodes, a row for each time in which their number stays the same.

    Rows are of one node and one type; nodes that are closed (down, drained) have none. Arrays are
    read-only.
    """

    kinds: tuple[str, ...]  # of GPUs, such as a100; "": the type has no name
    installed: NDArray[np.int32]  # nodes x kinds
    node: NDArray[np.int32]  # of each row: index of the node
    kind: NDArray[np.int32]  # index into kinds
    count: NDArray[np.int32]  # idle GPUs, at least one
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    unclear: str = ""  # a clause: why the rows are not known; "": they are

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.node)

    def restrict(self, nodes: slice, span_s: tuple[float, float]) -> GpuTimes:
        """Return the part of neighbouring nodes and of a time; rows are cut at its ends.

        Args:
            nodes: first to stop, without step.
            span_s: begin and end, s.
        """
        begin_s, end_s = span_s
        keep = (self.node >= nodes.start) & (self.node < nodes.stop)
        keep &= (self.end_s > begin_s) & (self.start_s < end_s)
        return gpu_times(
            kinds=self.kinds,
            installed=self.installed[nodes],
            node=self.node[keep] - nodes.start,
            kind=self.kind[keep],
            count=self.count[keep],
            start_s=np.maximum(self.start_s[keep], begin_s),
            end_s=np.minimum(self.end_s[keep], end_s),
            unclear=self.unclear,
        )

    def without_rows(self, unclear: str) -> GpuTimes:
        """Return the same machine, of which the idle GPUs of partly used nodes are not known."""
        nothing = np.zeros(0, dtype=np.int32)
        none_s = np.zeros(0)
        return replace(
            self,
            node=nothing,
            kind=nothing,
            count=nothing,
            start_s=none_s,
            end_s=none_s,
            unclear=self.unclear or unclear,
        )

    def idle_gpu_s(self) -> NDArray[np.float64]:
        """Return the idle GPU-seconds of the rows, by node and kind (nodes x kinds)."""
        cell = self.node.astype(np.int64) * len(self.kinds) + self.kind
        weight = self.count * (self.end_s - self.start_s)
        sums: NDArray[np.float64] = np.zeros(self.installed.size)
        np.add.at(sums, cell, weight)
        return sums.reshape(self.installed.shape)


def gpu_times(
    *,
    kinds: tuple[str, ...],
    installed: ArrayLike,
    node: ArrayLike = (),
    kind: ArrayLike = (),
    count: ArrayLike = (),
    start_s: ArrayLike = (),
    end_s: ArrayLike = (),
    unclear: str = "",
) -> GpuTimes:
    """Check the columns and freeze them.

    Raises:
        ValueError: they contradict each other; the text says how.
    """
    machine = _column(installed, np.int32)
    if machine.ndim != 2 or machine.shape[1] != len(kinds) or len(set(kinds)) < len(kinds):
        raise ValueError("its GPUs are not of nodes x types")
    rows = [_column(values, np.int32) for values in (node, kind, count)]
    times = [_column(values, np.float64) for values in (start_s, end_s)]
    if {column.shape for column in (*rows, *times)} != {(len(times[0]),)}:
        raise ValueError("its columns of GPUs differ in length")
    _check(machine, rows, times)
    nodes, kind_of, counts = rows
    starts, ends = times
    return GpuTimes(
        kinds=kinds,
        installed=machine,
        node=nodes,
        kind=kind_of,
        count=counts,
        start_s=starts,
        end_s=ends,
        unclear=unclear,
    )


def _check(
    machine: NDArray[np.int32], rows: list[NDArray[np.int32]], times: list[NDArray[np.float64]]
) -> None:
    """Raise ``ValueError`` where a value is out of its range."""
    nodes, kind_of, counts = rows
    starts, ends = times
    n_nodes, n_kinds = machine.shape
    if (machine < 0).any():
        raise ValueError("a node has fewer than no GPUs")
    is_right = (nodes >= 0) & (nodes < n_nodes) & (kind_of >= 0) & (kind_of < n_kinds)
    if not is_right.all():
        raise ValueError("idle GPUs are of a node or type that it does not have")
    if not ((counts >= 1) & (counts <= machine[nodes, kind_of])).all():
        raise ValueError("more GPUs of a node are idle than it has, or none")
    if not (np.isfinite(starts) & np.isfinite(ends) & (starts < ends)).all():
        raise ValueError("an idle time of GPUs does not end after its start")


def _column(values: ArrayLike, kind: type[Any]) -> NDArray[Any]:
    array = np.asarray(values)
    is_whole = kind is np.int32
    if array.size and array.dtype.kind not in ("iu" if is_whole else "iuf"):
        raise ValueError("a column of GPUs has no numbers")
    if array.size and is_whole and not -MOST <= array.min() <= array.max() <= MOST:
        raise ValueError("a column of GPUs has numbers beyond any machine")
    column: NDArray[Any] = np.array(array, dtype=kind)
    column.flags.writeable = False
    return column
