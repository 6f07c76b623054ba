"""The status that members exchange first in a new group, and what must be alike. Pure.

Chooses the member whose state all take, and returns the error of members that built another
model or read other data. Used by ``state_transfer``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from bftrainer.elastic.errors import ElasticError

NO_STATE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStatus:
    """The status of one member, in integers."""

    step: int  # committed, or NO_STATE
    layout: int  # of the model
    samples: int = 0  # in the dataset
    batch: int = 0  # of the loader
    order: int = 0  # how the loader goes through the samples: shuffling, shards

    def row(self) -> list[int]:
        """Return the status as a list of integers, the inverse of ``of``."""
        return list(astuple(self))

    @classmethod
    def of(cls, row: Sequence[int]) -> MemberStatus:
        """Return the status of another member."""
        step, layout, samples, batch, order = row
        return cls(step=step, layout=layout, samples=samples, batch=batch, order=order)


def choose_source(standings: Sequence[MemberStatus]) -> int:
    """Return the rank whose state all take: most committed steps, then lowest rank."""
    return max(range(len(standings)), key=lambda r: (standings[r].step, -r))


def refuse(
    standings: Sequence[MemberStatus], nodes: Sequence[str], source: int, mine: int
) -> ElasticError | None:
    """Return the error of members that cannot train together; ``nodes`` are those of the ranks.

    Raises:
        ElasticError: this worker must end. Members that match the state's source do not: the
            group goes on without the others.
    """
    error = _unlike(standings, nodes)
    if error is None:
        return None
    is_sound = _alike(standings[mine]) == _alike(standings[source])
    if standings[source].step != NO_STATE and is_sound:
        return error
    raise error


def _alike(standing: MemberStatus) -> list[int]:
    return standing.row()[1:]


def _unlike(standings: Sequence[MemberStatus], nodes: Sequence[str]) -> ElasticError | None:
    if len({s.layout for s in standings}) > 1:
        return ElasticError(
            "BFT-1408",
            "The workers of this trainer built different models.",
            "Build the model from arguments that are the same on every node.",
        )
    for what, values in (
        ("datasets of different length", [f"{s.samples} samples" for s in standings]),
        ("loaders with different batches", [f"{s.batch} samples" for s in standings]),
        ("loaders with different orders or shards", [f"order {s.order:x}" for s in standings]),
    ):
        if len(set(values)) > 1:
            first = dict(reversed(list(zip(values, nodes, strict=True))))
            found = ", ".join(f"{value} on {first[value]}" for value in dict.fromkeys(values))
            return ElasticError(
                "BFT-1421",
                f"The workers of this trainer have {what}: {found}.",
                "Build the same dataset and DataLoader everywhere; check that all nodes see the"
                " same files.",
            )
    return None
