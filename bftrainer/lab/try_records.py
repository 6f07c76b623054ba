"""The notes of a try's workers: which samples each update took, losses, speeds.

An update counts if the last state of the run contains it. That is followed from state to state:
each generation notes which one had made the last update of the state that it began with. Numbers
of generations do not tell: workers that were cut off may go on beside a later generation that comes
to nothing, or form one themselves while a daemon forms another of the same number.

The lines are written by ``bftrainer/elastic/loop/try_record.py``.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

Line = Mapping[str, Any]
Key = tuple[int, int, str]  # generation, attempt, name: two may have the same numbers
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
        self.directory = directory
        self._read_bytes: dict[Path, int] = {}

    def look(self) -> bool:
        """Read what was added and return whether anything was.

        The last line of a killed process may be cut.
        """
        is_more = False
        for path in sorted(self.directory.glob("samples-*.jsonl")):
            with path.open("rb") as stream:
                stream.seek(self._read_bytes.get(path, 0))
                whole, _, _ = stream.read().rpartition(b"\n")
            if whole:
                self._read_bytes[path] = self._read_bytes.get(path, 0) + len(whole) + 1
                _, _, process = path.stem.partition("-")
                lines = self.processes.setdefault(process, [])
                lines += map(json.loads, whole.split(b"\n"))
                is_more = True
        return is_more


def epochs(processes: Mapping[str, Sequence[Line]]) -> list[EpochUse]:
    """Return the use of each epoch."""
    spans: dict[int, list[Line]] = defaultdict(list)
    for line in _handed(processes, _committed(processes)):
        spans[line["epoch"]].append(line)
    return [_use(epoch, spans[epoch]) for epoch in sorted(spans)]


def _handed(
    processes: Mapping[str, Sequence[Line]], committed: AbstractSet[tuple[Key, int]]
) -> Iterator[Line]:
    """Yield the parts of batches that updates took."""
    for lines in processes.values():
        # A batch that was handed out again in the same step counts as of the last time.
        last = {(key_of(x), x["step"], x["number"]): x for x in lines if x["kind"] == "handed"}
        for (key, step, _), line in last.items():
            if (key, step + 1) in committed:
                yield line


def key_of(line: Line) -> Key:
    """Return the generation that wrote a line."""
    return (line["generation"], line["attempt"], line.get("group", ""))


@dataclass(slots=True, kw_only=True)
class _Branch:
    """The updates that one generation made, and the state that it began with."""

    step: int = 0  # updates in the state it began with
    made_by: str | None = None  # name of the generation that made the last one; None: not told
    steps: set[int] = field(default_factory=set)
    is_finished: bool = False


def makers(processes: Mapping[str, Sequence[Line]]) -> dict[int, Key]:
    """Return which generation made each update that the last state of the run contains."""
    branches = _branches(chain.from_iterable(processes.values()))
    # One that ended the run counts although others may have begun beside it.
    ends = [key for key, branch in branches.items() if branch.is_finished] or list(branches)
    made_by: dict[int, Key] = {}
    key = max(ends, key=lambda k: (k[:2], _last_step(branches[k])), default=None)
    last = 0 if key is None else _last_step(branches[key])
    while key is not None:
        branch = branches.pop(key)  # a generation is nobody's successor twice
        for step in branch.steps:
            if branch.step < step <= last:
                made_by[step] = key
        key, last = _before(branches, key, branch), branch.step
    return made_by


def _branches(lines: Iterable[Line]) -> dict[Key, _Branch]:
    branches: dict[Key, _Branch] = defaultdict(_Branch)
    for line in lines:
        if line["kind"] == "entered":
            branch = branches[key_of(line)]
            branch.step, branch.made_by = line["step"], line.get("from")
        elif line["kind"] == "committed":
            branches[key_of(line)].steps.add(line["step"])
        elif line["kind"] == "finished":
            branches[key_of(line)].is_finished = True
    return dict(branches)


def _last_step(branch: _Branch) -> int:
    return max(branch.steps, default=branch.step)


def _before(branches: Mapping[Key, _Branch], key: Key, branch: _Branch) -> Key | None:
    """Return the generation that made the last update in the state that ``key`` began with.

    Workers of earlier releases do not tell it: then it is the newest one before that made it.
    """
    if branch.made_by is not None:
        for candidate in branches:
            _, _, name = candidate
            if name == branch.made_by:
                return candidate
        return None
    earlier = [k for k, b in branches.items() if k < key and branch.step in b.steps]
    return max(earlier, default=None)


def _committed(processes: Mapping[str, Sequence[Line]]) -> set[tuple[Key, int]]:
    """Return generation and number of the updates that the last state contains."""
    return {(key, step) for step, key in makers(processes).items()}


def _use(epoch: int, lines: Sequence[Line]) -> EpochUse:
    n_used = missed = repeated = end = 0
    times: Counter[int] = Counter()
    for line in sorted(lines, key=lambda x: int(x["at"])):
        first, last = line["at"], line["at"] + len(line["indices"])
        missed += max(0, first - end)
        repeated += max(0, min(end, last) - first)
        n_used += max(0, last - max(first, end))
        end = max(end, last)
        if not line.get("may_repeat"):  # as the script's own order may
            times.update(line["indices"])
    twice = sorted(index for index, count in times.items() if count > 1)
    return EpochUse(
        epoch=epoch,
        of=max(line["of"] for line in lines),
        used=n_used,
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
                spans[key_of(line)].append(line)
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
    return any(line["kind"] == "committed" for line in chain.from_iterable(processes.values()))


def losses(processes: Mapping[str, Sequence[Line]]) -> dict[int, float]:
    """Return the loss of each update that the run kept, over its whole batch."""
    committed = _committed(processes)
    shares: dict[int, dict[tuple[str, int], tuple[float, float]]] = defaultdict(dict)
    kind = ""  # found out in the first update of several parts
    for name, lines in processes.items():
        for line in lines:
            if line["kind"] != "loss" or (key_of(line), line["step"] + 1) not in committed:
                continue
            parts, part = shares[line["step"] + 1], (name, line["number"])
            loss, _ = parts.get(part, (0.0, 0.0))
            parts[part] = loss + line["loss"], line["weight"]
            kind = line["reduction"] or kind
    by_update = {}
    for update, parts in sorted(shares.items()):
        of_parts, weights = zip(*parts.values(), strict=True)
        if kind == "sum":
            by_update[update] = sum(of_parts)
        else:
            weight = sum(weights) or 1.0
            by_update[update] = sum(x * w for x, w in parts.values() if w) / weight
    return by_update


def samples(processes: Mapping[str, Sequence[Line]]) -> dict[int, list[int]]:
    """Return the indices of each update that the last state contains."""
    committed = _committed(processes)
    indices: dict[int, list[int]] = defaultdict(list)
    for line in _handed(processes, committed):
        indices[line["step"] + 1] += line["indices"]
    return dict(indices)


def newest(processes: Mapping[str, Sequence[Line]], *, rank: int = 0) -> UpdatePlace | None:
    """Return the process of ``rank`` in the newest generation, if it has made an update there."""
    generations = set[Key]()
    updates: dict[Key, list[tuple[str, Line]]] = defaultdict(list)  # of this rank
    for name, lines in processes.items():
        for line in lines:
            if line["kind"] == "entered":
                generations.add(key_of(line))
            elif line["kind"] == "committed" and line["rank"] == rank:
                updates[key_of(line)].append((name, line))
    of_newest = updates[max(generations)] if generations else []
    if not of_newest:
        return None
    name, line = of_newest[-1]
    _, _, pid = name.rpartition("-")
    return UpdatePlace(
        pid=int(pid), rank=rank, size=line["size"], step=line["step"], of_generation=len(of_newest)
    )
