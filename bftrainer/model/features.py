"""Which features nodes are to have, as data: names joined by AND and OR. Pure.

Adapters, and whoever reads what a user wrote, make ``Rule`` and ``Way`` of it; a node is held
against them with ``meets``. Rules are kept as they are written and read from left to right for
a node: what that costs grows with their length only, however they are nested and joined.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

# Names joined by AND (&) and OR (|), with parentheses in pairs; () is met by every node.
Rule = tuple[str, ...]

LONGEST = 1024  # characters
MOST_NAMES = 64
DEEPEST = 32  # parentheses in each other
_WORD = re.compile(r"[\w.:+=-]+|[&|()]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to give a job nodes with the features that it asks for."""

    everywhere: Rule = ()
    counted: tuple[tuple[Rule, int], ...] = ()  # beyond that, so many nodes with these


def meets(features: Collection[str], wanted: Rule) -> bool:
    """Whether a node with these features is one of those wanted.

    Where AND and OR are mixed some read from left to right (Slurm) and people AND first. AND
    first it is: that is met by whatever meets the other, so that nothing is overlooked.
    """
    if not wanted:
        return True
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


def rule_of(text: str) -> Rule | None:
    """Read names joined by & and |, with parentheses; ``None``: it is none, or too much."""
    text = "".join(text.split())
    if len(text) > LONGEST or len(re.split("[&|]", text)) > MOST_NAMES:
        return None
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
