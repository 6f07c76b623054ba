"""The evaluation in section 5."""

from __future__ import annotations

from bftrainer.lab.papers.bftrainer import diverse, forward_time, two_weeks
from bftrainer.lab.papers.bftrainer.machine import MachineCount, MachineRecord, count_file
from bftrainer.lab.papers.bftrainer.replays import PaperReplay, Record, play
from bftrainer.lab.papers.bftrainer.scenario import FULL, QUICK, WeekOfNodes, choose_scenario
from bftrainer.lab.papers.paper import paper_of


def play_any(week: WeekOfNodes, run: PaperReplay | MachineCount) -> Record | MachineRecord | None:
    """Play a replay, or count; None where there are no two weeks and it needs them."""
    return count_file(week.two_weeks_file) if isinstance(run, MachineCount) else play(week, run)


def _cost(run: PaperReplay | MachineCount) -> tuple[object, ...]:
    if isinstance(run, MachineCount):
        return (1.0,)  # after everything else
    hours = run.hours or (1e9 if run.is_to_the_end else 1e6)
    return (-hours, -run.p_jmax, run)  # many trainers take longest


PAPER = paper_of(
    __package__,
    diverse,
    forward_time,
    two_weeks,
    full=FULL,
    quick=QUICK,
    choose_scenario=choose_scenario,
    play=play_any,
    cost=_cost,
)
