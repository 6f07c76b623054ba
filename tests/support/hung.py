"""A file system that answers nothing, as a server of homes that is gone: not even SIGKILL helps."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

_INIT = 26  # linux/fuse.h, as are the two formats
_HEADER = struct.Struct("<IiQ")  # length, error, unique
_VERSION = struct.pack("<4I2H2I2H7I", 7, 31, 65536, 0, 16, 12, 65536, 1, 0, 0, *[0] * 7)
_NOSUID_NODEV, _FORCE_DETACH = 2 | 4, 1 | 2
_LIBC = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def hung(place: Path) -> Iterator[None]:
    """Mount it over a directory."""
    try:
        fd = os.open("/dev/fuse", os.O_RDWR)
    except OSError as problem:
        pytest.skip(f"/dev/fuse: {problem}")
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if _LIBC.mount(b"hung", bytes(place), b"fuse", _NOSUID_NODEV, options) != 0:
        os.close(fd)
        pytest.skip(f"no FUSE: {os.strerror(ctypes.get_errno())}")
    server = threading.Thread(target=_serve, args=(fd,))
    server.start()
    try:
        yield
    finally:
        _LIBC.umount2(bytes(place), _FORCE_DETACH)
        server.join()
        os.close(fd)


def _serve(fd: int) -> None:
    """Take every request, answer the first alone."""
    with contextlib.suppress(OSError):  # it is unmounted
        while raw := os.read(fd, 1 << 17):
            _, kind, unique = struct.unpack_from("<IIQ", raw)
            if kind == _INIT:
                os.write(fd, _HEADER.pack(_HEADER.size + len(_VERSION), 0, unique) + _VERSION)
