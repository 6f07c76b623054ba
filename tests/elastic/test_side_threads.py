"""The end of an interpreter in which a thread still waits inside native code."""

from __future__ import annotations

import sys

import pytest

from bftrainer.batch import process

# The wait ends while the interpreter is taken down: ``Slow`` holds that up.
ENDS = """\
import datetime, sys, time
import torch.distributed as dist
from bftrainer.elastic import collective, side_threads

class Slow:
    def __del__(self):
        time.sleep({teardown_s})
        sys.stderr.write("taken down\\n")

class Control:
    def notify(self):
        pass

slow, store = Slow(), dist.HashStore()
side_threads.await_ends.__defaults__ = ({limit_s},)
wait = lambda: store.wait(["never"], datetime.timedelta(seconds={wait_s}))
collective.AbandonableCall(Control(), wait)
"""


def ended(**times_s: float) -> process.Completed:
    text = ENDS.format(**times_s)
    return process.run([sys.executable, "-c", text], timeout_s=120)


def test_a_wait_that_is_abandoned_does_not_abort_the_end_of_the_script() -> None:
    script = ended(wait_s=0.5, limit_s=60.0, teardown_s=1.5)
    assert script.returncode == 0, script.stderr
    assert script.stderr == "taken down\n"


@pytest.mark.long
def test_a_wait_that_hangs_does_not_hold_up_the_end() -> None:
    script = ended(wait_s=100_000.0, limit_s=0.1, teardown_s=0.0)
    assert script.returncode == 0, script.stderr


@pytest.mark.long
def test_without_the_wait_it_would_abort() -> None:
    script = ended(wait_s=0.5, limit_s=0.0, teardown_s=1.5)
    assert script.returncode != 0 or sys.version_info >= (3, 14)
