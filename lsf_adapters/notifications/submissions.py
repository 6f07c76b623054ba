"""Parses a file that the script of a user wrote into an announcement. Pure.

A user writes the file himself and may write anything: it counts as his own (``esub``), and a job
that no poll shows is soon not believed (``bftrainer.batch.announcer``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from bftrainer.batch.announcer import STAND_IN, Announcement
from lsf_adapters.notifications.script import FIRST_LINE, KEYS, MOST_BYTES
from lsf_adapters.requests import Asked, JobRow, asked_hosts, job_of

LONGEST_FILE = len(FIRST_LINE) + MOST_BYTES + 2  # bytes
MOST_SLOTS = 1 << 17
_LINE = re.compile(r"LSB_SUB_([A-Z_]{1,30})=(.*)")
_COUNT = re.compile(r"[0-9]{1,12}")
_ESCAPED = re.compile(r"\\(.)")


def submission(
    text: str, *, user: str, at_s: float, number: int, slots_of: Mapping[str, int]
) -> Announcement | None:
    """Parse a file; None: it is none of the script's, or changes an earlier job.

    Args:
        text: of the file.
        user: its owner.
        at_s: when it was written.
        number: becomes part of the job's stand-in id.
        slots_of: the nodes and their slots.
    """
    first, *lines = text[: 2 * LONGEST_FILE].split("\n")
    if first != FIRST_LINE:
        return None
    said = _said(lines)
    if "MODIFY" in said:
        return None
    queues = said.get("QUEUE", "").split()
    row = JobRow(
        job_id=f"{STAND_IN}{number}",
        user=user,
        state="PSUSP" if said.get("HOLD") == "Y" else "PEND",
        queue=queues[0] if len(queues) == 1 else "",
        name="",
        submit_s=at_s,
        asked=_asked(said, at_s),
    )
    job = job_of(row, slots_of)
    if not row.queue:
        job = replace(job, partitions=())  # the default one, or any of several
    return Announcement(at_s=at_s, partition=row.queue, job=job)


def _said(lines: list[str]) -> dict[str, str]:
    """Return the values by key; of several the first."""
    said: dict[str, str] = {}
    for line in lines:
        found = _LINE.fullmatch(line)
        if found is not None and found[1] in KEYS:
            said.setdefault(found[1], _unquoted(found[2]))
    return said


def _unquoted(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] == '"':
        return _ESCAPED.sub(r"\1", value[1:-1])
    return value


def _asked(said: Mapping[str, str], at_s: float) -> Asked:
    slots = max(1, min(_count(said.get("NUM_PROCESSORS", "")), MOST_SLOTS))
    slots_max = min(_count(said.get("MAX_NUM_PROCESSORS", "")), MOST_SLOTS)
    limit_s, begin_s = _count(said.get("RLIMIT_RUN", "")), _count(said.get("BEGIN_TIME", ""))
    dependency, is_later = said.get("DEPEND_COND", ""), begin_s > at_s
    waits = (*(("its dependency",) if dependency else ()), *(("its begin",) if is_later else ()))
    return Asked(
        slots=slots,
        slots_max=slots_max if slots_max > slots else 0,
        resources=said.get("RES_REQ", ""),
        limit_s=float(limit_s) if limit_s else None,
        begin_s=float(begin_s) if is_later else None,
        hosts=asked_hosts(said.get("HOSTS", "").split()),
        is_exclusive=said.get("EXCLUSIVE") == "Y",
        dependency=dependency,
        is_held=said.get("HOLD") == "Y",
        reasons=tuple(f"it waits for {what}" for what in waits),
    )


def _count(text: str) -> int:
    """Return a number of the file; 0: none."""
    return int(text) if _COUNT.fullmatch(text) else 0
