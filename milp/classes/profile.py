"""What the trainers that can only use one class make of any number of its nodes.

Takes their sizes and values, returns values by number of nodes and the sizes behind
them; called by the search over several classes, which divides the nodes between these
trainers and those that can choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from milp.tables import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The sizes one trainer chooses from."""

    sizes: IntArray  # ascending
    values: FloatArray
    rescales: IntArray  # 1 where the size differs from the current one, else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Best keys by capacity 0..most, of the trainers of one class."""

    trainers: tuple[int, ...]  # in FCFS order
    values: FloatArray  # [c]; -inf where not even the smallest sizes fit
    rescales: IntArray
    losses: FloatArray  # against the prices, idle nodes included
    picks: tuple[NDArray[np.intp], ...]  # [trainer][c]: index into its sizes
    choices: tuple[Choice, ...]

    def sizes_at(self, capacity: IntArray) -> list[IntArray]:
        """Sizes of each trainer, for several capacities at once."""
        left = capacity.copy()
        sizes: list[IntArray] = []
        for choice, picks in zip(self.choices, self.picks, strict=True):
            size = choice.sizes[picks[left]]
            left -= size
            sizes.append(size)
        return sizes


def build_profile(
    trainers: Sequence[int],
    choices: Sequence[Choice],
    most: int,
    *,
    price: float,
    best: float,
    tolerance: float,
) -> Profile:
    """Values for every capacity up to ``most``; ties: fewest rescales, then FCFS.

    Trainers are taken last to first, so that walking back from the first one takes the
    largest of its tied sizes. ``best`` is the sum of what each trainer would be worth
    at ``price`` by itself.
    """
    values = np.zeros(most + 1)
    rescales = np.zeros(most + 1, dtype=np.int64)
    columns = np.arange(most + 1)
    all_picks: list[NDArray[np.intp]] = []
    for choice in reversed(choices):
        left = columns - choice.sizes[:, None]
        fits = left >= 0
        index = np.maximum(left, 0)
        candidates = np.where(fits, values[index] + choice.values[:, None], -np.inf)
        picks = candidates.argmax(axis=0)
        best_values = candidates[picks, columns]
        is_tied = fits & (candidates >= best_values - tolerance)
        several = np.flatnonzero(is_tied.sum(axis=0) > 1)
        if len(several):
            after = rescales[index[:, several]] + choice.rescales[:, None]
            after[~is_tied[:, several]] = np.iinfo(np.int64).max
            is_least = after == after.min(axis=0)
            picks[several] = len(choice.sizes) - 1 - is_least[::-1].argmax(axis=0)
        values = candidates[picks, columns]
        rescales = rescales[index[picks, columns]] + choice.rescales[picks]
        all_picks.append(picks)
    return Profile(
        trainers=tuple(trainers),
        values=values,
        rescales=rescales,
        losses=best + price * columns - values,
        picks=tuple(reversed(all_picks)),
        choices=tuple(choices),
    )
