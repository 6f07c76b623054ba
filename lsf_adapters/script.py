"""The job of a pilot: the script that becomes the agent. Pure.

One ``bsub`` may make several jobs: while mbatchd does not answer, bsub repeats its request every
10 s, and mbatchd carries out all of them later (measured on volclava 2.2; LSF 10.1 is assumed to do
the same). So every job of a pilot takes a folder beside its log before it becomes the agent. Only
one can make it; all others end at once.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from bftrainer.batch.batch_system import PilotRequest
from bftrainer.batch.pilot_script import fault_of

_OWN_VARIABLES = ("LSB_", "LSF_", "BSUB_")  # of LSF; they would change what its commands do


def taken_by(log_path: Path) -> Path:
    """Return the folder that the one job of a pilot makes."""
    return log_path.with_name(f"{log_path.name}.started")


def batch_script(request: PilotRequest, agent_argv: Sequence[str]) -> str:
    """Return the script; LSF writes a job's output only at its end, so it does so itself."""
    log, taken = shlex.quote(str(request.log_path)), shlex.quote(str(taken_by(request.log_path)))
    return f"""\
#!/bin/sh
exec </dev/null >>{log} 2>&1
if ! mkdir {taken} 2>/dev/null; then
  [ -d {taken} ] || {{ echo "bftrainer: {taken} cannot be made."; exit 1; }}
  exit 0
fi
cd /
exec {shlex.join(agent_argv)}
"""


def problem_of(request: PilotRequest) -> str:
    """Say which part of a request bsub could not take verbatim; "": all is well.

    A line that begins with #BSUB would be an option, even inside of quotes.
    """
    owned = [key for key in request.environment if key.startswith(_OWN_VARIABLES)]
    return fault_of(request, has_lines=False) or (f"{owned[0]} is LSF's own" if owned else "")
