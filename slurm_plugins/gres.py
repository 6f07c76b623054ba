"""Generic resources as Slurm prints them: GPUs of nodes, those in use, those asked for. Pure.

Called by ``parse``, ``job_requests`` and ``hook.lines`` with the text of one field. A part of a GPU
(``shard``, ``mps``) is no GPU, but a GPU with a part in use is free for nobody who wants it as a
whole. What Slurm does not tell counts as in use.

``tests/fixtures/slurm/gres-of-nodes.txt`` and ``gres-of-jobs.txt`` list the forms, with who prints
them in which release. Source: ``_build_node_gres_str`` and ``_node_gres_used`` of gres.c, 20.11 to
26.05; gres.conf(5), "MULTIPLE_SHARING_GRES_PJ".
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from bftrainer.model.hostlist import ParseError
from slurm_plugins.fields import LONGEST

LOG = logging.getLogger("bftrainer.slurm")

GPU = "gpu"
PARTS = frozenset({"shard", "mps"})  # of GPUs

_UNITS: dict[str, int] = {unit: 1024**power for power, unit in enumerate(("", *"KMGTP"))}
_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,6})?[KMGTP]?"
_NAME = re.compile(r"(?:gres[:/])?([^:=/(]*)")
# A number at the end is the count; what precedes it is the type (4090, 1g.10gb).
_ITEM = re.compile(
    r"(?:gres[:/])?[a-z]+"
    rf"(?::(?!{_NUMBER}(?:$|\()|no_consume(?:$|[:=(]))(\(null\)|[^:,()=]+))?"  # type
    rf"(:no_consume)?(?:([:=])({_NUMBER}))?(?:\(([^()]*)\))?"
)
_COUNTED = re.compile(r"CNT:([0-9]{1,9})")
_USED_OF_ALL = re.compile(r"([0-9]{1,9}|-)/[0-9]{1,9}")  # parts; "-": the GPU is used as a whole
_INDICES = "IDX:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """So many of a resource."""

    name: str
    kind: str  # its type; "": none
    count: int
    is_sum: bool = False  # of all types together, among resources that are tracked (TRES)
    is_counted: bool = True  # False: however many use it, none is taken
    detail: str = ""  # what follows in parentheses


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusLeft:
    """The GPUs of a node that no job uses."""

    count: int
    unclear: str = ""  # why Slurm does not tell


def gpus_of(gres: str) -> tuple[int, str]:
    """Return the number of GPUs in a generic-resource string, and a name for what it describes.

    ``gpu:a100:4(S:0-1),nvme:1`` gives ``(4, "gpu:a100:4")``, none gives ``(0, "cpu")``.

    Raises:
        ParseError: it cannot be read, or is too long.
    """
    counts = _by_kind(_items(gres))
    kinds = [
        ":".join(filter(None, (GPU, kind, str(count)))) for kind, count in counts.items() if count
    ]
    return sum(counts.values()), ",".join(kinds) or "cpu"


def gpus_by_type(gres: str) -> dict[str, int]:
    """Return the number of GPUs of each type; "": of no type.

    Raises:
        ParseError: it cannot be read, or is too long.
    """
    return {kind: count for kind, count in _by_kind(_items(gres)).items() if count}


def gpus_asked(gres: str) -> tuple[int, int]:
    """Return how many whole GPUs a job asks for, and of how many a part: at most of one.

    Raises:
        ParseError: it cannot be read, or is too long.
    """
    items = _items(gres)
    has_part = any(item.count for item in items if item.name in PARTS)
    return sum(_by_kind(items).values()), int(has_part)


def gpus_needed(gres: str) -> int:
    """Return how many GPUs must be free for a job; of the last one it may use a part only.

    Raises:
        ParseError: it cannot be read, or is too long.
    """
    return sum(gpus_asked(gres))


def gpus_left(gres: str, gres_used: str) -> GpusLeft:
    """Return how many GPUs of a node no job uses, not even a part of.

    Args:
        gres: what the node has.
        gres_used: what of it is in use; what cannot be read counts as all.

    Raises:
        ParseError: what the node has cannot be read.
    """
    has = _items(gres)
    n_gpus = sum(_by_kind(has).values())
    if not n_gpus:
        return GpusLeft(count=0)
    try:
        return GpusLeft(count=max(0, n_gpus - _n_used(has, _items(gres_used, has_numbers=True))))
    except ParseError as problem:
        return GpusLeft(count=0, unclear=str(problem))


def _n_used(has: Sequence[Item], used: Sequence[Item]) -> int:
    """Return the GPUs in use, in whole or in part; raises ``ParseError``: it is not told."""
    if uncounted := next((item.name for item in has if not item.is_counted), ""):
        raise ParseError(f"nobody counts those in use ({uncounted}:no_consume)")
    for name in sorted({item.name for item in has if item.count}):
        _expect_all_kinds(name, has, used)
    n_whole = sum(_by_kind(used).values())
    n_parts = sum(_n_gpus_with_parts(item) for item in used if item.name in PARTS)
    # A GPU that is used as a whole has no parts in use.
    return n_whole + min(n_parts, max(0, sum(_by_kind(has).values()) - n_whole))


def _expect_all_kinds(name: str, has: Sequence[Item], used: Sequence[Item]) -> None:
    kinds = {item.kind for item in used if item.name == name}
    missing = {item.kind for item in has if item.name == name and item.count} - kinds
    if not kinds or (missing and "" not in kinds):
        which = ":".join(filter(None, (name, *sorted(missing)[:1])))
        raise ParseError(f"nothing is said of {which[:80]!r}")


def _n_gpus_with_parts(item: Item) -> int:
    """Return of how many GPUs parts are in use; raises ``ParseError``: that is not told."""
    if item.detail.startswith(_INDICES):
        # To 23.02, and a GPU is missing once any of the jobs on it has ended (_job_dealloc).
        raise ParseError(f"this release forgets {item.name}s in use ({item.detail[:40]!r})")
    if not item.detail:
        return item.count  # at worst each is of another GPU
    per_gpu = [_USED_OF_ALL.fullmatch(word) for word in item.detail.split(",")]
    counts = [int(used[1]) for used in per_gpu if used and used[1] != "-"]
    if None in per_gpu or sum(counts) != item.count:
        raise ParseError(f"not parts of GPUs: {item.detail[:80]!r}")
    return sum(map(bool, counts))


def _by_kind(items: Iterable[Item]) -> dict[str, int]:
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
    if (rest := in_all - sum(counts.values())) > 0:
        counts[""] = counts.get("", 0) + rest
    return counts


@lru_cache(maxsize=4096)  # the same in many nodes and jobs
def _items(gres: str, *, has_numbers: bool = False) -> tuple[Item, ...]:
    """Return what it says of GPUs and their parts; ``has_numbers``: none means no 1."""
    if len(gres) > LONGEST:
        raise ParseError(f"generic resources of {len(gres)} characters: {gres[:80]!r}")
    items = [_item(text, has_numbers) for text in _split(gres)]
    return tuple(item for item in items if item is not None)


def _item(text: str, has_number: bool) -> Item | None:
    """Parse one resource; None: it is of another kind."""
    named = _NAME.match(text)
    name = named[1] if named else ""
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
        counted = _COUNTED.fullmatch(detail)
        if counted is None:
            raise ParseError(f"no number: {text[:80]!r}")
        return int(counted[1])
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


@dataclass(slots=True)
class GpusUntold:
    """Nodes of which Slurm does not tell how many GPUs are in use: logged once each."""

    shown: frozenset[str] = frozenset()

    def note(self, unclear: Mapping[str, str]) -> None:
        """Log the nodes that the last poll did not show; ``unclear``: why, by node."""
        new = sorted(unclear.keys() - self.shown)
        self.shown = frozenset(unclear)
        if new:
            LOG.warning(
                "Slurm does not tell how many GPUs are in use on %d nodes, node %s: %s. "
                "All of them count as in use.",
                *(len(new), new[0], unclear[new[0]]),
            )
