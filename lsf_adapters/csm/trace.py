"""Polls as a trace of idle fragments, for ``bftrainer trace`` and the simulator. Pure.

A fragment runs from the first poll in which a node is idle to the first in which it is not; where
polls are missing, only to the last one that saw it. Which parts are unfillable follows from the
eligible jobs of the polls, by the rule of ``docs/reference/traces.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from bftrainer.simulate.traces.fragments import Fragments, make_fragments
from bftrainer.simulate.traces.queue import Pending, mark_unfillable
from lsf_adapters.csm.idle import EVERY_S, Poll, confirmed, follows


def fragments(polls: Sequence[Poll], every_s: float = EVERY_S) -> Fragments:
    """Return the trace.

    Args:
        polls: in order of time.
        every_s: interval between two of them.

    Raises:
        ValueError: there are fewer than two polls, or no node was idle in two that follow.
    """
    if len(polls) < 2:
        raise ValueError("it has fewer than two polls")
    spans = _spans(confirmed(polls, every_s), every_s)
    if not spans:
        raise ValueError("no node was idle in two polls that follow each other")
    names = sorted({name for name, _, _ in spans})
    index = {name: k for k, name in enumerate(names)}
    trace = make_fragments(
        names=names,
        node=[index[name] for name, _, _ in spans],
        start_s=[start_s for _, start_s, _ in spans],
        end_s=[end_s for _, _, end_s in spans],
        span_s=(polls[0].at_s, polls[-1].at_s),
        notes=_notes(polls, every_s),
        source="polls",
    )
    return mark_unfillable(trace, _pending(polls))


def _spans(polls: Sequence[Poll], every_s: float) -> list[tuple[str, float, float]]:
    """Return node, start and end of each fragment."""
    found: list[tuple[str, float, float]] = []
    since_s: dict[str, float] = {}
    for k, poll in enumerate(polls):
        is_next = k > 0 and follows(polls[k - 1], poll, every_s)
        seen_s = poll.at_s if is_next or k == 0 else polls[k - 1].at_s
        gone = [name for name in since_s if not is_next or name not in poll.idle]
        found += [(name, since_s.pop(name), seen_s) for name in gone]
        for name in poll.idle:
            since_s.setdefault(name, poll.at_s)
    found += [(name, start_s, polls[-1].at_s) for name, start_s in since_s.items()]
    return [one for one in found if one[2] > one[1]]


def _pending(polls: Sequence[Poll]) -> Pending:
    """Return how long each eligible job waited, as far as the polls saw it."""
    rows: dict[tuple[str, int, float], list[float]] = {}
    for k, poll in enumerate(polls):
        until_s = polls[k + 1].at_s if k + 1 < len(polls) else poll.at_s
        for job in poll.waiting:
            if job.n_nodes > 0:
                row = rows.setdefault((job.job_id, job.n_nodes, job.for_s), [poll.at_s, until_s])
                row[1] = until_s
    return Pending(
        from_s=np.array([row[0] for row in rows.values()], dtype=np.float64),
        to_s=np.array([row[1] for row in rows.values()], dtype=np.float64),
        n_nodes=np.array([n for _, n, _ in rows], dtype=np.int64),
        limit_s=np.array([limit_s for _, _, limit_s in rows], dtype=np.float64),
    )


def _notes(polls: Sequence[Poll], every_s: float) -> list[str]:
    notes = ["nodes that were idle in one poll only are left out"]
    if not all(poll.is_named for poll in polls):
        notes.append("bslots named no hosts: node k is idle while k or more nodes are")
    n_missing = sum(not follows(before, after, every_s) for before, after in pairwise(polls))
    if n_missing:
        notes.append(f"polls are missing at {n_missing} places: nothing counts as idle there")
    sizes = [poll.n_nodes for poll in polls if poll.n_nodes is not None]
    if sizes:
        notes.append(f"the machine has {max(sizes)} nodes; those that were never idle are unnamed")
    return notes
