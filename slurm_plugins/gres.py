"""GPUs of nodes in use and left, and those asked for, as Slurm prints them. Pure.

Called by ``parse``, ``job_requests`` and ``hook.lines`` with the text of one field;
``bftrainer.model.generic_resources`` has the grammar. A part of a GPU
(``shard``, ``mps``) is no GPU, but a GPU with a part in use is free for nobody who wants it as a
whole. What Slurm does not tell counts as in use.

``tests/fixtures/slurm/gres-of-nodes.txt`` and ``gres-of-jobs.txt`` list the forms, with who prints
them in which release. Source: ``_build_node_gres_str`` and ``_node_gres_used`` of gres.c, 20.11 to
26.05; gres.conf(5), "MULTIPLE_SHARING_GRES_PJ".
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from bftrainer.model.generic_resources import PARTS, Item, by_kind, items_of
from bftrainer.model.hostlist import ParseError

LOG = logging.getLogger("bftrainer.slurm")

_USED_OF_ALL = re.compile(r"([0-9]{1,9}|-)/[0-9]{1,9}")  # parts; "-": the GPU is used as a whole
_INDICES = "IDX:"
SEVERAL_TYPES = "GPUs of several types"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusLeft:
    """The GPUs of a node that no job uses."""

    count: int
    unclear: str = ""  # why Slurm does not tell


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedGpus:
    """The GPUs of one type of a node."""

    gpu_type: str  # "": it has no name
    count: int
    free: int  # of them, no job uses any part of these


def gpus_asked(gres: str) -> tuple[int, int]:
    """Return how many whole GPUs a job asks for, and of how many a part: at most of one.

    Raises:
        ParseError: it cannot be read, or is too long.
    """
    items = items_of(gres)
    has_part = any(item.count for item in items if item.name in PARTS)
    return sum(by_kind(items).values()), int(has_part)


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
    has = items_of(gres)
    n_gpus = sum(by_kind(has).values())
    if not n_gpus:
        return GpusLeft(count=0)
    try:
        return GpusLeft(count=max(0, n_gpus - _n_used(has, items_of(gres_used, has_numbers=True))))
    except ParseError as problem:
        return GpusLeft(count=0, unclear=str(problem))


@lru_cache(maxsize=4096)  # the same in many nodes
def gpus_by_type(gres: str, gres_used: str) -> tuple[TypedGpus, ...]:
    """Return a node's GPUs by type, with those that no job uses, not even a part of.

    Parts in use of GPUs whose type is not told count against each type.

    Raises:
        ParseError: it cannot be read what the node has, or it is not told how many are in use.
    """
    has = items_of(gres)
    counts = {kind: count for kind, count in by_kind(has).items() if count}
    if not counts:
        return ()
    items_in_use = items_of(gres_used, has_numbers=True)
    _n_used(has, items_in_use)
    whole, parts = by_kind(items_in_use), Counter[str]()
    for item in items_in_use:
        if item.name in PARTS:
            parts[item.kind] += _n_gpus_with_parts(item)
    typed = []
    for kind, count in counts.items():
        elsewhere = [name for name in parts if name not in counts]
        if kind and "" in counts:
            elsewhere.append("")
        n_whole = whole.get(kind, 0) + sum(n for name, n in whole.items() if name not in counts)
        n_parts = parts[kind] + sum(parts[name] for name in elsewhere)
        free = max(0, count - n_whole - n_parts)
        typed.append(TypedGpus(gpu_type=kind, count=count, free=free))
    return tuple(typed)


def type_of(*requests: str) -> tuple[str, str]:
    """Return the type that a job's whole GPUs must have, and what is not clear of it.

    Args:
        requests: of the job: GPUs per node, in all, per task. What cannot be read names no type.

    Returns:
        The type, "" if any will do; and ``SEVERAL_TYPES`` if no single one will, else "".
    """
    if not any(":" in text for text in requests):  # most jobs name none
        return "", ""
    types = set[str]()
    for text in requests:
        with suppress(ParseError):
            for kind, count in by_kind(items_of(text)).items():
                if count and kind:
                    types.add(kind)
    if len(types) > 1:
        return "", SEVERAL_TYPES
    return next(iter(types), ""), ""


def _n_used(has: Sequence[Item], used: Sequence[Item]) -> int:
    """Return the GPUs in use, in whole or in part; raises ``ParseError``: it is not told."""
    if uncounted := next((item.name for item in has if not item.is_counted), ""):
        raise ParseError(f"nobody counts those in use ({uncounted}:no_consume)")
    for name in sorted({item.name for item in has if item.count}):
        _expect_all_kinds(name, has, used)
    n_whole = sum(by_kind(used).values())
    n_parts = sum(_n_gpus_with_parts(item) for item in used if item.name in PARTS)
    # A GPU that is used as a whole has no parts in use.
    return n_whole + min(n_parts, max(0, sum(by_kind(has).values()) - n_whole))


def _expect_all_kinds(name: str, has: Sequence[Item], used: Sequence[Item]) -> None:
    kinds = {item.kind for item in used if item.name == name}
    missing = set()
    for item in has:
        if item.name == name and item.count and item.kind not in kinds:
            missing.add(item.kind)
    if not kinds or (missing and "" not in kinds):
        kind = ":".join(filter(None, (name, *sorted(missing)[:1])))
        raise ParseError(f"nothing is said of {kind[:80]!r}")


def _n_gpus_with_parts(item: Item) -> int:
    """Return of how many GPUs parts are in use; raises ``ParseError``: that is not told."""
    if item.detail.startswith(_INDICES):
        # To 23.02, and a GPU is missing once any of the jobs on it has ended (_job_dealloc).
        raise ParseError(f"this release forgets {item.name}s in use ({item.detail[:40]!r})")
    if not item.detail:
        return item.count  # at worst each is of another GPU
    n_parts = n_gpus = 0
    for word in item.detail.split(","):
        match = _USED_OF_ALL.fullmatch(word)
        if match is None:
            raise ParseError(f"not parts of GPUs: {item.detail[:80]!r}")
        parts_in_use = int(match[1].replace("-", "0"))
        n_parts += parts_in_use
        n_gpus += parts_in_use > 0
    if n_parts != item.count:
        raise ParseError(f"not parts of GPUs: {item.detail[:80]!r}")
    return n_gpus


@dataclass(slots=True)
class GpusUntold:
    """Nodes of which Slurm does not tell how many GPUs are in use: logged once each."""

    logged_nodes: frozenset[str] = frozenset()

    def note(self, unclear: Mapping[str, str]) -> None:
        """Log the nodes that the last poll did not show; ``unclear``: why, by node."""
        new_nodes = sorted(unclear.keys() - self.logged_nodes)
        self.logged_nodes = frozenset(unclear)
        if new_nodes:
            first_node, *_ = new_nodes
            LOG.warning(
                "Slurm does not tell how many GPUs are in use on %d nodes, node %s: %s. "
                "All of them count as in use.",
                *(len(new_nodes), first_node, unclear[first_node]),
            )
