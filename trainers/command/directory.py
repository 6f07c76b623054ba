"""The checkpoint directory of a program, fenced against older generations.

It has a new name in every generation: the new one renames ``generation-6`` to ``generation-7``.
That is atomic and copies nothing, and a process of generation 6 that is still alive (say, on a
node that was cut off) finds its directory gone. ``latest`` is a link to the present name, for
users. Called by ``keeper`` on the first node; the others wait for the new name to appear.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

_NAME = re.compile(r"generation-(\d{1,12})\Z", re.ASCII)
RUN_FILE = "run"  # which submission the numbers belong to
LINK = "latest"


class FencedError(Exception):
    """A later generation of the same trainer has the checkpoints."""


def directory_of(base: Path, generation: int) -> Path:
    """Return where the checkpoints of this generation are."""
    return base / f"generation-{generation}"


def take(base: Path, *, run: str, generation: int) -> Path:
    """Rename the newest checkpoint directory for this generation.

    Args:
        base: the trainer's checkpoint directory.
        run: which submission; a new one counts generations from 1 again.
        generation: the new one.

    Raises:
        FencedError: the same run has a later generation already.
        OSError: the file system refuses.
    """
    numbers = _numbers(base)
    newest = max(numbers, default=0)
    is_ours = _run_of(base) == run
    if is_ours and newest > generation:
        raise FencedError(f"generation {newest} has the checkpoints, this is {generation}")
    target = directory_of(base, generation)
    if newest and newest != generation:
        if target.exists():  # of an aborted earlier run: not used any more
            target.rename(base / f"{target.name}.stale-{time.time_ns()}")
        directory_of(base, newest).rename(target)
    else:
        target.mkdir(exist_ok=True)
    if not is_ours:
        (base / RUN_FILE).write_text(run, encoding="utf-8")
    fresh = base / f".{LINK}-{generation}"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target.name)
    fresh.replace(base / LINK)
    return target


def _numbers(base: Path) -> list[int]:
    return [int(m[1]) for path in base.iterdir() if (m := _NAME.match(path.name))]


def _run_of(base: Path) -> str:
    try:
        return (base / RUN_FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
