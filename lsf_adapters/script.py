"""The job of a pilot: its name, and the script that becomes the agent. Pure.

One ``bsub`` may make several jobs: while mbatchd does not answer, bsub repeats its request every
10 s, and mbatchd carries out all of them later (measured on volclava 2.2; LSF 10.1 is assumed to do
the same). So every job of a pilot takes a folder beside its log before it becomes the agent. Only
one can make it; all others end at once.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path

from bftrainer.poll.batch_system import PilotRequest
from bftrainer.poll.pilot_script import fault_of

_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63})\.([0-9a-f]{8})")
_OWN_VARIABLES = ("LSB_", "LSF_", "BSUB_")  # of LSF; they would change what its commands do


def job_name(request: PilotRequest) -> str:
    """Return a name that no other pilot has, not even one of another daemon."""
    return f"{request.pilot_id}.{token_of(request)}"


def token_of(request: PilotRequest) -> str:
    """Return what tells our pilots from those of another daemon: where their logs are."""
    folder = request.log_path.parent
    has_own = folder.name == request.pilot_id  # as with the daemon
    return token_of_place(folder.parent if has_own else folder)


def token_of_place(directory: Path) -> str:
    """Return the token of all pilots of the daemon that keeps their folders there."""
    return hashlib.sha256(bytes(directory)).hexdigest()[:8]


def pilot_of(name: str, own: Collection[str] = ()) -> str:
    """Return the pilot's id of a job's name; "": it is no pilot's.

    If our tokens are known (``own``), a pilot of another daemon keeps the whole name: its number
    may be that of one of ours.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        return ""
    return found[1] if not own or found[2] in own else name


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
