"""Generic resources (GRES) as Slurm writes them: how many GPUs of which type. Pure.

``slurm_plugins.gres`` counts with them the GPUs in use and asked for; the readers of ``sinfo``
tables and of ``sacct`` logs (``bftrainer.batch.traces``) count those of nodes and of past jobs.
The same grammar serves nodes (``gpu:a100:4(S:0-1)``) and trackable resources
(``gres/gpu:a100=2``). A part of a GPU (``shard``, ``mps``) is no GPU.

``tests/fixtures/slurm/gres-of-nodes.txt`` and ``gres-of-jobs.txt`` list the forms, with who prints
them in which release.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from bftrainer.model.hostlist import ParseError

LONGEST: Final = 4096  # characters of a field; Slurm accepts 1,024 for most (measured on 22.05)
GPU = "gpu"
PARTS = frozenset({"shard", "mps"})  # of GPUs

_UNITS: dict[str, int] = {unit: 1 << 10 * power for power, unit in enumerate(("", *"KMGTP"))}
_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,6})?[KMGTP]?"
_NAME = re.compile(r"(?:gres[:/])?([^:=/(]*)")
# A number at the end is the count; what precedes it is the type (4090, 1g.10gb).
_ITEM = re.compile(
    r"(?:gres[:/])?[a-z]+"
    rf"(?::(?!{_NUMBER}(?:$|\()|no_consume(?:$|[:=(]))(\(null\)|[^:,()=]+))?"  # type
    rf"(:no_consume)?(?:([:=])({_NUMBER}))?(?:\(([^()]*)\))?"
)
_COUNTED = re.compile(r"CNT:([0-9]{1,9})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """So many of a resource."""

    name: str
    kind: str  # its type; "": none
    count: int
    is_sum: bool = False  # of all types together, among resources that are tracked (TRES)
    is_counted: bool = True  # False: however many use it, none is taken
    detail: str = ""  # what follows in parentheses


def gpus_of(gres: str) -> tuple[int, str]:
    """Return the number of GPUs in a generic-resource string, and a name for what it describes.

    ``gpu:a100:4(S:0-1),nvme:1`` gives ``(4, "gpu:a100:4")``, none gives ``(0, "cpu")``.

    Raises:
        ParseError: it cannot be read, or is too long.
    """
    counts = by_kind(items_of(gres))
    kinds = [
        ":".join(filter(None, (GPU, kind, str(count)))) for kind, count in counts.items() if count
    ]
    return sum(counts.values()), ",".join(kinds) or "cpu"


def by_kind(items: Iterable[Item]) -> dict[str, int]:
    """Return the number of GPUs of each type, in the order of their first mention."""
    counts: dict[str, int] = {}
    in_all = 0
    for item in items:
        if item.name != GPU:
            continue
        if item.is_sum:
            in_all = max(in_all, item.count)
        else:
            counts[item.kind] = counts.get(item.kind, 0) + item.count
    n_untyped = in_all - sum(counts.values())
    if n_untyped > 0:
        counts[""] = counts.get("", 0) + n_untyped
    return counts


@lru_cache(maxsize=4096)  # the same in many nodes and jobs
def items_of(gres: str, *, has_numbers: bool = False) -> tuple[Item, ...]:
    """Return what it says of GPUs and their parts; ``has_numbers``: none means no 1."""
    if len(gres) > LONGEST:
        raise ParseError(f"generic resources of {len(gres)} characters: {gres[:80]!r}")
    items = [_item(text, has_numbers) for text in _split(gres)]
    return tuple(item for item in items if item is not None)


def _item(text: str, has_number: bool) -> Item | None:
    """Parse one resource; None: it is of another kind."""
    name_match = _NAME.match(text)
    name = name_match[1] if name_match else ""
    if name != GPU and name not in PARTS:
        return None
    parts = _ITEM.fullmatch(text)
    if parts is None:
        raise ParseError(f"not a number of {name}s: {text[:80]!r}")
    kind, uncounted, mark, number, detail = parts.groups(default="")
    return Item(
        name=name,
        kind="" if kind == "(null)" else kind,
        count=_count(number, detail, text, has_number),
        is_sum=mark == "=" and not kind,
        is_counted=not uncounted,
        detail=detail,
    )


def _count(number: str, detail: str, text: str, has_number: bool) -> int:
    """Return a number; a part of one counts as one. Without a number it is 1."""
    if not number and (detail or has_number):
        count_match = _COUNTED.fullmatch(detail)
        if count_match is None:
            raise ParseError(f"no number: {text[:80]!r}")
        return int(count_match[1])
    unit = number[-1:] if number[-1:] in _UNITS else ""
    return math.ceil(float(number.removesuffix(unit) or 1) * _UNITS[unit])


def _split(text: str) -> Iterator[str]:
    """Split at the commas outside parentheses."""
    depth, first = 0, 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth < 0:
            break
        if character == "," and depth == 0:
            yield text[first:position].strip()
            first = position + 1
    if depth:
        raise ParseError(f"parentheses that do not match: {text[:80]!r}")
    yield text[first:].strip()
