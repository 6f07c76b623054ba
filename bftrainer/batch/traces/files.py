"""Our own trace files: npz, csv (also gzipped) and parquet, read and written.

All three hold the same: fragments (node, start_s, end_s, and unfillable where known),
the names of all nodes, the instants observed and the span. ``read`` and the command
line call it.
"""

from __future__ import annotations

import csv
import gzip
import importlib
import io
import json
import zipfile
import zlib
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bftrainer.batch.traces.fragments import Fragments, make_fragments
from bftrainer.batch.traces.text import TraceError, malformed, unreadable

Progress = Callable[[float], None]
MAGIC = "# bftrainer-trace 1"
MAX_NPZ_BYTES = 4 << 30
MAX_LINE = 64 << 20  # characters: a line with the names of all nodes fits
ROWS_PER_REPORT = 20_000
_COLUMNS = ("node", "start_s", "end_s")


def read_npz(path: Path) -> Fragments:
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
            span = [float(x) for x in arrays["span"].ravel()] if "span" in arrays.files else []
            if len(span) not in {0, 2}:
                raise malformed(path, None, "its span is not a begin and an end")
            return make_fragments(
                names=[str(name) for name in arrays["names"].ravel()],
                node=arrays["node"],
                start_s=arrays["start"],
                end_s=arrays["end"],
                observed_s=arrays["obs"] if "obs" in arrays.files else None,
                span_s=(span[0], span[1]) if span else None,
                is_unfillable=arrays["unfillable"] if "unfillable" in arrays.files else None,
                node_types=list(map(str, arrays["node_types"].ravel()))
                if "node_types" in arrays.files
                else None,
                source=path.name,
            )
    except OSError as problem:
        raise unreadable(path, problem) from problem
    except _BROKEN_ARCHIVE as problem:
        raise malformed(
            path, None, f"it is not an npz archive of plain arrays ({problem})"
        ) from problem


# What zipfile and numpy raise on an archive that is cut, damaged or full of objects.
_BROKEN_ARCHIVE = (
    ValueError,
    TypeError,
    KeyError,
    EOFError,
    SyntaxError,
    MemoryError,
    OverflowError,
    RuntimeError,  # encrypted; NotImplementedError: unknown compression
    zipfile.BadZipFile,
    zlib.error,
)


def write_npz(path: Path, trace: Fragments) -> None:
    """Write a compressed npz; whole seconds are stored as integers."""
    arrays: dict[str, Any] = {
        "node": trace.node.astype(np.int16 if len(trace.names) < 1 << 15 else np.int32),
        "start": _whole(trace.start_s),
        "end": _whole(trace.end_s),
        "names": np.array(trace.names),
        "obs": _whole(trace.observed_s),
        "span": np.array(trace.span_s),
    }
    if trace.is_unfillable is not None:
        arrays["unfillable"] = trace.is_unfillable
    if trace.node_types is not None:
        arrays["node_types"] = np.array(trace.node_types)
    try:
        with path.open("wb") as file:
            np.savez_compressed(file, **arrays)
    except OSError as problem:
        raise unreadable(path, problem) from problem


def read_csv(path: Path, progress: Progress | None = None) -> Fragments:
    """Read ``node,start_s,end_s[,unfillable]``; lines that begin with # have the metadata.

    Without them the nodes are those with a fragment, in the order they appear.
    """
    table = _CsvTable(path)
    try:
        total = max(1, path.stat().st_size)
        with path.open("rb") as raw:
            stream: Any = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
            text = io.TextIOWrapper(stream, encoding="utf-8", newline="\n")
            while line := text.readline(MAX_LINE):
                table.take(line)
                if progress is not None and table.line % ROWS_PER_REPORT == 0:
                    progress(raw.tell() / total)
    except (gzip.BadGzipFile, EOFError, zlib.error, UnicodeDecodeError) as problem:
        raise malformed(path, table.line + 1, f"it is not a text ({problem})") from problem
    except OSError as problem:
        raise unreadable(path, problem) from problem
    return table.fragments()


