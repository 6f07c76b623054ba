"""Our own trace files: npz, csv (also gzipped) and parquet, read and written.

All three hold the same: fragments (node, start_s, end_s, and unfillable where known),
the names of all nodes, the instants observed and the span; npz also holds idle GPUs of partly used
nodes. ``read`` calls it.
"""

from __future__ import annotations

import csv
import gzip
import importlib
import io
import json
import math
import zipfile
import zlib
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bftrainer.batch.traces.fragments import Fragments, make_fragments
from bftrainer.batch.traces.gpus import GpuTimes, gpu_times
from bftrainer.batch.traces.text import Progress, ReadOptions, TraceError, malformed, read_lines

MAGIC = "# bftrainer-trace 1"
MAX_NPZ_BYTES = 4 << 30
MAX_LINE = 64 << 20  # characters: a line with the names of all nodes fits
_COLUMNS = ("node", "start_s", "end_s")
_SAID = ("span_s", "names", "observed_s", "node_types", "partitions")  # beside the columns
_TEXTS = ("names", "node_types", "partitions")
_IN_NPZ = {"start_s": "start", "end_s": "end", "observed_s": "obs", "span_s": "span"}
# Of ``GpuTimes``, in npz only.
_GPU_KINDS, _GPU_UNCLEAR = "gpu_kinds", "gpu_unclear"
_IN_NPZ_GPUS = {
    **{key: f"gpu_{key}" for key in ("installed", "node", "kind", "count")},
    "start_s": "gpu_start",
    "end_s": "gpu_end",
}
# What zipfile and numpy raise on an archive that is cut, damaged or full of objects.
_BROKEN_ARCHIVE = (
    *(ValueError, TypeError, KeyError, EOFError, SyntaxError, MemoryError, OverflowError),
    RuntimeError,  # encrypted; NotImplementedError: unknown compression
    *(zipfile.BadZipFile, zlib.error),
)


