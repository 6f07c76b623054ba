"""Runs another script, which enters a generation exactly at a step, and waits for it there.

Arguments: the step, the generation, the script and its own arguments.
"""

from __future__ import annotations

import runpy
import sys
import time
from pathlib import Path

from bftrainer.elastic.loop.membership import Membership
from bftrainer.ground.protocol import Commit

step, generation = int(sys.argv[1]), int(sys.argv[2])
sys.argv = sys.argv[3:]
sys.path[0] = str(Path(sys.argv[0]).parent)
real = Membership.switch_due


def switch_due(membership: Membership, *, may_abandon: bool = True) -> Commit | None:
    """Switch no earlier and no later than at the boundary after ``step`` steps."""
    if membership.generation < generation:
        if membership.counters.step < step:
            return None
        while not membership.wants_switch():
            time.sleep(0.001)
    return real(membership, may_abandon=may_abandon)


Membership.switch_due = switch_due  # type: ignore[assignment, method-assign]
runpy.run_path(sys.argv[0], run_name="__main__")
