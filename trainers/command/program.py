"""One run of the user's program: its process, its output, its control file.

The program is in the keeper's process group, so that one signal to the group ends both and their
children. Called by ``keeper``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from bftrainer.batch import process

READ_BYTES = 1 << 16
MAX_LINE_BYTES = 4096  # longer lines are logged but not parsed


class ControlFile:
    """A file on this node that lists the requests made so far, one word per line.

    It is in memory and vanishes with the keeper, so nothing is left behind.
    """

    def __init__(self) -> None:
        self._fd = os.memfd_create("bft-control")

    @property
    def path(self) -> str:
        """Path under which any process of the user on this node can read it."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def clear(self) -> None:
        """Empty it for another run."""
        os.ftruncate(self._fd, 0)
        os.lseek(self._fd, 0, os.SEEK_SET)

    def write(self, word: str) -> None:
        """Add a request."""
        os.write(self._fd, f"{word}\n".encode())


class Program:
    """A program that runs, or has ended."""

    def __init__(
        self, argv: Sequence[str], *, cwd: Path, environment: Mapping[str, str], log: BinaryIO
    ) -> None:
        reader, writer = os.pipe()
        try:
            self._child = process.spawn(
                argv,
                env=environment,
                cwd=cwd,
                stdout=writer,
                stderr=subprocess.STDOUT,
                new_session=False,
            )
        except OSError:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        os.set_blocking(reader, False)
        self.pid = self._child.pid
        self.output_fd = reader
        self.pidfd = os.pidfd_open(self._child.pid)
        self.started_s = time.monotonic()
        self.is_silent = False  # its output is closed
        self._log = log
        self._rest = b""

    def signal(self, number: signal.Signals) -> None:
        """Signal the program itself, not its children."""
        self._child.send_signal(number)

    def kill(self) -> None:
        """SIGKILL the program itself; its children end with our process group."""
        self._child.kill()

    def read(self) -> list[str]:
        """Copy its new output to the log; return the complete lines."""
        lines: list[str] = []
        while not self.is_silent:
            try:
                chunk = os.read(self.output_fd, READ_BYTES)
            except BlockingIOError:
                break
            self.is_silent = not chunk
            self._log.write(chunk)
            *complete, rest = (self._rest + chunk).split(b"\n")
            self._rest = rest if len(rest) <= MAX_LINE_BYTES else b""
            lines += [line.decode(errors="replace") for line in complete]
        return lines

    def end(self) -> int:
        """Reap it after ``pidfd`` became readable; return its status, ``-N`` for signal N."""
        status = self._child.wait()
        os.close(self.pidfd)
        os.close(self.output_fd)
        return status
