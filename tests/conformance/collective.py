"""What every ``Collective`` must do: one test class, subclassed by each of them.

A subclass gives the fixture ``ends``: two members' ends of one generation, each with the
device on which its tensors have to lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from bftrainer.elastic.network.collective import LEFT_BEHIND, Broken, Collective, settle
from tests.support.waiting import never, wait_for


@dataclass(frozen=True, kw_only=True)
class End:
    """One member's end."""

    collective: Collective
    device: torch.device

    def tensor(self, *values: float) -> torch.Tensor:
        """Return new values where this member computes."""
        return torch.tensor(values, device=self.device)


class CollectiveConformance:
    """The tests themselves; subclasses start with ``Test``."""

    def test_it_adds_up_in_place(self, ends: Sequence[End]) -> None:
        tensors = [end.tensor(1.0 + rank, 10.0) for rank, end in enumerate(ends)]
        works = [e.collective.all_reduce(t) for e, t in zip(ends, tensors, strict=True)]
        assert [settle(work, never) for work in works] == [None, None]
        assert all(work.is_completed() for work in works)
        assert [t.tolist() for t in tensors] == [[3.0, 20.0]] * 2

    def test_it_brings_one_members_tensor_to_all(self, ends: Sequence[End]) -> None:
        for root in range(2):
            tensors = [end.tensor(float(rank)) for rank, end in enumerate(ends)]
            works = [e.collective.broadcast(t, root) for e, t in zip(ends, tensors, strict=True)]
            assert [settle(work, never) for work in works] == [None, None]
            assert [t.tolist() for t in tensors] == [[float(root)]] * 2

    def test_several_are_under_way_at_a_time(self, ends: Sequence[End]) -> None:
        tensors = [[end.tensor(float(i)) for i in range(8)] for end in ends]
        works = [
            [end.collective.all_reduce(t) for t in own]
            for end, own in zip(ends, tensors, strict=True)
        ]
        for own in works:  # one member after the other, so they cannot wait for each other
            assert [settle(work, never) for work in own] == [None] * 8
        assert [[t.item() for t in own] for own in tensors] == [[2.0 * i for i in range(8)]] * 2

    def test_one_without_all_members_is_left_when_told_to(self, ends: Sequence[End]) -> None:
        work = ends[0].collective.all_reduce(ends[0].tensor(1.0))
        asked: list[bool] = []

        def abandoned() -> bool:
            asked.append(True)
            return len(asked) == 3

        assert settle(work, abandoned) == Broken(reason=LEFT_BEHIND)
        assert len(asked) == 3
        assert not work.is_completed()

    def test_what_was_left_lets_go_when_it_is_closed(self, ends: Sequence[End]) -> None:
        work = ends[0].collective.all_reduce(ends[0].tensor(1.0))
        for end in reversed(ends):
            end.collective.close()
        wait_for(work.is_completed, what="nothing writes into the tensor")
        del work  # holds what it belongs to
        assert all(end.collective.is_gone(60.0) for end in ends)
