"""Where the daemon listens for agents, remembered over its restarts.

The agents of an earlier daemon know one endpoint only; its port is in a file of the state
directory. A file that says nothing usable costs those agents, never the start.
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
    """Return the port of an endpoint; 0 when it is none."""
    found = _ENDPOINT.fullmatch(text)
    port = int(found[1]) if found else 0
    return port if port < 1 << 16 else 0


def remembered_port(file: Path) -> int:
    """Return the port to listen on again; 0, any, when none is remembered."""
    if not file.exists() and not file.is_symlink():
        return 0
    why = "it holds no endpoint"
    try:
        port = port_in(read_private(file, limit_bytes=512, is_secret=False))
    except BftError as problem:
        port, why = 0, problem.cause
    if not port:
        LOG.error("%s is not used, and another port is: %s; agents that run are lost", file, why)
    return port


def remember(file: Path, endpoint: str) -> None:
    """Write the endpoint down, whole or not at all."""
    try:
        write_whole(file, (endpoint.encode(),))
    except OSError as problem:
        LOG.warning("agents will not find the next daemon: %s is not written (%s)", file, problem)
