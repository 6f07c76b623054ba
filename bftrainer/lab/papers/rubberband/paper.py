"""The evaluation in section 6."""

from __future__ import annotations

from bftrainer.lab.papers.paper import drawn_scenario, paper_of
from bftrainer.lab.papers.rubberband import figures, placement, profiles, residual, tables
from bftrainer.lab.papers.rubberband.setting import PRICE_H, Planner, Points, play

FULL = Points()
QUICK = Points(
    name="quick",
    shortened="3 deadlines instead of 6 (Fig. 10) and 8 (Fig. 12), 4 numbers of trials instead of "
    "6, 4 profiles instead of 8 (Fig. 12), 100 samples instead of 400, 100 runs of placements "
    "instead of 400.",
    samples=100,
    data_deadlines_min=(10, 15, 20),
    trials=(16, 32, 128, 512),
    init_deadlines_min=(90, 120, 160),
    flat_from=(11, 13, 16, 32),
    placements=100,
)
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
