"""Keeps linear algebra to one thread.

OpenBLAS takes a thread per processor and lets them spin. With matrices of a hundred rows, or with
several processes, that takes several times as long as one thread does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

NAME = "OPENBLAS_NUM_THREADS"


@contextmanager
def one_thread() -> Iterator[None]:
    """Give one thread to a numpy that is first imported, and to processes that start, in here."""
    before = os.environ.get(NAME)
    os.environ[NAME] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[NAME]
        else:
            os.environ[NAME] = before
