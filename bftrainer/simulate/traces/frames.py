"""Reads the Replayer's table of idle nodes: one row per poll, one column per node, 1 = idle.

Converts records from ``pickled`` to ``Fragments``. Knows the layout of frames in pandas 1.0 to
3.x: axes (columns, index) and blocks of columns of one kind.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bftrainer.simulate.traces.errors import TraceError, malformed, unreadable
from bftrainer.simulate.traces.fragments import Fragments, make_fragments
from bftrainer.simulate.traces.pickled import Call, read_records

Progress = Callable[[float], None]
NODES_AT_ONCE = 256  # nodes whose looks are unpacked at a time: bounds the memory
_UNITS_PER_S = {b"s": 1, b"ms": 10**3, b"us": 10**6, b"ns": 10**9}
_PLAIN_KINDS = frozenset({"i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1", "f4", "f8"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceTable:
    """A table: names of columns, instants of rows, blocks of (columns, values)."""

    columns: tuple[str, ...]
    index_s: NDArray[np.float64]
    blocks: tuple[tuple[range, NDArray[Any]], ...]  # values[k, i]: k-th column, i-th row


def read_replayer(path: Path, progress: Progress | None = None) -> Fragments:
    """Read a pickled frame of idle nodes; its times count as UTC.

    A node is idle from the first poll that shows it idle to the next that does not.
    """
    frame = read_frame(path)
    if len(frame.index_s) < 2 or not bool(np.all(np.diff(frame.index_s) > 0)):
        raise malformed(path, None, "its rows are not looks in the order of time")
    found: list[NDArray[np.int64]] = []
    for columns, values in frame.blocks:
        for low in range(0, len(columns), NODES_AT_ONCE):
            part = values[low : low + NODES_AT_ONCE]
            if not bool(np.all((part == 0) | (part == 1))):
                raise malformed(path, None, "a cell is neither 0 (busy) nor 1 (idle)")
            found.append(_runs(part != 0, columns.start + low))
            if progress is not None:
                progress((columns.start + low) / len(frame.columns))
    node, first, last = np.concatenate(found, axis=1)
    return make_fragments(
        names=frame.columns,
        node=node,
        start_s=frame.index_s[first],
        end_s=frame.index_s[last],
        observed_s=frame.index_s,
        span_s=(float(frame.index_s[0]), float(frame.index_s[-1])),
        source=path.name,
    )


def read_frame(path: Path) -> TraceTable:
    """Read a pickled frame whose columns are numbers and whose index is of times."""
    try:
        with path.open("rb") as file:
            if not path.stat().st_size:
                raise malformed(path, None, "it is empty")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
                records = read_records(path, view)  # type: ignore[arg-type]  # reads like a file
    except OSError as problem:
        raise unreadable(path, problem) from problem
    try:
        return _frame(records)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as problem:
        raise TraceError(
            "BFT-4006",
            f"{path.name}: it is not a pandas frame of idle nodes ({str(problem)[:120]}).",
            "Give the Replayer's table: rows are looks, columns nodes, cells 0 or 1.",
        ) from problem


def _runs(idle: NDArray[np.bool_], first_node: int) -> NDArray[np.int64]:
    """Node, row of the first idle look and row of the first busy one, of each run."""
    before = np.zeros_like(idle)
    before[:, 1:] = idle[:, :-1]
    begins = idle & ~before
    begins[:, -1] = False  # idle at the very last look: for how long nobody knows
    after = np.zeros_like(idle)
    after[:, 1:] = ~idle[:, 1:] & idle[:, :-1]
    after[:, -1] = idle[:, -2]  # the last look ends what is still idle
    node, first = np.nonzero(begins)
    _, last = np.nonzero(after)
    return np.stack((node + first_node, first, last))


def _frame(records: Any) -> TraceTable:
    if not (isinstance(records, Call) and records.name.endswith(".DataFrame")):
        raise ValueError("no DataFrame")
    manager = records.state["_mgr"] if "_mgr" in records.state else records.state["_data"]
    if manager.state is not None:  # pandas 1: BlockManager() and then its state
        inside = manager.state[3]["0.14.1"]
        axes = inside["axes"]
        blocks = [(block["values"], block["mgr_locs"]) for block in inside["blocks"]]
    else:
        packed, axes = manager.args[:2]
        blocks = [(block.args[0], block.args[1]) for block in packed]
    columns = tuple(str(name) for name in _labels(axes[0]))
    index_s = _instants(axes[1])
    shape = (len(columns), len(index_s))
    parts = []
    for values, place in blocks:
        where = _places(place, len(columns))
        array = _array(values)
        if array.shape != (len(where), shape[1]):
            raise ValueError(f"a block of shape {array.shape} in a table of {shape}")
        parts.append((where, array))
    if sorted(i for where, _ in parts for i in where) != list(range(shape[0])):
        raise ValueError("its blocks do not cover its columns")
    return TraceTable(columns=columns, index_s=index_s, blocks=tuple(parts))


def _labels(index: Call) -> list[Any]:
    """The labels of an Index of names."""
    data = _data(index)
    return list(data if isinstance(data, list) else data.tolist())


def _instants(index: Call) -> NDArray[np.float64]:
    """The seconds since the epoch of an index of times or numbers."""
    data = _data(index)
    if isinstance(data, list):
        raise TypeError("the index is of names, not of times")
    if data.dtype.kind == "M":
        unit, count = np.datetime_data(data.dtype)
        per_s = _UNITS_PER_S[unit.encode()]
        data = data.astype(np.int64) * count / per_s
    return np.asarray(data, dtype=np.float64)


def _data(index: Call) -> Any:
    if not index.name.endswith(("._new_Index", "._new_DatetimeIndex")):
        raise ValueError(f"an axis is {index.name}")
    return _array(index.args[1]["data"])


def _places(place: Any, n_columns: int) -> range:
    """The columns of a block; only neighbours occur in tables of one kind."""
    if not (isinstance(place, Call) and place.name == "builtins.slice"):
        raise TypeError("a block's columns are not neighbours")
    where = range(*slice(*place.args).indices(n_columns))
    if where.step != 1:
        raise ValueError("a block's columns are not neighbours")
    return where


def _array(record: Any) -> Any:
    """A numpy array, or a list where the elements are objects."""
    if not isinstance(record, Call):
        raise TypeError("an array is missing")
    if record.name.endswith("._frombuffer"):
        data, kind, shape, order = record.args
        array = np.frombuffer(data, dtype=_dtype(kind))
        return array.reshape(shape, order="F" if order == "F" else "C")
    if record.name.endswith((".__pyx_unpickle_NDArrayBacked", ".DatetimeArray")):
        state = record.state if record.state is not None else record.args[2]
        parts = state.values() if isinstance(state, dict) else state
        for part in parts:
            if _is_array(part):
                return _array(part)
        raise ValueError("an array of pandas has no data")
    if not record.name.endswith("._reconstruct"):
        raise ValueError(f"an array is {record.name}")
    _, shape, kind, is_fortran, data = record.state
    if isinstance(data, list):
        return data
    array = np.frombuffer(data, dtype=_dtype(kind))
    return array.reshape(shape, order="F" if is_fortran else "C")


def _is_array(record: Any) -> bool:
    return isinstance(record, Call) and record.name.endswith(("._reconstruct", "._frombuffer"))


def _dtype(record: Call) -> np.dtype[Any]:
    if record.name != "numpy.dtype":
        raise ValueError("a kind of number is missing")
    kind, order = str(record.args[0]), str(record.state[1])
    if order not in {"|", "<", ">", "="}:
        raise ValueError("an order of bytes is missing")
    if kind in {"M8", "datetime64[ns]"}:
        unit, count = record.state[8][1][:2]
        if unit not in _UNITS_PER_S:
            raise ValueError("times in an unknown unit")
        return np.dtype(f"{order}M8[{int(count)}{unit.decode()}]")
    if kind not in _PLAIN_KINDS:
        raise ValueError(f"cells of kind {kind[:20]!r}")
    return np.dtype(f"{order}{kind}")
