"""A constraint expression → which nodes satisfy it, as far as we understand it.

Takes what the user wrote (``sbatch --constraint``), returns the ways in which it can be
met: each way is a rule for all nodes and, where the expression counts, how many nodes
with which features. Called by ``requests``. Source: sbatch manual page, release 22.05,
"--constraint". ``None``: beyond us, and the caller is in doubt.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

# Any of these sets, all of whose features a node must have.
AnyOf = frozenset[frozenset[str]]

_ALL_NODES: AnyOf = frozenset({frozenset()})
_TOKEN = re.compile(r"[\w.:+=-]+|[&|()]")
_COUNTED = re.compile(r"(.*)\*([0-9]{1,6})")
_BRACKETED = re.compile(r"(?:([^\[\]]*)&)?\[([^\[\]]+)\](?:&([^\[\]]*))?")
_MOST_SETS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to meet the expression."""

    everywhere: AnyOf = _ALL_NODES
    counted: tuple[tuple[AnyOf, int], ...] = ()  # beyond that, so many nodes with these


def meets(features: Collection[str], wanted: AnyOf) -> bool:
    """Whether a node with these features is one of those wanted."""
    return any(one <= set(features) for one in wanted)


@lru_cache(maxsize=4096)
def ways_of(expression: str) -> tuple[Way, ...] | None:
    """Read an expression; several ways: only one of them has to be met, by all nodes."""
    text = "".join(expression.split())
    if not text:
        return (Way(),)
    found = _BRACKETED.fullmatch(text)
    if found is None:
        return _without_brackets(text)
    before, inside, after = found.groups()
    outside = "&".join(f"({part})" for part in (before, after) if part)
    everywhere = _any_of(outside) if outside else _ALL_NODES
    if everywhere is None:
        return None
    return _in_brackets(inside, everywhere)


def _without_brackets(text: str) -> tuple[Way, ...] | None:
    counted = _COUNTED.fullmatch(text)
    if counted is None:
        wanted = _any_of(text)
        return None if wanted is None else (Way(everywhere=wanted),)
    wanted = _any_of(counted[1])
    return None if wanted is None else (Way(counted=((wanted, int(counted[2])),)),)


def _in_brackets(inside: str, everywhere: AnyOf) -> tuple[Way, ...] | None:
    """Either counts joined by AND, or choices joined by OR of which all nodes have one."""
    parts = _split(inside)
    if parts is None:
        return None
    operators, terms = parts
    counts = [_COUNTED.fullmatch(term) for term in terms]
    wanted = [
        _any_of(count[1] if count else term) for count, term in zip(counts, terms, strict=True)
    ]
    known = [one for one in wanted if one is not None]
    if len(known) < len(wanted):
        return None
    if all(counts) and operators <= {"&"}:
        numbers = [int(count[2]) for count in counts if count]
        return (Way(everywhere=everywhere, counted=tuple(zip(known, numbers, strict=True))),)
    if any(counts) or operators > {"|"}:
        return None
    return tuple(Way(everywhere=_both(everywhere, one)) for one in known)


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


def _any_of(text: str) -> AnyOf | None:
    """Read names joined by AND and OR, with parentheses, without counts."""
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != text:
        return None
    found, rest = _chain(tokens)
    return None if rest else found


def _chain(tokens: list[str]) -> tuple[AnyOf | None, list[str]]:
    """Read terms and operators up to the end or a closing parenthesis.

    Where AND and OR are mixed Slurm's own order is from left to right and a reader's is
    AND first; a node that meets either counts, so that nothing is overlooked.
    """
    terms: list[AnyOf] = []
    operators: list[str] = []
    while tokens:
        term, tokens = _term(tokens)
        if term is None:
            return None, tokens
        terms.append(term)
        if not tokens or tokens[0] == ")":
            break
        if tokens[0] not in "&|":
            return None, tokens
        operators.append(tokens[0])
        tokens = tokens[1:]
    if not terms or len(operators) != len(terms) - 1:
        return None, tokens
    in_order, products = terms[0], [terms[0]]
    for operator, term in zip(operators, terms[1:], strict=True):
        if operator == "&":
            in_order, products[-1] = _both(in_order, term), _both(products[-1], term)
        else:
            in_order = in_order | term
            products.append(term)
    found = in_order.union(*products)
    return (found if len(found) <= _MOST_SETS else None), tokens


def _term(tokens: list[str]) -> tuple[AnyOf | None, list[str]]:
    if tokens[0] == "(":
        found, rest = _chain(tokens[1:])
        if found is None or rest[:1] != [")"]:
            return None, rest
        return found, rest[1:]
    if tokens[0] in "&|)":
        return None, tokens
    return frozenset({frozenset({tokens[0]})}), tokens[1:]


def _both(one: AnyOf, other: AnyOf) -> AnyOf:
    return frozenset(a | b for a in one for b in other)
