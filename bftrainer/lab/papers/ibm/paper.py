"""The evaluation in section IV."""

from __future__ import annotations

from bftrainer.lab.papers.ibm import figures
from bftrainer.lab.papers.ibm.replays import IbmSeeds, choose_scenario, play
from bftrainer.lab.papers.paper import paper_of

FULL = IbmSeeds()
QUICK = IbmSeeds(
    name="quick",
    shortened="2 seeds instead of 6 at 400 GPUs, 3 instead of 10 per row of the sensitivity and"
    " of the mechanism",
    table4=2,
    sensitivity=3,
    mechanism=3,
)
PAPER = paper_of(
    __package__,
    figures,
    full=FULL,
    quick=QUICK,
    choose_scenario=choose_scenario,
    play=play,
    cost=lambda run: (-run.gpus, not run.waits, -run.minutes),
    reads_trace=False,
)
