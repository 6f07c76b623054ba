"""Runs side by side, each process with the checkout whose decision it judges.

Nothing here or in what it imports at once may import bftrainer: a worker first puts the checkout
on its path.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bftrainer.lab.site.arms import Arm, ArmOutcome, SharedStage, play


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One run to make."""

    name: str
    stage: SharedStage
    arm: Arm
    core: str = ""  # a checkout; "": the one these scripts are of
    cost: float = 1.0  # the dearest are made first


def run(tasks: Sequence[Task], n_processes: int) -> Iterator[tuple[Task, ArmOutcome]]:
    """Make all runs; yield each when it is done."""
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        futures: dict[Future[ArmOutcome], Task] = {}
        for core in dict.fromkeys(task.core for task in tasks):
            own = sorted((t for t in tasks if t.core == core), key=lambda t: -t.cost)
            pool = stack.enter_context(
                ProcessPoolExecutor(
                    n_processes, mp_context=context, initializer=use, initargs=(core,)
                )
            )
            futures |= {pool.submit(play, task.stage, task.arm): task for task in own}
        for done in as_completed(futures):
            yield futures[done], done.result()


def use(core: str) -> None:
    """Judge this checkout in this process.

    Raises:
        RuntimeError: another one was imported before.
    """
    if not core:
        return
    root = Path(core).resolve()
    sys.path.insert(0, str(root))
    import bftrainer  # noqa: PLC0415 - not before the path is set

    if not Path(bftrainer.__file__ or "").resolve().is_relative_to(root):
        raise RuntimeError(f"bftrainer was imported from {bftrainer.__file__}, not from {root}")
