"""Makes what two clusters print comparable: dates, numbers and widths of columns are hidden."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_DATES: Final = (
    re.compile(r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d( \d{4})?"),
    re.compile(r"[A-Z][a-z]{2} [ \d]\d( \d\d:\d\d\b|, \d{4}| \d{4})"),
    re.compile(r"\d\d/\d\d-\d\d:\d\d:\d\d"),
)
_SINGLE: Final = re.compile(r"\bn\d+\b")
_NUMBER: Final = re.compile(r"\d+(\.\d+)?(e\+\d+)?")
_SPACE: Final = re.compile(r"[ \t]+")
# What a job uses depends on when it was looked at; so does whether it is said at all.
_USAGE: Final = re.compile(
    r"^(.*: Resource usage collected\..*| *MEM: .*| *PGID: .*| *MAX MEM: .*| *MEMORY USAGE:)\n",
    re.MULTILINE,
)
_CWD: Final = re.compile(r"\bCWD <[^>]*>")
_STARTED: Final = re.compile(r"(, Execution (?:Home|CWD) <[^>]*>)+")
_CPU_TIME: Final = re.compile(r"The CPU time used is [\d.]+ seconds")


def masked(text: str, *, names: Mapping[str, str], keeps_numbers: bool = False) -> str:
    """Return a text without what differs between clusters that behave alike.

    Args:
        text: what a command printed.
        names: words of this cluster and what they are called in comparisons.
        keeps_numbers: whether numbers mean something (slots of hosts); hosts are hidden, and the
            lines sorted.
    """
    for word, common in names.items():
        text = re.sub(rf"(?<![\w/]){re.escape(word)}(?![\w])", common, text)
    text = _STARTED.sub("", _USAGE.sub("", text))
    text = text.partition("Usage:")[0] + ("Usage\n" if "Usage:" in text else "")
    text = _CWD.sub("CWD <>", text)
    text = _CPU_TIME.sub("The CPU time used is # seconds", text)
    for date in _DATES:
        text = date.sub("DATE", text)
    text = _SINGLE.sub("HOST", text)
    if not keeps_numbers:
        text = _NUMBER.sub("#", text)
    lines = [_SPACE.sub(" ", line).strip() for line in text.splitlines()]
    lines = [line for line in lines if line]
    if keeps_numbers:
        lines.sort()
    return "\n".join(lines)
