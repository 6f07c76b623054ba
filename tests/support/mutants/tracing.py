"""Traces for one test after another, also in processes that start, or are forked, while it runs.

Imported by every interpreter of the copy of a tree whose tests are traced. coverage.py has started
by then, if it is to.
"""

from __future__ import annotations

import os
from pathlib import Path

import coverage

SHARED = os.environ.get("MUTANTS_CONTEXT", "")  # a file: the test that runs


def enter(test: str) -> None:
    """Trace for this test from now on; or for its file, or for none."""
    if SHARED:
        Path(SHARED).write_text(test)
        _follow()


def traced_for() -> str:
    """Return the test that runs, or nothing."""
    return Path(SHARED).read_text() if os.path.exists(SHARED) else ""  # noqa: PTH110 - it may be ""


def _follow() -> None:
    if SHARED and (traced := coverage.Coverage.current()):
        traced.switch_context(traced_for())


def _forked() -> None:
    _follow()
    os.register_at_fork(after_in_child=_forked)  # after that of coverage.py, which starts anew


_forked()
