"""The shell text that becomes a pilot's agent, whatever characters the request contains. Pure.

For batch systems that write a job's output only at its end, or whose options cannot hold every
variable. Called by adapters' ``launch_pilot``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from bftrainer.batch.batch_system import PilotRequest

_PILOT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


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
    words = (*request.agent_argv, str(request.log_path), *request.environment.values())
    if any("\0" in word for word in words):
        return "it contains a null character"
    if not has_lines and any("\n" in word for word in words):
        return "its command line, its log's path or a variable contains a line break"
    return ""
