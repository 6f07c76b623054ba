"""A file system that never answers: FUSE, mounted, with nobody behind it.

Only root can mount it; where it cannot be mounted, the test is skipped.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

_MNT_DETACH = 2


@contextlib.contextmanager
def hanging(directory: Path) -> Iterator[Path]:
    """Mount it; whoever looks into it waits until the block ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    directory.mkdir(exist_ok=True)
    try:
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as problem:
        pytest.skip(f"no FUSE here: {problem}")
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    target = os.fsencode(directory)
    try:
        if libc.mount(b"bft", target, b"fuse", 0, options.encode()) != 0:
            pytest.skip(f"FUSE cannot be mounted: {os.strerror(ctypes.get_errno())}")
        try:
            yield directory
        finally:
            libc.umount2(target, _MNT_DETACH)
    finally:
        os.close(device)  # who waits gets an error
