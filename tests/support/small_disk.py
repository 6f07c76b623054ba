"""A small file system that a test can fill; only root can mount it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.batch import process


@contextlib.contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """Mount a file system of this size (tmpfs(5)) there until the block ends."""
    place.mkdir(mode=0o700)
    argv = ("mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "bft-test", str(place))
    mounted = process.run(argv, timeout_s=30)
    if not mounted.is_ok:
        pytest.skip(f"a small file system cannot be mounted: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        gone = process.run(("umount", "--lazy", str(place)), timeout_s=30)
        assert gone.is_ok, gone.stderr


def fill(disk: Path) -> Path:
    """Leave no byte free; return the file to remove."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return ballast
