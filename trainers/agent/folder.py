"""The folders of a user's pilots, where only he may write (docs/adr/0030-many-users.md).

Nobody else removes anything there. So an agent removes its key as soon as it is read, its
configuration when it leaves, and what earlier pilots of its user left. Called by the agent.
"""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from pathlib import Path

KEPT = 50  # folders of pilots that have ended, for their logs
LONGEST_S = 31 * 86_400.0  # no pilot lives as long


def tidy(folder: Path) -> None:
    """Remove our key, and old folders beside ours (blocking)."""
    forget(folder / "agent.key")
    ended: list[tuple[float, Path]] = []
    now_s = time.time()
    with suppress(OSError):
        for other in folder.parent.iterdir():
            changed_s = other.lstat().st_mtime
            if now_s - changed_s > LONGEST_S or not (other / "agent.json").exists():
                ended.append((changed_s, other))
    for _, other in sorted(ended, reverse=True)[KEPT:]:
        shutil.rmtree(other, ignore_errors=True)


def forget(file: Path) -> None:
    """Remove a file that may be gone."""
    with suppress(OSError):
        file.unlink(missing_ok=True)
