"""The evaluation in section 5."""

from __future__ import annotations

from bftrainer.lab.papers.bftrainer import diverse, forward_time, two_weeks
from bftrainer.lab.papers.bftrainer.replays import cost, play_any
from bftrainer.lab.papers.bftrainer.scenario import Sweeps, choose_scenario
from bftrainer.lab.papers.paper import paper_of

FULL = Sweeps(is_to_the_end=True)
QUICK = Sweeps(
    name="quick",
    hours=72.0,
    t_fwd_s=(10, 60, 120, 300, 1200),
    diverse_t_fwd_s=(10, 120, 300),
    p_jmax=(5, 10, 35),
    cost_factors=(1, 2, 5, 10),
    shortened="72 h instead of 168 h; T_fwd 10, 60, 120, 300 and "
    "1200 s; P_jmax 5, 10 and 35; rescale costs x1, x2, x5 and x10.",
)
PAPER = paper_of(
    __package__,
    diverse,
    forward_time,
    two_weeks,
    full=FULL,
    quick=QUICK,
    choose_scenario=choose_scenario,
    play=play_any,
    cost=cost,
)
