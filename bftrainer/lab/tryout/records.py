"""The records of a run's workers, put together: samples of its updates, and their speed.

``bftrainer/elastic/run_info.py`` writes the lines. Pure but for ``Records``.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Line = Mapping[str, Any]
Key = tuple[int, int]  # generation, attempt
MOST_NAMED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochUse:
    """The use of an epoch's samples by its updates."""

    epoch: int
    of: int  # samples that the epoch has
    used: int = 0  # places of the epoch that were used
    missed: int = 0  # places before the last used one that were not
    repeated: int = 0  # uses of a place beyond the first
    twice: tuple[int, ...] = ()  # indices at more than one place, the first few

    @property
    def is_once(self) -> bool:
        """Return whether each sample so far was used exactly once."""
        return not (self.missed or self.repeated or self.twice)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedBySize:
    """Throughput of all generations of one size."""

    size: int  # in workers
    samples_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatePlace:
    """The worker that made the newest update, and that update."""

    pid: int
    rank: int
    size: int
    step: int
    of_generation: int  # updates of its generation


class Records:
    """The lines of each process, read as they come."""

    def __init__(self, directory: Path) -> None:
        self.processes: dict[str, list[Line]] = {}  # by host and process id, "n1-4711"
        self._directory = directory
        self._read_bytes: dict[Path, int] = {}

    def look(self) -> bool:
        """Read what was added and return whether anything was.

        The last line of a killed process may be cut.
        """
        is_more = False
        for path in sorted(self._directory.glob("samples-*.jsonl")):
            with path.open("rb") as stream:
                stream.seek(self._read_bytes.get(path, 0))
                whole = stream.read().rpartition(b"\n")[0]
            if whole:
                self._read_bytes[path] = self._read_bytes.get(path, 0) + len(whole) + 1
                lines = self.processes.setdefault(path.stem.partition("-")[2], [])
                lines += [json.loads(line) for line in whole.split(b"\n")]
                is_more = True
        return is_more


def epochs(processes: Mapping[str, Sequence[Line]]) -> list[EpochUse]:
    """Return the use of each epoch."""
    counted = _committed(line for lines in processes.values() for line in lines)
    spans: dict[int, list[Line]] = defaultdict(list)
    for lines in processes.values():
        # A batch that was handed out again in the same step counts as of the last time.
        last = {(_key(x), x["step"], x["number"]): x for x in lines if x["kind"] == "handed"}
        for (key, step, _), line in last.items():
            if (key, step + 1) in counted:
                spans[line["epoch"]].append(line)
    return [_use(epoch, spans[epoch]) for epoch in sorted(spans)]


def _key(line: Line) -> Key:
    return (line["generation"], line["attempt"])


def _committed(lines: Iterable[Line]) -> set[tuple[Key, int]]:
    """Return the updates, by generation and step, whose results the run kept.

    A generation that begins after step n drops what earlier ones did after it.
    """
    begins: dict[Key, int] = {}
    steps: set[tuple[Key, int]] = set()
    for line in lines:
        if line["kind"] == "entered":
            begins[_key(line)] = line["step"]
        elif line["kind"] == "committed":
            steps.add((_key(line), line["step"]))
    return {
        (key, step)
        for key, step in steps
        if all(step <= first for later, first in begins.items() if later > key)
    }


def _use(epoch: int, lines: Sequence[Line]) -> EpochUse:
    used = missed = repeated = end = 0
    times: Counter[int] = Counter()
    for line in sorted(lines, key=lambda x: int(x["at"])):
        first, last = line["at"], line["at"] + len(line["indices"])
        missed += max(0, first - end)
        repeated += max(0, min(end, last) - first)
        used += max(0, last - max(first, end))
        end = max(end, last)
        if not line.get("may_repeat"):  # as the script's own order may
            times.update(line["indices"])
    twice = sorted(index for index, count in times.items() if count > 1)
    return EpochUse(
        epoch=epoch,
        of=max(line["of"] for line in lines),
        used=used,
        missed=missed,
        repeated=repeated,
        twice=tuple(twice[:MOST_NAMED]),
    )


def speeds(processes: Mapping[str, Sequence[Line]]) -> list[SpeedBySize]:
    """Return the throughput at each size, from entering a generation to its last update."""
    spans: dict[Key, list[Line]] = defaultdict(list)
    for lines in processes.values():
        for line in lines:
            if line["kind"] in ("entered", "committed"):
                spans[_key(line)].append(line)
    totals: dict[int, tuple[int, float]] = {}
    for lines in spans.values():
        first = min(lines, key=lambda x: (x["samples"], x["at_s"]))
        last = max(lines, key=lambda x: (x["samples"], -x["at_s"]))
        samples, seconds = totals.get(first["size"], (0, 0.0))
        samples += last["samples"] - first["samples"]
        totals[first["size"]] = samples, seconds + max(0.0, last["at_s"] - first["at_s"])
    return [
        SpeedBySize(size=size, samples_per_s=samples / seconds)
        for size, (samples, seconds) in sorted(totals.items())
        if samples and seconds
    ]


def has_committed(processes: Mapping[str, Sequence[Line]]) -> bool:
    """Return whether any update was made."""
    return any(line["kind"] == "committed" for lines in processes.values() for line in lines)


def losses(processes: Mapping[str, Sequence[Line]]) -> dict[int, float]:
    """Return the loss of each update that the run kept, over its whole batch."""
    counted = _committed(line for lines in processes.values() for line in lines)
    shares: dict[int, dict[tuple[str, int], tuple[float, float]]] = defaultdict(dict)
    kind = ""  # found out in the first update of several parts
    for name, lines in processes.items():
        for line in lines:
            if line["kind"] != "loss" or (_key(line), line["step"] + 1) not in counted:
                continue
            of, share = shares[line["step"] + 1], (name, line["number"])
            of[share] = of.get(share, (0.0, 0.0))[0] + line["loss"], line["weight"]
            kind = line["reduction"] or kind
    return {
        step: sum(x for x, _ in of.values())
        if kind == "sum"
        else sum(x * w for x, w in of.values() if w) / (sum(w for _, w in of.values()) or 1.0)
        for step, of in sorted(shares.items())
    }


def newest(processes: Mapping[str, Sequence[Line]], *, rank: int = 0) -> UpdatePlace | None:
    """Return the process of ``rank`` in the newest generation, if it has made an update there."""
    lines = [(int(n.rpartition("-")[2]), line) for n, of in processes.items() for line in of]
    begun = [_key(line) for _, line in lines if line["kind"] == "entered"]
    made = [
        (pid, line)
        for pid, line in lines
        if line["kind"] == "committed" and _key(line) == max(begun) and line["rank"] == rank
    ]
    if not made:
        return None
    pid, line = made[-1]
    return UpdatePlace(
        pid=pid, rank=rank, size=line["size"], step=line["step"], of_generation=len(made)
    )
