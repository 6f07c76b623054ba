"""The evaluation in section 6."""

from __future__ import annotations

from pathlib import Path

from bftrainer.lab.papers.dl2 import figures
from bftrainer.lab.papers.dl2.replays import Imitated, Improved, play
from bftrainer.lab.papers.dl2.setting import FULL, QUICK, RECORDS, TESTBED, read_speeds
from bftrainer.lab.papers.paper import Scenario, drawn_scenario, paper_of


def choose_scenario(_: object, folder: Path | None, __: object) -> Scenario:
    """Return the clusters, and where their speeds come from.

    Raises:
        UsageError: BFT-4171, the file of speeds is not one.
    """
    _, is_measured = read_speeds(folder, TESTBED)
    speeds = (
        "Speeds are those that the authors measured."
        if is_measured
        else "Speeds are synthetic, so no published value can be expected: the measured ones "
        f"carry no licence, and BFTRAINER_DATA has no {RECORDS}."
    )
    return drawn_scenario(
        __package__,
        remarks=[speeds],
        settings={"measured_speeds": is_measured},
        is_papers=is_measured,
        content=folder,
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
