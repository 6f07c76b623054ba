"""A constraint expression → which nodes satisfy it, as far as we understand it.

Takes what the user wrote (``sbatch --constraint``), returns the ways in which it can be
met: each way is a rule for all nodes and, where the expression counts, how many nodes
with which features. Called by ``requests``. Source: sbatch manual page, release 22.05,
"--constraint". ``None``: beyond us, and the caller is in doubt. Rules are kept as they are
written and read from left to right for a node: what that costs grows with their length only,
however they are nested and joined.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

# Names joined by AND and OR, with parentheses in pairs; () is met by every node.
Rule = tuple[str, ...]

LONGEST = 1024  # characters; longer ones Slurm refuses (measured on 22.05)
MOST_NAMES = 64
DEEPEST = 32  # parentheses in each other
_WORD = re.compile(r"[\w.:+=-]+|[&|()]")
_COUNTED = re.compile(r"(.*)\*([0-9]{1,6})")
_BRACKETED = re.compile(r"(?:([^\[\]]*)&)?\[([^\[\]]+)\](?:&([^\[\]]*))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to meet the expression."""

    everywhere: Rule = ()
    counted: tuple[tuple[Rule, int], ...] = ()  # beyond that, so many nodes with these


def meets(features: Collection[str], wanted: Rule) -> bool:
    """Whether a node with these features is one of those wanted.

    Where AND and OR are mixed Slurm's own order is from left to right and a reader's is AND
    first. AND first it is: that is met by whatever meets the other, so that nothing is
    overlooked.
    """
    has = frozenset(features)
    # Of every open parenthesis: whether a product before the last OR is met, and the last one.
    open_ = [(False, True)]
    for word in wanted:
        if word == "(":
            open_.append((False, True))
        elif word == "|":
            open_[-1] = (any(open_[-1]), True)
        elif word != "&":
            is_met = any(open_.pop()) if word == ")" else word in has
            earlier, last = open_[-1]
            open_[-1] = (earlier, last and is_met)
    return any(open_[0])


def ways_of(expression: str) -> tuple[Way, ...] | None:
    """Read an expression; several ways: only one of them has to be met, by all nodes."""
    return _ways_of(expression) if len(expression) <= LONGEST else None


@lru_cache(maxsize=4096)
def _ways_of(expression: str) -> tuple[Way, ...] | None:
    text = "".join(expression.split())
    if not text:
        return (Way(),)
    if len(re.split("[&|]", text)) > MOST_NAMES:
        return None
    found = _BRACKETED.fullmatch(text)
    if found is None:
        return _without_brackets(text)
    before, inside, after = found.groups()
    outside = "&".join(f"({part})" for part in (before, after) if part)
    everywhere = _rule(outside) if outside else ()
    if everywhere is None:
        return None
    return _in_brackets(inside, everywhere)


def _without_brackets(text: str) -> tuple[Way, ...] | None:
    counted = _COUNTED.fullmatch(text)
    if counted is None:
        wanted = _rule(text)
        return None if wanted is None else (Way(everywhere=wanted),)
    wanted = _rule(counted[1])
    return None if wanted is None else (Way(counted=((wanted, int(counted[2])),)),)


def _in_brackets(inside: str, everywhere: Rule) -> tuple[Way, ...] | None:
    """Either counts joined by AND, or choices joined by OR of which all nodes have one."""
    parts = _split(inside)
    if parts is None:
        return None
    operators, terms = parts
    counts = [_COUNTED.fullmatch(term) for term in terms]
    wanted = [_rule(count[1] if count else term) for count, term in zip(counts, terms, strict=True)]
    known = [one for one in wanted if one is not None]
    if len(known) < len(wanted):
        return None
    if all(counts) and operators <= {"&"}:
        numbers = [int(count[2]) for count in counts if count]
        return (Way(everywhere=everywhere, counted=tuple(zip(known, numbers, strict=True))),)
    if any(counts) or operators > {"|"}:
        return None
    both = (*everywhere, "&") if everywhere else ()
    return tuple(Way(everywhere=(*both, "(", *one, ")")) for one in known)


def _split(text: str) -> tuple[set[str], list[str]] | None:
    """Split at the operators outside parentheses; ``None``: those are not in pairs."""
    operators: set[str] = set()
    terms, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if depth < 0:
            return None
        if character in "&|" and depth == 0:
            operators.add(character)
            terms.append("")
        else:
            terms[-1] += character
    return None if depth else (operators, terms)


def _rule(text: str) -> Rule | None:
    """Read names joined by AND and OR, with parentheses, without counts."""
    words = _WORD.findall(text)
    if "".join(words) != text:
        return None
    depth, wants_name = 0, True
    for word in words:
        if word == "(" and wants_name and depth < DEEPEST:
            depth += 1
        elif word == ")" and depth and not wants_name:
            depth -= 1
        elif word in ("&", "|") and not wants_name:
            wants_name = True
        elif word not in ("&", "|", "(", ")") and wants_name:
            wants_name = False
        else:
            return None
    return None if depth or wants_name else tuple(words)
