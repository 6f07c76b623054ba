"""What was seen of idle nodes coming and going: lengths of fragments, by age.

Takes the names of the nodes that are idle or ours at each look, returns ``Lengths``, which
is small, is all that ``survival`` needs, and is the input of the next look. Nothing but the
past goes in. Called once per decision.

A fragment that still runs counts with the time it has lasted so far (it is censored, not
left out): otherwise long fragments would be missing from what is learnt.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

# Where classes of age begin: each three tenths wider than the one before, up to a day.
AGES_S = (0.0, *(round(10.0 * 1.3**k, 1) for k in range(36)))
N_AGES = len(AGES_S)
HALF_LIFE_S = 7 * 86400.0  # a fragment that ended a week ago counts half


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Sums over all fragments seen, by class of age, and the ones that run."""

    since_s: Mapping[str, float] = field(default_factory=dict)  # node -> when it came
    ended: tuple[float, ...] = (0.0,) * N_AGES  # [b]: fragments that ended at this age
    lasted_s: tuple[float, ...] = (0.0,) * N_AGES  # [b]: node-seconds ended ones spent at it
    at_s: float = 0.0  # when one last ended: from then on the sums fade


def observe(seen: Lengths, present: AbstractSet[str], now_s: float) -> Lengths:
    """Bring the sums up to a look; ``present`` are the nodes that are idle or ours.

    A node seen for the first time counts from now on, although it may have been idle
    longer: at the very first look that is so for all.
    """
    since = seen.since_s
    gone = [name for name in since if name not in present]
    new = sorted(present - since.keys())
    if not gone and not new:
        return seen
    running = {n: s for n, s in since.items() if n in present} if gone else dict(since)
    running.update(dict.fromkeys(new, now_s))
    if not gone:
        return Lengths(since_s=running, ended=seen.ended, lasted_s=seen.lasted_s, at_s=seen.at_s)
    fade = 0.5 ** (max(0.0, now_s - seen.at_s) / HALF_LIFE_S)
    ended, lasted_s = [fade * n for n in seen.ended], [fade * s for s in seen.lasted_s]
    ages_s = [now_s - since[name] for name in gone]
    add_ages(lasted_s, ages_s)
    for age_s in ages_s:
        ended[class_of(age_s)] += 1.0
    return Lengths(since_s=running, ended=tuple(ended), lasted_s=tuple(lasted_s), at_s=now_s)


def class_of(age_s: float) -> int:
    """Index of the class of age."""
    return bisect_right(AGES_S, age_s, 1) - 1


def add_ages(lasted_s: list[float], ages_s: Iterable[float]) -> None:
    """Add the time that fragments of these ages spent in each class of age."""
    for age_s in ages_s:
        last = class_of(age_s)
        for b in range(last):
            lasted_s[b] += AGES_S[b + 1] - AGES_S[b]
        lasted_s[last] += max(0.0, age_s - AGES_S[last])
