"""A pilot's job: its name and its script. Pure.

Several daemons of one user may share a partition or queue, and each numbers its pilots p000001 and
so on. A token in the name tells them apart: it follows from the path of the daemon's folders of
pilots.

The script is for batch systems that write a job's output only at its end, or whose options cannot
hold every variable. Called by adapters' ``launch_pilot``.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path

from bftrainer.batch.batch_system import PilotRequest

_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63})\.([0-9a-f]{8})")
_PILOT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def job_name(request: PilotRequest, token: str = "") -> str:
    """Return a name that no other pilot has, not even one of another daemon.

    ``token``: the daemon's, where that is known; "": the one of the pilot's log.
    """
    return f"{request.pilot_id}.{token or token_of(request)}"


def token_of(request: PilotRequest) -> str:
    """Return what tells our pilots from those of another daemon: where their logs are."""
    folder = request.log_path.parent
    if folder.name == request.pilot_id:  # each has its own, as with the daemon
        folder = folder.parent
    return token_of_place(folder)


def token_of_place(directory: Path) -> str:
    """Return the token of all pilots of the daemon that keeps their folders there."""
    return hashlib.sha256(bytes(directory)).hexdigest()[:8]


def pilot_of(name: str, own: Collection[str] = ()) -> str:
    """Return the pilot's id of a job's name; "": it is no pilot's.

    If our tokens are known (``own``), a pilot of another daemon keeps the whole name: its number
    may be that of one of ours.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return ""
    if own and match[2] not in own:
        return name
    return match[1]


def script_of(request: PilotRequest, agent_argv: Sequence[str] | None = None) -> str:
    """Return the text: it appends its output to the log, sets the environment, becomes the agent.

    Args:
        request: one in which ``fault_of`` finds no fault.
        agent_argv: the command, if it differs from the request's (a preamble).
    """
    variables = (f"export {key}={shlex.quote(text)}" for key, text in request.environment.items())
    return "\n".join(
        (
            f"exec </dev/null >>{shlex.quote(str(request.log_path))} 2>&1",
            *variables,
            f"exec {shlex.join(agent_argv or request.agent_argv)}\n",
        )
    )


def fault_of(request: PilotRequest, *, has_lines: bool = True) -> str:
    """Say which part of a request cannot be passed on verbatim; "": none.

    Args:
        request: any.
        has_lines: whether the batch system takes words with line breaks.
    """
    if not _PILOT_ID.fullmatch(request.pilot_id):
        return "its id is not made of letters, digits, '.', '_' and '-'"
    if wrong := [key for key in request.environment if not _VARIABLE.fullmatch(key)]:
        return f"{wrong[0]!r} is not the name of a variable"
    text = "".join((*request.agent_argv, str(request.log_path), *request.environment.values()))
    if "\0" in text:
        return "it contains a null character"
    if not has_lines and "\n" in text:
        return "its command line, its log's path or a variable contains a line break"
    return ""
