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
_WHOLE = re.compile(r"[0-9]{1,18}")
_SHORT = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)([KM])")  # without --noconvert
_COUNTED = re.compile(r"(.*)\*([0-9]{1,6})")
_BRACKETED = re.compile(r"(?:([^\[\]]*)&)?\[([^\[\]]+)\](?:&([^\[\]]*))?")


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
    for word, name in (("TOPO", "exclusivetopo"), ("USER", "exclusiveuser")):
        if partition.get(name, "NO").upper() == "YES":
            return word
    return "NO"


def said(text: str) -> str:
    """Return the text; Slurm's words for "none" give ""; raises ``ParseError``: too long."""
    if len(text) > LONGEST:
        raise ParseError(f"a field of {len(text)} characters: {text[:80]!r}")
    if text in NOTHING:
        return ""
    return text


@dataclass(slots=True)
class Doubts:
    """The fields of one job that could not be read."""

    unread_fields: list[str] = field(default_factory=list)

    def read(self, what: str, text: str, reader: Callable[[str], T], otherwise: T) -> T:
        """Parse a field; on failure note it and return the default."""
        try:
            return reader(text)
        except ParseError:
            self.unread_fields.append(what)
            return otherwise

    def partitions(self, text: str) -> tuple[str, ...]:
        """Return the partition names, each once, up to a limit."""
        names = tuple(dict.fromkeys(filter(None, text.split(","))))
        readable = [name for name in names if len(name) <= LONGEST][:MOST_PARTITIONS]
        if len(readable) < len(names):
            self.unread_fields.append("a list of partitions")
        return tuple(readable)

    def words(self) -> str:
        """Name them, for ``Job.unclear``."""
        if not self.unread_fields:
            return ""
        return f"{' and '.join(self.unread_fields)}{UNREAD}"


@dataclass(slots=True)
class NodeLists:
    """User-written node lists of one poll: equal texts are expanded once."""

    names_of: dict[str, tuple[str, ...]] = field(default_factory=dict)
    n_names_left: int = MOST_NODES_IN_ALL

    def names(self, text: str) -> tuple[str, ...]:
        """Expand a list, each name once; raises ``ParseError``: it is malformed or too long."""
        names = self.names_of.get(text)
        if names is None:
            names = tuple(dict.fromkeys(expand(text, min(MOST_NODES, self.n_names_left))))
            self.n_names_left -= len(names)
            self.names_of[text] = names
        return names


@dataclass(slots=True)
class PrintedLists:
    """Node lists that Slurm wrote, kept by their text: a job's row changes more often than they.

    Every cycle plans the same nodes for a later time.
    """

    names_of: dict[str, tuple[str, ...]] = field(default_factory=dict)
    n_names: int = 0  # of all kept lists

    def names(self, text: str) -> tuple[str, ...]:
        """Expand a list; raises ``ParseError``: it is malformed or too long."""
        names = self.names_of.get(text)
        if names is None:
            names = expand(text)
            self._keep(text, names)
        return names

    def _keep(self, text: str, names: tuple[str, ...]) -> None:
        self.n_names += len(names)
        if self.n_names > MOST_NODES_IN_ALL:
            self.names_of.clear()
            self.n_names = len(names)
        self.names_of[text] = names


@dataclass(slots=True)
class Unread:
    """Jobs with unreadable fields: logged once each, with their number."""

    logged_keys: frozenset[str] = frozenset()
    total: int = 0

    def note(self, jobs: Iterable[Job]) -> None:
        """Log those that the last poll did not show."""
        now = {job.counts_as: job for job in jobs if job.unclear.endswith(UNREAD)}
        new_keys = sorted(now.keys() - self.logged_keys)
        self.logged_keys = frozenset(now)
        self.total += len(new_keys)
        if new_keys:
            first_key, *_ = new_keys
            job = now[first_key]
            LOG.warning(
                "%d jobs have requests that cannot be read, %d so far; job %s of %s: %s. "
                "These parts of their requests are ignored.",
                *(len(new_keys), self.total, first_key, job.user, job.unclear),
            )


def whole(text: str) -> int:
    """Parse a count, also ``1K`` (1024); sinfo appends ``+`` to the smallest of several."""
    text = text.strip().removesuffix("+")
    if _WHOLE.fullmatch(text):
        return int(text)
    amount = _SHORT.fullmatch(text)
    if amount is None:
        raise ParseError(f"not a whole number: {text[:40]!r}")
    return int(float(amount[1]) * 1024 ** (1 + "KM".index(amount[2])))


def ways_of(text: str) -> tuple[Way, ...]:
    """Parse an expression into alternatives, one of which all nodes must meet.

    Raises:
        ParseError: it is not supported.
    """
    expression = "".join(said(text).split())
    if len(expression) > LONGEST_RULE or len(re.split("[&|]", expression)) > MOST_NAMES:
        raise ParseError(f"constraint too long: {expression[:80]!r}")
    if not expression:
        return ()
    return _ways_of(expression)


@lru_cache(maxsize=4096)  # the same expressions recur in many jobs
def _ways_of(expression: str) -> tuple[Way, ...]:
    brackets = _BRACKETED.fullmatch(expression)
    if brackets is not None:
        before, inside, after = brackets.groups()
        everywhere: Rule = ()
        outside = [f"({part})" for part in (before, after) if part]
        if outside:
            everywhere = _rule("&".join(outside))
        return _in_brackets(inside, everywhere)
    count = _COUNTED.fullmatch(expression)
    if count:
        return (Way(counted=((_rule(count[1]), int(count[2])),)),)
    return (Way(everywhere=_rule(expression)),)


def _in_brackets(inside: str, everywhere: Rule) -> tuple[Way, ...]:
    """Parse counts joined by AND, or alternatives joined by OR that all nodes share."""
    operators, terms = _split(inside)
    numbers: list[int] = []
    rules: list[Rule] = []
    for term in terms:
        if count := _COUNTED.fullmatch(term):
            numbers.append(int(count[2]))
            rules.append(_rule(count[1]))
        else:
            rules.append(_rule(term))
    if len(numbers) == len(terms) and operators <= {"&"}:
        return (Way(everywhere=everywhere, counted=tuple(zip(rules, numbers, strict=True))),)
    if numbers or "&" in operators:
        raise ParseError(f"neither counts nor choices: {inside[:80]!r}")
    prefix: Rule = ()
    if everywhere:
        prefix = (*everywhere, "&")
    return tuple(Way(everywhere=(*prefix, "(", *rule, ")")) for rule in rules)


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