def read_npz(path: Path, _options: ReadOptions, _progress: Progress | None) -> Fragments:
    """Read ``node``, ``start``, ``end``, ``names`` and the optional arrays.

    Without ``span`` the observation reaches from the first to the last instant named.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > MAX_NPZ_BYTES:
                raise malformed(path, None, f"it unpacks to more than {MAX_NPZ_BYTES >> 30} GiB")
        with np.load(path, allow_pickle=False) as arrays:
            missing = {"node", "start", "end", "names"} - set(arrays.files)
            if missing:
                raise malformed(path, None, f"it lacks the arrays {', '.join(sorted(missing))}")
            has = {key: _IN_NPZ.get(key, key) for key in (*_COLUMNS, *_SAID, "unfillable")}
            columns = {key: arrays[name] for key, name in has.items() if name in arrays.files}
            for key in {*_SAID} & columns.keys():
                columns[key] = columns[key].ravel()
            return replace(_fragments(path, **columns), gpus=_gpus(arrays))
    except _BROKEN_ARCHIVE as problem:
        cause = f"it is not an npz archive of plain arrays ({problem})"
        raise malformed(path, None, cause) from problem


def _gpus(arrays: Mapping[str, Any]) -> GpuTimes | None:
    """Return the GPUs of an archive; None: it has none.

    Raises:
        ValueError: they contradict each other.
        KeyError: one of their arrays is missing.
    """
    if _GPU_KINDS not in arrays:
        return None
    columns = {key: arrays[name] for key, name in _IN_NPZ_GPUS.items()}
    gpus = gpu_times(
        kinds=tuple(map(str, arrays[_GPU_KINDS].ravel().tolist())),
        unclear=str(arrays[_GPU_UNCLEAR]),
        **columns,
    )
    if len(gpus.installed) != len(arrays["names"].ravel()):
        raise ValueError("its GPUs are of other nodes")
    return gpus


def write_npz(path: Path, trace: Fragments) -> None:
    """Write a compressed npz; whole seconds are stored as integers."""
    arrays = _document(trace) | {
        "node": trace.node.astype(np.int16 if len(trace.names) < 1 << 15 else np.int32),
        "span_s": np.array(trace.span_s),
    }
    if trace.gpus is not None:
        for key, name in _IN_NPZ_GPUS.items():
            arrays[name] = getattr(trace.gpus, key)
        for name in ("gpu_start", "gpu_end"):
            arrays[name] = _whole(arrays[name])
        arrays |= {_GPU_KINDS: list(trace.gpus.kinds), _GPU_UNCLEAR: trace.gpus.unclear}
    with path.open("wb") as file:
        by_name: dict[str, Any] = {str(_IN_NPZ.get(key, key)): arrays[key] for key in arrays}
        np.savez_compressed(file, **by_name)


def _document(trace: Fragments) -> dict[str, Any]:
    """Return all parts of a trace that are known; nodes as indices."""
    parts = {
        "node": trace.node,
        "start_s": _whole(trace.start_s),
        "end_s": _whole(trace.end_s),
        "names": list(trace.names),
        "observed_s": _whole(trace.observed_s),
        "span_s": _whole(np.array(trace.span_s)),
        "unfillable": trace.is_unfillable,
        "node_types": trace.node_types,
        "partitions": trace.partitions,
    }
    return {key: value for key, value in parts.items() if value is not None}


def _fragments(
    path: Path,
    *,
    names: Iterable[Any],
    node: Any,
    start_s: Any,
    end_s: Any,
    unfillable: Any = None,
    observed_s: Any = None,
    span_s: Any = None,
    node_types: Iterable[Any] | None = None,
    partitions: Iterable[Any] | None = None,
) -> Fragments:
    span: tuple[float, float] | None = None
    if span_s is not None:
        instants_s = list(map(float, span_s))
        if len(instants_s) not in {0, 2}:
            raise malformed(path, None, "its span is not a begin and an end")
        if instants_s:
            begin_s, until_s = instants_s
            span = begin_s, until_s
    return make_fragments(
        names=list(map(str, names)),
        node=node,
        start_s=start_s,
        end_s=end_s,
        observed_s=observed_s,
        span_s=span,
        is_unfillable=unfillable,
        node_types=_texts(node_types),
        partitions=_texts(partitions),
        source=path.name,
    )


def _texts(values: Iterable[Any] | None) -> list[str] | None:
    if values is None:
        return None
    return list(map(str, values))


def read_csv(path: Path, _options: ReadOptions, progress: Progress | None) -> Fragments:
    """Read ``node,start_s,end_s[,unfillable]``; lines that begin with # have the metadata.

    Without them the nodes are those with a fragment, in the order they appear.
    """
    header: list[str] = []
    attributes: dict[str, list[Any]] = {}
    index: dict[str, int] = {}
    nodes, starts, ends, flags = array("q"), array("d"), array("d"), list[bool]()
    for number, line in read_lines(path, progress, most=MAX_LINE, is_strict=True):
        if line.startswith("#"):
            word, _, value = line.removeprefix("#").partition(":")
            key = word.strip()
            if key in _SAID:
                attributes[key] = _json_list(path, number, value, is_text=key in _TEXTS)
            continue
        cells = _cells(path, number, line)
        if not header:
            header = cells
            index = {name: i for i, name in enumerate(attributes.get("names", ()))}
            if missing := [name for name in _COLUMNS if name not in header]:
                raise malformed(path, number, f"the header lacks {', '.join(missing)}")
            continue
        row = _row(path, number, header, cells)
        if "names" in attributes and row["node"] not in index:
            raise malformed(path, number, f"node {row['node'][:80]!r} is not among the names")
        nodes.append(index.setdefault(row["node"], len(index)))
        starts.append(row["start_s"])
        ends.append(row["end_s"])
        flags.append(row.get("unfillable") == "1")
    if not header:
        raise malformed(path, None, f"it has no header {','.join(_COLUMNS)}")
    return _fragments(
        path,
        node=np.array(nodes),
        start_s=np.array(starts),
        end_s=np.array(ends),
        unfillable=flags if "unfillable" in header else None,
        **{**attributes, "names": list(index)},
    )


def _row(path: Path, number: int, header: list[str], cells: list[str]) -> dict[str, Any]:
    if len(cells) != len(header):
        raise malformed(path, number, f"{len(cells)} cells, not {len(header)}")
    row: dict[str, Any] = dict(zip(header, cells, strict=True))
    start_s = _number(path, number, row["start_s"])
    end_s = _number(path, number, row["end_s"])
    if not end_s > start_s:
        raise malformed(path, number, f"end {end_s:g} is not after start {start_s:g}")
    if row.get("unfillable", "0") not in {"0", "1"}:
        raise malformed(path, number, "unfillable is neither 0 nor 1")
    return row | {"start_s": start_s, "end_s": end_s}


def _json_list(path: Path, line: int, text: str, *, is_text: bool) -> list[Any]:
    """Return the JSON list in a comment line: texts or times."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise malformed(path, line, f"this is no JSON list ({problem})") from problem
    if not isinstance(values, list):
        raise malformed(path, line, "this is no JSON list")
    if is_text:
        return list(map(str, values))
    return [_number(path, line, value) for value in values]


