"""What the training script wrote → the promises about samples and parameters."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any


def read_records(directory: Path) -> list[dict[str, Any]]:
    """Read every worker's lines; a killed worker's last line may be cut."""
    records = []
    for path in sorted((directory / "records").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            try:
                records.append(json.loads(line))
            except ValueError:
                continue
    return records


def committed_samples(records: list[dict[str, Any]]) -> dict[int, Counter[int]]:
    """Return per epoch how often each sample is in the final line of updates.

    A step may be done again after a resume from an older checkpoint; the greatest
    generation that committed it is the one that counts. All shares of that step in
    that generation belong to the update, also those of a worker that died in it.
    """
    generation_of: dict[int, int] = {}
    for r in records:
        if r["kind"] == "committed":
            generation_of[r["step"]] = max(generation_of.get(r["step"], 0), r["generation"])
    epochs: dict[int, Counter[int]] = defaultdict(Counter)
    for r in records:
        if r["kind"] == "batch" and generation_of.get(r["step"]) == r["generation"]:
            epochs[r["epoch"]].update(r["ids"])
    return epochs


def state_hashes(records: list[dict[str, Any]]) -> dict[tuple[int, int], list[str]]:
    """Return per (generation, step) the parameter hashes that its members wrote."""
    hashes: dict[tuple[int, int], list[str]] = defaultdict(list)
    for r in records:
        if r["kind"] == "hash":
            hashes[r["generation"], r["step"]].append(r["hash"])
    return hashes