class _CsvTable:
    """Collects the lines of a CSV file into columns."""

    def __init__(self, path: Path) -> None:
        self.line = 0
        self._path = path
        self._header: list[str] | None = None
        self._index: dict[str, int] = {}
        self._names_are_given = False
        self._nodes, self._starts, self._ends = array("q"), array("d"), array("d")
        self._flags: list[bool] = []
        self._said: dict[str, list[float]] = {}
        self._types: list[str] | None = None

    def take(self, line: str) -> None:
        """Add a line."""
        self.line += 1
        line = line.rstrip("\r\n")
        if line.startswith("#"):
            self._remark(line)
        elif line:
            cells = next(_csv_rows(self._path, self.line, line))
            if self._header is None:
                self._header = self._checked_header(cells)
            else:
                self._row(cells, self._header)

    def fragments(self) -> Fragments:
        """Return the checked columns."""
        if self._header is None:
            raise malformed(self._path, None, f"it has no header {','.join(_COLUMNS)}")
        span = self._said.get("span_s")
        if span is not None and len(span) != 2:
            raise malformed(self._path, None, "span_s is not a begin and an end")
        return make_fragments(
            names=list(self._index),
            node=np.array(self._nodes),
            start_s=np.array(self._starts),
            end_s=np.array(self._ends),
            observed_s=self._said.get("observed_s"),
            span_s=None if span is None else (span[0], span[1]),
            is_unfillable=self._flags if "unfillable" in self._header else None,
            node_types=self._types,
            source=self._path.name,
        )

    def _remark(self, line: str) -> None:
        key, _, value = line.removeprefix("#").partition(":")
        key = key.strip()
        if key == "names":
            self._index = {
                name: i for i, name in enumerate(json_list(self._path, self.line, value))
            }
            self._names_are_given = True
        elif key == "node_types":
            self._types = list(map(str, json_list(self._path, self.line, value)))
        elif key in {"span_s", "observed_s"}:
            numbers = json_list(self._path, self.line, value)
            self._said[key] = [self._number(number) for number in numbers]

    def _checked_header(self, cells: list[str]) -> list[str]:
        missing = [name for name in _COLUMNS if name not in cells]
        if missing:
            raise malformed(self._path, self.line, f"the header lacks {', '.join(missing)}")
        return cells

    def _row(self, cells: list[str], header: list[str]) -> None:
        if len(cells) != len(header):
            raise malformed(self._path, self.line, f"{len(cells)} cells, not {len(header)}")
        row = dict(zip(header, cells, strict=True))
        name = row["node"]
        if name not in self._index:
            if self._names_are_given:
                raise malformed(self._path, self.line, f"node {name[:80]!r} is not among the names")
            self._index[name] = len(self._index)
        start, end = self._number(row["start_s"]), self._number(row["end_s"])
        if not end > start:
            raise malformed(self._path, self.line, f"end {end:g} is not after start {start:g}")
        self._nodes.append(self._index[name])
        self._starts.append(start)
        self._ends.append(end)
        if "unfillable" in row:
            if row["unfillable"] not in {"0", "1"}:
                raise malformed(self._path, self.line, "unfillable is neither 0 nor 1")
            self._flags.append(row["unfillable"] == "1")

    def _number(self, text: object) -> float:
        try:
            value = float(text)  # type: ignore[arg-type]  # what is not a number raises
        except (TypeError, ValueError, OverflowError):
            raise malformed(self._path, self.line, f"{str(text)[:80]!r} is not a number") from None
        if not np.isfinite(value):
            raise malformed(self._path, self.line, f"{value} is not a time")
        return value


