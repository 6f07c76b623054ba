"""Required node features as data: names joined by AND and OR. Pure.

Adapters, and readers of user input, convert text to ``Rule`` and ``Way``; ``meets`` checks a node
against them. Rules stay in written order and are evaluated from left to right, so the cost grows
with their length only, however they are nested.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

# Tokens: names, AND (&), OR (|) and balanced parentheses; () is met by every node.
Rule = tuple[str, ...]

LONGEST = 1024  # characters
MOST_NAMES = 64
DEEPEST = 32  # nested parentheses
_WORD = re.compile(r"[\w.:+=-]+|[&|()]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One alternative of a job's feature request."""

    everywhere: Rule = ()
    counted: tuple[tuple[Rule, int], ...] = ()  # in addition, that many nodes with these


def meets(features: Collection[str], wanted: Rule) -> bool:
    """Whether a node with these features meets the rule.

    Slurm evaluates mixed AND and OR from left to right, people expect AND first. Here AND comes
    first: all nodes that meet the rule from left to right meet it too, so none is missed.
    """
    if not wanted:
        return True
    has = frozenset(features)
    # Per open parenthesis: whether a product before the last OR is met; the last product so far.
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
    """Parse names joined by & and |, with parentheses; ``None``: malformed or too long."""
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
