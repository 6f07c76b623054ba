"""The evaluation in section 7."""

from __future__ import annotations

from bftrainer.lab.papers.elasticity import figures, simulator
from bftrainer.lab.papers.elasticity.replays import Extents, Slowed, play
from bftrainer.lab.papers.paper import drawn_scenario, paper_of

FULL = Extents()
QUICK = Extents(
    name="quick",
    shortened="10 seeds instead of 30 (Figs. 9 and 10: 2 instead of 10; noise: 40 instead of 400).",
    jobs=10,
    stragglers=2,
    noise=40,
)
PAPER = paper_of(
    __package__,
    figures,
    full=FULL,
    quick=QUICK,
    choose_scenario=lambda *_: drawn_scenario(__package__, words=vars(simulator)),
    play=play,
    cost=lambda run: (not isinstance(run, Slowed), not getattr(run, "replaces", False)),
    reads_trace=False,
)
