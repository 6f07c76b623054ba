"""The evaluation in section 6."""

from __future__ import annotations

from bftrainer.lab.papers.paper import drawn_scenario, paper_of
from bftrainer.lab.papers.rubberband import figures, placement, profiles, residual, tables
from bftrainer.lab.papers.rubberband.setting import FULL, PRICE_H, QUICK, Planner, play

PAPER = paper_of(
    __package__,
    figures,
    placement,
    profiles,
    residual,
    tables,
    full=FULL,
    quick=QUICK,
    choose_scenario=lambda *_: drawn_scenario(__package__, words={"PRICE_H": PRICE_H}),
    play=play,
    cost=lambda run: (-run.experiment[0].trials, run.planner is not Planner.EXACT),
    reads_trace=False,
)
