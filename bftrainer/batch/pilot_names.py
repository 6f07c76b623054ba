"""The names of pilots' jobs: the pilot's id, and a token of its daemon. Pure.

Several daemons of one user may share a partition or queue, and each numbers its pilots p000001 and
so on. The token says whose they are: it follows from where the daemon keeps the folders of its
pilots.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from pathlib import Path

from bftrainer.batch.batch_system import PilotRequest

_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63})\.([0-9a-f]{8})")


def job_name(request: PilotRequest, token: str = "") -> str:
    """Return a name that no other pilot has, not even one of another daemon.

    ``token``: the daemon's, where that is known; "": the one of the pilot's log.
    """
    return f"{request.pilot_id}.{token or token_of(request)}"


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
