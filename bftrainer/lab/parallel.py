"""Plays independent tasks in several processes, each with one thread.

OpenBLAS takes a thread per processor and lets them spin. With matrices of a hundred rows, or with
several processes, that takes several times as long as one thread does.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import get_context, parent_process
from typing import TypeVar

NAME = "OPENBLAS_NUM_THREADS"


def one_thread() -> AbstractContextManager[None]:
    """Give one thread to a numpy that is first imported, and to processes that start, in here."""
    return _set(NAME)


@contextmanager
def _set(name: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


Task = TypeVar("Task", bound=Hashable)
Result = TypeVar("Result")


def play_each(
    play: Callable[[Task], Result],
    tasks: Iterable[Task],
    *,
    processes: int,
    on_progress: Callable[[float], None] = lambda _: None,
) -> dict[Task, Result]:
    """Return the result of each task, played once.

    ``play`` and tasks are pickled if there are several of both. Tasks begin in their order: put
    the longest first, so that none is left alone at the end. The processes end with this one,
    however it ends.
    """
    todo = list(dict.fromkeys(tasks))
    results: dict[Task, Result] = {}
    if min(processes, len(todo)) <= 1:
        for task in todo:
            results[task] = play(task)
            on_progress(len(results) / len(todo))
        return results
    # Else they import what lies in the working directory: they begin with ``python -c``.
    with one_thread(), _set("PYTHONSAFEPATH"), _pool(processes) as pool:
        futures = {pool.submit(play, task): task for task in todo}
        try:
            for future in as_completed(futures):
                results[futures[future]] = future.result()
                on_progress(len(results) / len(todo))
        except BaseException:
            pool.shutdown(cancel_futures=True)  # nobody needs the others
            raise
    return results


def _pool(processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(
        max_workers=processes, mp_context=get_context("spawn"), initializer=end_with_parent
    )


def end_with_parent() -> None:
    """Let this process of ``multiprocessing`` end when its parent does, also by SIGKILL."""
    threading.Thread(target=_await_parent, name="parent", daemon=True).start()


def _await_parent() -> None:
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)
