"""Where the numbers lie that members of two releases add up for each other."""

from __future__ import annotations

import pytest
import torch

from bftrainer.elastic.gradients.vote_record import DeclaredWeight, VoteLayout, VoteSums

LAYOUT = VoteLayout(parameters=3, compared=2, has_square=True)
# By hand, as the release before has them: a vote, three marks, weight and share, two compared
# numbers, a square.
WRITTEN = [1.0, 1.0, 0.0, 1.0, 12.0, 0.25, 5.0, 6.0, 9.0]
DECLARED = DeclaredWeight(weight=12.0, share=0.25)


def test_numbers_lie_where_the_release_before_has_them() -> None:
    flags = torch.full((9,), 7.0)
    LAYOUT.write(
        flags,
        votes=True,
        marks=[1.0, 0.0, 1.0],
        declared=DECLARED,
        compared=[5.0, 6.0],
        square=9.0,
    )
    assert flags.tolist() == WRITTEN
    assert LAYOUT.size == 9


def test_without_marks_every_parameter_has_a_gradient() -> None:
    layout = VoteLayout(parameters=2, compared=0)
    flags = torch.full((5,), 7.0)
    layout.write(flags, votes=False, marks=None, declared=DECLARED, compared=[])
    assert flags.tolist() == [0.0, 1.0, 1.0, 12.0, 0.25]


def test_what_is_padding_is_not_read() -> None:
    flags = torch.tensor([*WRITTEN, 4.0, 4.0])
    assert LAYOUT.read(flags) == VoteSums(
        votes=1, marks=[1.0, 0.0, 1.0], declared=DECLARED, compared=[5.0, 6.0], square=9.0
    )


def test_counts_of_all_workers_replace_all_but_marks_and_square() -> None:
    flags = torch.tensor(WRITTEN)
    counts = torch.tensor([3.0, 40.0, 0.5, 50.0, 60.0], dtype=torch.float64)
    assert LAYOUT.without_marks().size == len(counts)
    LAYOUT.put_counts(flags, counts)
    assert flags.tolist() == [3.0, 1.0, 0.0, 1.0, 40.0, 0.5, 50.0, 60.0, 9.0]


def test_an_exchange_replaces_the_votes() -> None:
    flags = torch.tensor(WRITTEN)
    LAYOUT.put_votes(flags, torch.tensor(2.0))
    assert flags.tolist() == [2.0, *WRITTEN[1:]]


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_declared_weights_add_up(share: float) -> None:
    total = DeclaredWeight(1.0, 0.25).plus(DeclaredWeight(2.0, share))
    assert total == (3.0, 0.25 + share)
