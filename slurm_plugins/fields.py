"""Parses fields as Slurm prints them and users write them: numbers, constraints, text. Pure.

Called by ``parse``, ``job_requests`` and ``hook.lines`` with the text of one field. A field that
cannot be read is ignored as a condition, like an unsupported constraint (``queue.requests``),
so no job can hide the others. Source for constraints: sbatch manual page, release 22.05,
"--constraint".
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

from bftrainer.model.cluster import LONGEST as LONGEST_RULE
from bftrainer.model.cluster import MOST_NAMES, Job, Rule, Way, rule_of
from bftrainer.model.generic_resources import LONGEST
from bftrainer.model.hostlist import ParseError, expand

T = TypeVar("T")
LOG = logging.getLogger("bftrainer.slurm")

MOST_NODES = 8192  # of a list
MOST_NODES_IN_ALL = 1 << 18  # of all different lists of one poll
MOST_PARTITIONS = 256
UNREAD = " we cannot read"
NOTHING = frozenset({"", "(null)", "N/A", "NONE", "None", "none", "Unknown", "n/a"})

TAKING_NODES = frozenset({"NODE", "TOPO"})  # Exclusive= of partitions whose jobs share no node


def exclusive_of(partition: Mapping[str, str]) -> str:
    """Return NO, NODE, USER or TOPO, in 26.05's words, for a line of slurm.conf.

    Until 25.11 it is OverSubscribe=EXCLUSIVE, ExclusiveUser and ExclusiveTopo, which 26.05 still
    takes. Names are in small letters.
    """
    sharing = partition.get("oversubscribe", partition.get("shared", "NO"))
    if sharing.upper().startswith("EXCLUSIVE"):
        return "NODE"
    if word := partition.get("exclusive", "").upper():
        return word
    names = {"TOPO": "exclusivetopo", "USER": "exclusiveuser"}
    words = [word for word, name in names.items() if partition.get(name, "NO").upper() == "YES"]
    return words[0] if words else "NO"


def said(text: str) -> str:
    """Return the text; Slurm's words for "none" give ""; raises ``ParseError``: too long."""
    if len(text) > LONGEST:
        raise ParseError(f"a field of {len(text)} characters: {text[:80]!r}")
    return "" if text in NOTHING else text


@dataclass(slots=True)
class Doubts:
    """The fields of one job that could not be read."""

    found: list[str] = field(default_factory=list)

    def read(self, what: str, text: str, reader: Callable[[str], T], otherwise: T) -> T:
        """Parse a field; on failure note it and return the default."""
        try:
            return reader(text)
        except ParseError:
            self.found.append(what)
            return otherwise

    def partitions(self, text: str) -> tuple[str, ...]:
        """Return the partition names, each once, up to a limit."""
        names = tuple(dict.fromkeys(filter(None, text.split(","))))
        some = tuple([name for name in names if len(name) <= LONGEST][:MOST_PARTITIONS])
        if len(some) < len(names):
            self.found.append("a list of partitions")
        return some

    def words(self) -> str:
        """Name them, for ``Job.unclear``."""
        return f"{' and '.join(self.found)}{UNREAD}" if self.found else ""


@dataclass(slots=True)
class NodeLists:
    """User-written node lists of one poll: equal texts are expanded once."""

    known: dict[str, tuple[str, ...]] = field(default_factory=dict)
    left: int = MOST_NODES_IN_ALL

    def names(self, text: str) -> tuple[str, ...]:
        """Expand a list, each name once; raises ``ParseError``: it is malformed or too long."""
        found = self.known.get(text)
        if found is None:
            found = tuple(dict.fromkeys(expand(text, min(MOST_NODES, self.left))))
            self.left -= len(found)
            self.known[text] = found
        return found


@dataclass(slots=True)
class Unread:
    """Jobs with unreadable fields: logged once each, with their number."""

    shown: frozenset[str] = frozenset()
    total: int = 0

    def note(self, jobs: Iterable[Job]) -> None:
        """Log those that the last poll did not show."""
        now = {job.counts_as: job for job in jobs if job.unclear.endswith(UNREAD)}
        new = sorted(now.keys() - self.shown)
        self.shown = frozenset(now)
        self.total += len(new)
        if new:
            job = now[new[0]]
            LOG.warning(
                "%d jobs have requests that cannot be read, %d so far; job %s of %s: %s. "
                "These parts of their requests are ignored.",
                *(len(new), self.total, new[0], job.user, job.unclear),
            )


_WHOLE = re.compile(r"[0-9]{1,18}")
_SHORT = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)([KM])")  # without --noconvert


def whole(text: str) -> int:
    """Parse a count, also ``1K`` (1024); sinfo appends ``+`` to the smallest of several."""
    text = text.strip().removesuffix("+")
    if _WHOLE.fullmatch(text):
        return int(text)
    found = _SHORT.fullmatch(text)
    if found is None:
        raise ParseError(f"not a whole number: {text[:40]!r}")
    return int(float(found[1]) * 1024 ** (1 + "KM".index(found[2])))


_COUNTED = re.compile(r"(.*)\*([0-9]{1,6})")
_BRACKETED = re.compile(r"(?:([^\[\]]*)&)?\[([^\[\]]+)\](?:&([^\[\]]*))?")


def ways_of(text: str) -> tuple[Way, ...]:
    """Parse an expression into alternatives, one of which all nodes must meet.

    Raises:
        ParseError: it is not supported.
    """
    expression = "".join(said(text).split())
    if len(expression) > LONGEST_RULE or len(re.split("[&|]", expression)) > MOST_NAMES:
        raise ParseError(f"constraint too long: {expression[:80]!r}")
    return _ways_of(expression) if expression else ()


@lru_cache(maxsize=4096)  # the same expressions recur in many jobs
def _ways_of(expression: str) -> tuple[Way, ...]:
    found = _BRACKETED.fullmatch(expression)
    if found is not None:
        before, inside, after = found.groups()
        outside = [f"({part})" for part in (before, after) if part]
        return _in_brackets(inside, _rule("&".join(outside)) if outside else ())
    if counted := _COUNTED.fullmatch(expression):
        return (Way(counted=((_rule(counted[1]), int(counted[2])),)),)
    return (Way(everywhere=_rule(expression)),)


def _in_brackets(inside: str, everywhere: Rule) -> tuple[Way, ...]:
    """Parse counts joined by AND, or alternatives joined by OR that all nodes share."""
    operators, terms = _split(inside)
    counted = [_COUNTED.fullmatch(term) for term in terms]
    numbers = [int(count[2]) for count in counted if count]
    rules = [_rule(count[1] if count else term) for count, term in zip(counted, terms, strict=True)]
    if len(numbers) == len(terms) and operators <= {"&"}:
        return (Way(everywhere=everywhere, counted=tuple(zip(rules, numbers, strict=True))),)
    if numbers or "&" in operators:
        raise ParseError(f"neither counts nor choices: {inside[:80]!r}")
    both = (*everywhere, "&") if everywhere else ()
    return tuple(Way(everywhere=(*both, "(", *rule, ")")) for rule in rules)


def _split(text: str) -> tuple[set[str], list[str]]:
    """Split at the operators outside parentheses."""
    operators, terms, depth = set[str](), [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character in "&|" and depth == 0:
            operators.add(character)
            terms.append("")
        else:
            terms[-1] += character
    return operators, terms


def _rule(text: str) -> Rule:
    rule = rule_of(text)
    if rule is None:
        raise ParseError(f"not features joined by & and |: {text[:80]!r}")
    return rule
