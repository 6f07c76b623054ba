"""The evaluation in section 5."""

from __future__ import annotations

from bftrainer.lab.papers.bftrainer import diverse, forward_time
from bftrainer.lab.papers.bftrainer.replays import play
from bftrainer.lab.papers.bftrainer.scenario import FULL, QUICK, choose_scenario
from bftrainer.lab.papers.paper import paper_of

PAPER = paper_of(
    __package__,
    diverse,
    forward_time,
    full=FULL,
    quick=QUICK,
    choose_scenario=choose_scenario,
    play=play,
    cost=lambda run: (-(run.hours or 1e9), -run.p_jmax, run),  # many trainers take longest
)
