"""What a worker's log says of a generation that failed with all its members alive."""

from __future__ import annotations

import pytest

from bftrainer.elastic.loop.membership import why_broken
from bftrainer.elastic.network.group import Broken


@pytest.mark.parametrize(
    ("worked_s", "waited_s", "said"),
    [
        (
            41.2,  # rank 0 evaluates alone; the others have given up after 30 s
            0.0,
            (
                "rank 0 was silent for 41 s between two updates, and members wait 30 s for each"
                " other: let all workers do what takes so long"
            ),
        ),
        (0.1, 29.8, "rank 0 waited 30 s for another worker, which was silent"),
        (0.1, 0.4, "rank 0: Connection closed by peer [127.0.0.1]:4711"),
    ],
)
def test_it_says_who_was_silent_and_for_how_long(
    worked_s: float, waited_s: float, said: str
) -> None:
    broken = Broken(reason="Connection closed by peer [127.0.0.1]:4711.")
    assert why_broken(broken, 0, worked_s, waited_s) == said
