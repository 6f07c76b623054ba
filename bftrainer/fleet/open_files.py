"""The number of files that this process may open: one for each connection of others."""

from __future__ import annotations

import resource
from typing import Final

WANTED: Final = 16384  # one connection per node, or per stranger in a handshake's time


def raise_limit() -> None:
    """Raise the soft limit, as far as the hard one and the use of it go."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
