"""Makes runs side by side, the dearest first."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass

from bftrainer.lab.site.arms import Arm, ArmOutcome, SharedStage, play


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One run to make."""

    name: str
    stage: SharedStage
    arm: Arm
    cost: float = 1.0  # relative


def run(tasks: Sequence[Task], n_processes: int) -> Iterator[tuple[Task, ArmOutcome]]:
    """Make all runs; yield each when it is done."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(n_processes, mp_context=context) as pool:
        dearest = sorted(tasks, key=lambda task: -task.cost)
        futures = {pool.submit(play, task.stage, task.arm): task for task in dearest}
        for future in as_completed(futures):
            yield futures[future], future.result()
