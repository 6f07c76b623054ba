"""The daemon's endpoint for agents, kept across restarts in a file of the state directory.

Running agents know this endpoint only. If the file is unusable, they are lost, but the daemon
starts.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

from bftrainer.elastic.fence import write_whole
from bftrainer.errors import BftError
from bftrainer.wire.private import read_private

LOG = logging.getLogger("bftrainer.wire")
_ENDPOINT = re.compile(rb"tcp://[!-~]{1,300}:([0-9]{1,5})\s*")


def port_in(text: bytes) -> int:
    """Return the port of an endpoint; 0 if it is not one."""
    found = _ENDPOINT.fullmatch(text)
    port = int(found[1]) if found else 0
    return port if port < 1 << 16 else 0


def endpoint_in(file: Path) -> str:
    """Return the endpoint that the file names; "": it names none."""
    try:
        text = read_private(file, limit_bytes=512, is_secret=False)
    except BftError:
        return ""
    return text.decode("ascii").strip() if port_in(text) else ""


def remembered_port(file: Path) -> int:
    """Return the port to listen on; 0 (any) if none is stored."""
    if not file.exists() and not file.is_symlink():
        return 0
    why = "it holds no endpoint"
    try:
        port = port_in(read_private(file, limit_bytes=512, is_secret=False))
    except BftError as problem:
        port, why = 0, problem.cause
    if not port:
        LOG.error("%s is unusable (%s): using another port; running agents are lost", file, why)
    return port


def remember(file: Path, endpoint: str) -> None:
    """Store the endpoint, atomically."""
    try:
        write_whole(file, (endpoint.encode(),))
    except OSError as problem:
        LOG.warning("agents will not find the next daemon: cannot write %s (%s)", file, problem)
