"""What the workers of ``scripts/train_ids.py`` wrote down, put together.

The journals of all processes come in; which samples each epoch's committed updates
held, and whether all members agreed, goes out.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

Entry = dict[str, Any]


def entries(directory: Path, kind: str | None = None) -> list[Entry]:
    of_all: list[Entry] = []
    for path in sorted(directory.glob("journal-*.jsonl")):
        of_all += _entries_in(path)
    return [e for e in of_all if kind is None or e["kind"] == kind]


def of_process(directory: Path, pid: int) -> list[Entry]:
    """Return what one worker wrote down, in its order."""
    return _entries_in(directory / f"journal-{pid}.jsonl")


def _entries_in(path: Path) -> list[Entry]:
    # The last line of a killed worker may be cut.
    lines = [line for line in path.read_text().splitlines() if line.endswith("}")]
    return [json.loads(line) for line in lines]


def last_step(directory: Path) -> int:
    """Return the newest step that a member has committed; 0 before the first."""
    return max((e["step"] for e in entries(directory, "commit")), default=0)


def committed_ids(directory: Path) -> dict[int, Counter[int]]:
    """Return per epoch how often each sample was in a committed update.

    A step that was redone counts as of the last generation that committed it.
    """
    generation_of: dict[int, tuple[int, int]] = {}
    for e in entries(directory, "commit"):
        key = (e["generation"], e["attempt"])
        generation_of[e["step"]] = max(key, generation_of.get(e["step"], key))
    epochs: dict[int, Counter[int]] = defaultdict(Counter)
    for e in entries(directory, "try"):
        if generation_of.get(e["step"]) == (e["generation"], e["attempt"]):
            epochs[e["epoch"]].update(e["ids"])
    return dict(epochs)


def disagreements(directory: Path, *fields: str) -> list[tuple[Any, set[Any]]]:
    """Return the generations at whose end members differed, and how."""
    seen: dict[Any, set[Any]] = defaultdict(set)
    for e in entries(directory, "end"):
        seen[(e["generation"], e["attempt"], e.get("token"), e["step"])].add(
            tuple(e[f] for f in fields)
        )
    return [(key, values) for key, values in seen.items() if len(values) != 1]


def result(directory: Path) -> Entry:
    found: Entry = json.loads((directory / "result.json").read_text())
    return found


def disagreements_of_shards(directory: Path) -> list[tuple[Any, set[Any]]]:
    """Return where workers with the same shard differed at the end of a generation."""
    seen: dict[Any, set[Any]] = defaultdict(set)
    for e in entries(directory, "end"):
        seen[(e["generation"], e["attempt"], e["step"], e["shard"])].add(e["hash"])
    return [(key, values) for key, values in seen.items() if len(values) != 1]
