"""The daemon's endpoints for agents, kept across restarts in two files of the state directory.

``endpoint`` has the first, whose port the next daemon uses, too: running agents know these only. If
it is unusable, they are lost, but the daemon starts. If there are several, ``endpoints`` has all,
one a line, for agents that look for a daemon that has moved to another host; those of releases
before read the first only.
"""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from pathlib import Path

from bftrainer.elastic.fence import write_whole
from bftrainer.elastic.ports import ports_of
from bftrainer.fleet.wire.private import read_private
from bftrainer.model.errors import BftError

LOG = logging.getLogger("bftrainer.wire")
_MOST_BYTES = 8192
_ENDPOINT = re.compile(rb"tcp://[!-~]{1,300}:([0-9]{1,5})\s*")


def _all_beside(file: Path) -> Path:
    return file.with_name(f"{file.name}s")


def port_in(text: bytes) -> int:
    """Return the port of an endpoint; 0 if it is not one."""
    found = _ENDPOINT.fullmatch(text)
    port = int(found[1]) if found else 0
    return port if port < 1 << 16 else 0


def endpoints_in(file: Path) -> tuple[str, ...]:
    """Return the endpoints that the file, and the one of all beside it, name."""
    lines: list[bytes] = []
    for place in (file, _all_beside(file)):
        with suppress(BftError):
            lines += read_private(place, limit_bytes=_MOST_BYTES, is_secret=False).split(b"\n")
    return tuple(dict.fromkeys(line.decode("ascii").strip() for line in lines if port_in(line)))


def remembered_port(file: Path, ports: str = "") -> int:
    """Return the port to listen on; 0 (any) if none is stored, or none of ``ports``."""
    if not file.exists() and not file.is_symlink():
        return 0
    why = "it holds no endpoint"
    try:
        port = port_in(read_private(file, limit_bytes=512, is_secret=False))
    except BftError as problem:
        port, why = 0, problem.cause
    if port and ports and port not in ports_of(ports):
        port, why = 0, f"its port {port} is not in {ports}"
    if not port:
        LOG.error("%s is unusable (%s): using another port; running agents are lost", file, why)
    return port


def remember(file: Path, *endpoints: str) -> None:
    """Store the endpoints, atomically."""
    try:
        write_whole(file, (endpoints[0].encode(),))
        if len(endpoints) > 1:
            write_whole(_all_beside(file), ("\n".join(endpoints).encode(),))
        else:
            _all_beside(file).unlink(missing_ok=True)
    except OSError as problem:
        LOG.warning("agents will not find the next daemon: cannot write %s (%s)", file, problem)
