"""Jobs of a CSM machine: their requests and hosts without the launch node. Pure.

With ``-nnodes``, too, such a job's requirement is a sum of a launch and a compute part, as in
``1*{select[LN]span[hosts=1]} + 1680*{select[CN]span[ptile=42]}``. Only the latter is about nodes.
Source: OLCF's Summit user guide; requirements of Sierra's jobs in LLNL's batch log description.
"""

from __future__ import annotations

import re
from dataclasses import replace

from lsf_adapters.requests import LONGEST_TEXT, Asked, JobRow

_TERM = re.compile(r"\s*(\d{1,9})\s*\*\s*\{([^{}]*)\}\s*")
_SELECT = re.compile(r"select\[([^\[\]]{0,2000})\]")
_HOSTS = re.compile(
    r"\(?\s*(hname\s*==\s*[A-Za-z0-9._-]+(?:\s*\|\|\s*hname\s*==\s*[A-Za-z0-9._-]+)*)\s*\)?"
)
_HOST = re.compile(r"hname\s*==\s*([A-Za-z0-9._-]+)")
_AND = re.compile(r"\s*&&\s*")


def on_compute_nodes(row: JobRow, resource: str = "CN") -> JobRow:
    """Return the job with what it asks of compute nodes; as it is where that cannot be told."""
    part = None if row.asked is None else _compute_part(row.asked, resource)
    return row if part is None else replace(row, asked=part)


def _compute_part(asked: Asked, resource: str) -> Asked | None:
    found = [one for one in _terms(asked.resources) if resource in _conditions(one[1])]
    if len(found) != 1:
        return None
    slots, text = found[0]
    left = [one for one in _conditions(text) if one != resource]
    named = [one for one in left if _HOSTS.fullmatch(one)]
    hosts = tuple(_HOST.findall(named[0])) if len(named) == 1 else ()
    if hosts:
        left.remove(named[0])
    rest = _SELECT.sub("", text)
    return replace(
        asked,
        slots=slots,
        slots_max=0,
        resources=f"select[{' && '.join(left)}]{rest}" if left else rest,
        hosts=hosts or asked.hosts,
    )


def _terms(text: str) -> list[tuple[int, str]]:
    """Return the numbers of slots and requirements of a sum; []: it is none."""
    parts = text[:LONGEST_TEXT].strip().split("+")
    found = [_TERM.fullmatch(part) for part in parts]
    return [(int(one[1]), one[2]) for one in found if one] if all(found) else []


def _conditions(text: str) -> list[str]:
    """Return what is selected, as far as it is joined by "and"."""
    found = _SELECT.search(text)
    return [] if found is None else [one.strip() for one in _AND.split(found[1]) if one.strip()]
