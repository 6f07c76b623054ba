"""How much is played and learnt: in full, and shortened. No seed was used to choose a number."""

from __future__ import annotations

from dataclasses import dataclass

from bftrainer.lab.papers.paper import Extent

FIRST_LEARNER, FIRST_TRACE = 10, 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts(Extent):
    """Numbers of traces, learners and iterations."""

    traces: int  # a value is the mean of
    learners: int
    iterations: int
    published: int  # learners of the paper
    updates: int
    all_reduce: int  # iterations

    def test(self) -> range:
        """Seeds of the traces that are shown."""
        return range(FIRST_TRACE, FIRST_TRACE + self.traces)

    def seeds(self, number: int) -> range:
        """Seeds of learners."""
        return range(FIRST_LEARNER, FIRST_LEARNER + number)


FULL = Amounts(
    name="full",
    traces=10,
    learners=5,
    iterations=400,
    published=3,
    updates=1200,
    all_reduce=50,
)
QUICK = Amounts(
    name="quick",
    shortened="2 learners of 100 iterations instead of 5 of 400; 1 of the paper's instead of 3.",
    traces=10,
    learners=2,
    iterations=100,
    published=1,
    updates=600,
    all_reduce=20,
)