def _number(path: Path, line: int, text: Any) -> float:
    try:
        value = float(text)
    except (TypeError, ValueError, OverflowError):
        raise malformed(path, line, f"{str(text)[:80]!r} is not a number") from None
    if not math.isfinite(value):
        raise malformed(path, line, f"{value} is not a time")
    return value


def _cells(path: Path, number: int, line: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error as problem:
        raise malformed(path, number, f"this is no CSV ({problem})") from problem


def write_csv(path: Path, trace: Fragments) -> None:
    """Write text, gzipped without a time stamp if the name ends in .gz."""
    document = _document(trace)
    columns = [
        _node_names(trace),
        document["start_s"].tolist(),
        document["end_s"].tolist(),
    ]
    if "unfillable" in document:
        columns.append(document["unfillable"].astype(int).tolist())
    with path.open("wb") as raw:
        stream: Any = raw
        if path.suffix == ".gz":
            stream = gzip.GzipFile("", "wb", fileobj=raw, mtime=0)
        with io.TextIOWrapper(stream, encoding="utf-8", newline="\n") as text:
            text.write(f"{MAGIC}\n")
            for key in _SAID:
                if key in document:
                    text.write(f"# {key}: {json.dumps(np.asarray(document[key]).tolist())}\n")
            writer = csv.writer(text, lineterminator="\n")
            header = list(_COLUMNS)
            if "unfillable" in document:
                header.append("unfillable")
            writer.writerow(header)
            writer.writerows(zip(*columns, strict=True))


def read_parquet(path: Path, _options: ReadOptions, _progress: Progress | None) -> Fragments:
    """Read a parquet file; the schema has the metadata as JSON."""
    try:
        table = _parquet("pyarrow.parquet").read_table(str(path))
        metadata = {key.decode(): value for key, value in (table.schema.metadata or {}).items()}
        attributes = {key: json.loads(metadata[key]) for key in _SAID if key in metadata}
        columns = {name: table.column(name).to_pylist() for name in table.column_names}
        if missing := [name for name in _COLUMNS if name not in columns]:
            raise malformed(path, None, f"it lacks the columns {', '.join(missing)}")
        if not attributes.get("names"):
            attributes["names"] = list(dict.fromkeys(map(str, columns["node"])))
        index = {str(name): i for i, name in enumerate(attributes["names"])}
        node = np.array([index.get(str(name), -1) for name in columns["node"]], dtype=np.int64)
        values = {key: columns[key] for key in ("start_s", "end_s", "unfillable") if key in columns}
        return _fragments(path, node=node, **values, **attributes)
    except (ValueError, TypeError, KeyError, MemoryError, RecursionError) as problem:
        cause = f"it is not a parquet file of fragments ({problem})"
        raise malformed(path, None, cause) from problem


def write_parquet(path: Path, trace: Fragments) -> None:
    """Write a parquet file."""
    arrow, document = _parquet("pyarrow.parquet"), _document(trace)
    document["node"] = _node_names(trace)
    columns = {key: document[key] for key in (*_COLUMNS, "unfillable") if key in document}
    metadata: dict[str, str] = {}
    for key in _SAID:
        if key in document:
            metadata[key] = json.dumps(np.asarray(document[key]).tolist())
    table = _parquet("pyarrow").table(columns).replace_schema_metadata(metadata)
    arrow.write_table(table, str(path))


def _parquet(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise TraceError(
            "BFT-4004",
            "Parquet files need the package pyarrow, which is not installed.",
            "Install it (pip install pyarrow), or use npz or csv.",
        ) from None


def _node_names(trace: Fragments) -> list[str]:
    """Return the name of each fragment's node."""
    return [trace.names[i] for i in trace.node.tolist()]


def _whole(values: Any) -> Any:
    """Return whole seconds as integers, which are exact and a third of the size."""
    whole = values.astype(np.int64)
    if np.array_equal(whole, values):
        return whole
    return values
