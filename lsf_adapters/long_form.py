"""``bjobs -UF``: each job's request, times to the second and reserved slots. Pure.

Job name, command and paths are users' text and stand in the same lines, unescaped. So only what
concerns the request of that very job is read here; id, user, state and queue come from ``bjobs
-w``, whose columns before the name nobody can write. A job that appears twice is not read.
Source: bjobs(1), option -UF (one line per statement, never wrapped).
"""

from __future__ import annotations

import re
from collections import Counter

from bftrainer.model.hostlist import ParseError
from lsf_adapters import table
from lsf_adapters.requests import Asked, asked_hosts

LONGEST_BLOCK = 1 << 16  # characters; one is longer than that by its user's texts alone
_HEAD = re.compile(r"^Job <(\d{1,10}(?:\[\d{1,10}\])?)>, ", re.MULTILINE)
_SUBMITTED = re.compile(rf"^({table.DATE}): Submitted from host <[^>]*>(.*)$", re.MULTILINE)
_STARTED = re.compile(rf"^({table.DATE}): (?:Started|\[\d+\] started) ", re.MULTILINE)
_RESERVED = re.compile(
    rf"^{table.DATE}: Reserved <\d+> (?:job )?slots? on host\(s\) ((?:<[^<>\n]+> ?)+)",
    re.MULTILINE,
)
_WILL_START = re.compile(rf"^({table.DATE}): (?:Will be started|Estimated)", re.MULTILINE)
_RUN_LIMIT = re.compile(r"^ RUNLIMIT *\n (\d{1,9}(?:\.\d+)?) min", re.MULTILINE)
_REASONS = re.compile(r"^ PENDING REASONS:\n((?: [^\n]*;?\n)+)", re.MULTILINE)
_SLOTS = re.compile(r", (\d{1,7})(?:-(\d{1,7}))? (?:Task\(s\)|Processors Requested)")
_RESOURCES = re.compile(r", Requested Resources <([^<>]*)>")
_HOSTS = re.compile(r", Specified Hosts ((?:<[^<>]+>(?:, )?)+)")
_DEPENDENCY = re.compile(r", Dependency Condition <([^\n]*?)>(?:,|;)")
_BEGIN = re.compile(rf", Specified Start Time <({table.DATE})>")
_IN_ANGLES = re.compile(r"<([^<>]+)>")
_HOST_COUNT = re.compile(r": \d+ hosts?;?$|;$")


class LongForm:
    """The blocks of one answer, by job id; each is parsed when asked for."""

    def __init__(self, text: str, now_s: float) -> None:
        """Split the answer.

        Raises:
            ParseError: it is cut off or contains no job.
        """
        heads = list(_HEAD.finditer(text))
        if not heads or not text.endswith("\n"):
            raise ParseError(f"no job, or cut off: {text[-60:]!r}")
        ends = [*(head.start() for head in heads[1:]), len(text)]
        times = Counter(head[1] for head in heads)
        self._now_s = now_s
        self._blocks = {
            head[1]: text[head.end() : end]
            for head, end in zip(heads, ends, strict=True)
            if times[head[1]] == 1 and end - head.end() <= LONGEST_BLOCK
        }

    @property
    def job_ids(self) -> tuple[str, ...]:
        """The ids of all jobs that can be read."""
        return tuple(self._blocks)

    def asked(self, job_id: str) -> Asked | None:
        """Return a job's request; None: it is not in the answer, or cannot be read."""
        block = self._blocks.get(job_id)
        said = None if block is None else _SUBMITTED.search(block)
        if block is None or said is None:
            return None
        words, slots = said[2], _SLOTS.search(said[2])
        reserved, limit = _RESERVED.search(block), _RUN_LIMIT.search(block)
        return Asked(
            slots=int(slots[1]) if slots else 1,
            slots_max=int(slots[2] or 0) if slots else 0,
            resources=_first(_RESOURCES, words),
            limit_s=60.0 * float(limit[1]) if limit else None,
            begin_s=self._time_s(_first(_BEGIN, words)),
            hosts=asked_hosts(_IN_ANGLES.findall(_first(_HOSTS, words))),
            is_exclusive=", Exclusive Execution" in words,
            dependency=_first(_DEPENDENCY, words),
            reasons=_reasons(block),
            is_held=words.startswith(" with hold"),
            start_s=self._time_s(_first(_WILL_START, block)),
            reserved=tuple(_IN_ANGLES.findall(reserved[1])) if reserved else (),
        )

    def submit_s(self, job_id: str) -> float | None:
        """Return when it was submitted, to the second."""
        return self._time_s(_first(_SUBMITTED, self._blocks.get(job_id, "")))

    def start_s(self, job_id: str) -> float | None:
        """Return when it started, to the second."""
        return self._time_s(_first(_STARTED, self._blocks.get(job_id, "")))

    def how_ended(self, job_id: str) -> str:
        """Return the sentence about its end; "": there is none."""
        found = re.findall(
            rf"^{table.DATE}: ((?:Exited|Done|Termination)[^\n]*)",
            self._blocks.get(job_id, ""),
            re.MULTILINE,
        )
        return found[-1].strip() if found else ""

    def _time_s(self, text: str) -> float | None:
        try:
            return table.epoch_s(text, self._now_s)
        except ParseError:
            return None


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1] if found else ""


def _reasons(block: str) -> tuple[str, ...]:
    found = _REASONS.search(block)
    lines = found[1].split("\n") if found else []
    return tuple(_HOST_COUNT.sub("", line.strip()) for line in lines if line.strip())