def json_list(path: Path, line: int, text: str) -> list[Any]:
    """Return the JSON list in a comment line."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise malformed(path, line, f"this is no JSON list ({problem})") from problem
    if not isinstance(values, list):
        raise malformed(path, line, "this is no JSON list")
    return [value if isinstance(value, int | float) else str(value) for value in values]


def _csv_rows(path: Path, number: int, line: str) -> Iterator[list[str]]:
    try:
        yield from csv.reader([line], strict=True)
    except csv.Error as problem:
        raise malformed(path, number, f"this is no CSV ({problem})") from problem


def write_csv(path: Path, trace: Fragments) -> None:
    """Write text, gzipped without a time stamp if the name ends in .gz."""
    flags = trace.is_unfillable
    try:
        with path.open("wb") as raw:
            stream: Any = (
                gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0)
                if path.suffix == ".gz"
                else raw
            )
            with io.TextIOWrapper(stream, encoding="utf-8", newline="\n") as text:
                text.write(f"{MAGIC}\n")
                text.write(f"# span_s: {json.dumps(_plain(np.array(trace.span_s)))}\n")
                text.write(f"# names: {json.dumps(list(trace.names))}\n")
                text.write(f"# observed_s: {json.dumps(_plain(trace.observed_s))}\n")
                if trace.node_types is not None:
                    text.write(f"# node_types: {json.dumps(list(trace.node_types))}\n")
                writer = csv.writer(text, lineterminator="\n")
                writer.writerow([*_COLUMNS, *([] if flags is None else ["unfillable"])])
                names = [trace.names[index] for index in trace.node.tolist()]
                columns: list[list[Any]] = [names, _plain(trace.start_s), _plain(trace.end_s)]
                if flags is not None:
                    columns.append([int(flag) for flag in flags.tolist()])
                writer.writerows(zip(*columns, strict=True))
    except OSError as problem:
        raise unreadable(path, problem) from problem


def read_parquet(path: Path) -> Fragments:
    """Read a parquet file; the schema has the metadata as JSON."""
    arrow = _parquet()
    try:
        table = arrow.read_table(str(path))
        said = {
            key.decode(): json.loads(value)
            for key, value in (table.schema.metadata or {}).items()
            if key in {b"names", b"observed_s", b"span_s", b"node_types"}
        }
        columns = {name: table.column(name).to_pylist() for name in table.column_names}
    except OSError as problem:
        raise unreadable(path, problem) from problem
    except (ValueError, TypeError, KeyError, MemoryError, RecursionError) as problem:
        raise malformed(
            path, None, f"it is not a parquet file of fragments ({problem})"
        ) from problem
    missing = [name for name in _COLUMNS if name not in columns]
    if missing:
        raise malformed(path, None, f"it lacks the columns {', '.join(missing)}")
    names = [str(name) for name in said.get("names") or dict.fromkeys(columns["node"])]
    index = {name: i for i, name in enumerate(names)}
    span = said.get("span_s")
    return make_fragments(
        names=names,
        node=np.array([index.get(str(name), -1) for name in columns["node"]], dtype=np.int64),
        start_s=columns["start_s"],
        end_s=columns["end_s"],
        observed_s=said.get("observed_s"),
        span_s=None if span is None else (float(span[0]), float(span[1])),
        is_unfillable=columns.get("unfillable"),
        node_types=None if (types := said.get("node_types")) is None else list(map(str, types)),
        source=path.name,
    )


def write_parquet(path: Path, trace: Fragments) -> None:
    """Write a parquet file."""
    arrow = _parquet()
    package = importlib.import_module("pyarrow")
    columns: dict[str, Any] = {
        "node": [trace.names[index] for index in trace.node.tolist()],
        "start_s": trace.start_s,
        "end_s": trace.end_s,
    }
    if trace.is_unfillable is not None:
        columns["unfillable"] = trace.is_unfillable
    said: dict[str, Any] = {
        "names": list(trace.names),
        "observed_s": trace.observed_s.tolist(),
        "span_s": list(trace.span_s),
    }
    if trace.node_types is not None:
        said["node_types"] = list(trace.node_types)
    table = package.table(columns).replace_schema_metadata(
        {name: json.dumps(value) for name, value in said.items()}
    )
    try:
        arrow.write_table(table, str(path))
    except OSError as problem:
        raise unreadable(path, problem) from problem


def _parquet() -> Any:
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise TraceError(
            "BFT-4004",
            "Parquet files need the package pyarrow, which is not installed.",
            "Install it (pip install pyarrow), or use npz or csv.",
        ) from None


def _whole(values: Any) -> Any:
    """Return whole seconds as integers, which are exact and a third of the size."""
    whole = values.astype(np.int64)
    return whole if np.array_equal(whole, values) else values


def _plain(values: Any) -> list[Any]:
    return list(_whole(values).tolist())
