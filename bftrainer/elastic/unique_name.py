"""A name for files of this process in directories that several hosts share.

A process id is unique on its host only, and hosts that boot alike have the same ones. Standard
library only.
"""

from __future__ import annotations

import os


def own_name() -> str:
    """Return the host's name and the process id, "n1-4711"; unique among running processes."""
    return f"{os.uname().nodename.replace('/', '_')}-{os.getpid()}"
