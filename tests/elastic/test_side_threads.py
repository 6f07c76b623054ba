"""The end of an interpreter in which a thread still waits inside native code."""

from __future__ import annotations

import sys

import pytest

from bftrainer.batch import process

# ``sys`` is taken down last, when the interpreter no longer waits for its threads.
ENDS = """\
import datetime, sys, time
import torch.distributed as dist
from bftrainer.elastic.network import collective
from bftrainer.elastic.process import side_threads

class Last:
    def __init__(self):
        self.store = dist.HashStore()

    def __del__(self):
        {taken_down}

class Control:
    def notify(self):
        pass

sys.last_to_go = Last()
side_threads.LAST_WAIT_S = {limit_s}
wait = lambda store: store.wait(["key"], datetime.timedelta(seconds={wait_s}))
collective.AbandonableCall(Control(), lambda store=sys.last_to_go.store: wait(store))
"""
# The thread is woken while Python is taken down, and has the time to come back to it.
WAKES = "self.store.set('key', '1'); time.sleep(3)"
LONG_S = 100_000.0


def ended(*, wait_s: float, limit_s: float, taken_down: str) -> process.Completed:
    text = ENDS.format(wait_s=wait_s, limit_s=limit_s, taken_down=taken_down)
    return process.run([sys.executable, "-c", text], timeout_s=120)


def test_a_wait_that_is_abandoned_does_not_abort_the_end_of_the_script() -> None:
    script = ended(wait_s=0.5, limit_s=60.0, taken_down=WAKES)
    assert script.returncode == 0, script.stderr


@pytest.mark.long
def test_a_wait_that_hangs_does_not_hold_up_the_end() -> None:
    script = ended(wait_s=LONG_S, limit_s=0.1, taken_down="pass")
    assert script.returncode == 0, script.stderr


@pytest.mark.long
def test_without_the_wait_it_would_abort() -> None:
    script = ended(wait_s=LONG_S, limit_s=0.0, taken_down=WAKES)
    assert script.returncode != 0 or sys.version_info >= (3, 14)
