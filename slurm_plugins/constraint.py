"""Parses a constraint expression into its alternatives.

Input is what the user wrote (``sbatch --constraint``); called by ``parse`` and ``hook.lines``.
Source: sbatch manual page, release 22.05, "--constraint".
"""

from __future__ import annotations

import re
from functools import lru_cache

from bftrainer.model.features import LONGEST, MOST_NAMES, Rule, Way, rule_of
from bftrainer.model.hostlist import ParseError
from slurm_plugins.user_text import said

_COUNTED = re.compile(r"(.*)\*([0-9]{1,6})")
_BRACKETED = re.compile(r"(?:([^\[\]]*)&)?\[([^\[\]]+)\](?:&([^\[\]]*))?")


def ways_of(text: str) -> tuple[Way, ...]:
    """Parse an expression into alternatives, one of which all nodes must meet.

    Raises:
        ParseError: it is not supported.
    """
    expression = "".join(said(text).split())
    if len(expression) > LONGEST or len(re.split("[&|]", expression)) > MOST_NAMES:
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
