"""How long a node of some age will stay: a hazard by age from what was seen.

Takes ``Lengths``, returns a ``Survival`` that answers for any age. In each class of age the
hazard is ends over time at risk (piecewise exponential: M. Friedman, Ann. Stat. 10 (1982)
101-113); with narrow classes that is the estimate of Kaplan and Meier (JASA 53 (1958)
457-481), and it needs two sums per class instead of every fragment.

Where little or nothing has been seen a prior answers, worth one fragment: a node stays
about as long again as it has been idle (hazard 1 / (age + 600 s), a Lomax law).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from _bench.lengths import AGES_S, N_AGES, Lengths, add_ages, class_of

PRIOR_S = 600.0
NEGLIGIBLE = 1e-9  # chance still to be there: what comes later does not matter


@dataclass(frozen=True, slots=True, kw_only=True)
class Survival:
    """Chance to stay, by age; ``hazard_per_s`` is constant in each class and above 0."""

    hazard_per_s: tuple[float, ...]

    def expected_s(self, age_s: float, within_s: float) -> float:
        """Expected time until a node of this age leaves, or ``within_s`` if that is sooner."""
        return self._look_ahead(age_s, within_s)[0]

    def chance_to_stay(self, age_s: float, for_s: float) -> float:
        """Chance that a node of this age is still there after ``for_s``."""
        return self._look_ahead(age_s, for_s)[1]

    def _look_ahead(self, age_s: float, for_s: float) -> tuple[float, float]:
        """Expected time within ``for_s`` that the node is there, chance at its end."""
        b = class_of(age_s)
        stays, expected_s, left_s, at_s = 1.0, 0.0, for_s, age_s
        while left_s > 0.0 and stays > NEGLIGIBLE:
            span_s = left_s if b + 1 == N_AGES else min(left_s, AGES_S[b + 1] - at_s)
            hazard = self.hazard_per_s[b]
            leaves = -math.expm1(-hazard * span_s)
            expected_s += stays * leaves / hazard
            stays *= 1.0 - leaves
            left_s -= span_s
            b += 1
            at_s = AGES_S[b] if b < N_AGES else at_s
        return expected_s, stays


def fit(seen: Lengths, now_s: float) -> Survival:
    """Estimate from all that was seen up to now, fragments that run included."""
    lasted_s = list(seen.lasted_s)
    together = Counter(seen.since_s.values())  # nodes that came together age together
    for since_s, count in together.items():
        spent_s = [0.0] * (class_of(now_s - since_s) + 1)
        add_ages(spent_s, (now_s - since_s,))
        for b, span_s in enumerate(spent_s):
            lasted_s[b] += count * span_s
    prior_ended, prior_s = _prior()
    return Survival(
        hazard_per_s=tuple(
            (ended + more) / (at_risk_s + more_s)
            for ended, more, at_risk_s, more_s in zip(
                seen.ended, prior_ended, lasted_s, prior_s, strict=True
            )
        )
    )


@cache
def _prior() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Ends and time at risk, by class of age, of one fragment of the prior law."""
    stays = [PRIOR_S / (PRIOR_S + age_s) for age_s in AGES_S]
    ended = [a - b for a, b in pairwise(stays)]
    spent_s = [PRIOR_S * math.log((PRIOR_S + b) / (PRIOR_S + a)) for a, b in pairwise(AGES_S)]
    # The last class has no end: its hazard is that at its begin.
    return (*ended, stays[-1]), (*spent_s, stays[-1] * (PRIOR_S + AGES_S[-1]))
