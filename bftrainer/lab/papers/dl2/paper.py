"""The evaluation in section 6."""

from __future__ import annotations

from bftrainer.lab.papers.dl2 import figures
from bftrainer.lab.papers.dl2.replays import Imitated, Improved, choose_scenario, play
from bftrainer.lab.papers.dl2.setting import Amounts
from bftrainer.lab.papers.paper import paper_of

FULL = Amounts()
QUICK = Amounts(
    name="quick",
    shortened="2 learners of 100 iterations instead of 5 of 400; 1 of the paper's instead of 3, "
    "1 on modelled speeds instead of 2.",
    learners=2,
    iterations=100,
    published=1,
    updates=600,
    all_reduce=20,
    offline=1,
)
PAPER = paper_of(
    __package__,
    figures,
    full=FULL,
    quick=QUICK,
    choose_scenario=choose_scenario,
    play=play,
    cost=lambda run: (not isinstance(run, Improved), not isinstance(run, Imitated)),
    reads_trace=False,
)
