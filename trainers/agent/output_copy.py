"""Copies of workers' logs in the file that their user named (``submit --output``).

Whole lines are copied while a worker writes, and the rest when it has ended: all workers of a
trainer append to one file, as tasks of a batch job do. The file is opened with the rights of the
agent, which are the user's, and is never a link. Threads copy, because the user's file system may
hang. Called by ``trainers.agent.workers``.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import Final

from bftrainer.ground.output_place import OUTPUT, output_path
from bftrainer.ground.protocol import WorkerConfig
from bftrainer.ground.regular_file import open_file, open_log, why

LOOK_S: Final = 0.5
LAST_S: Final = 2.0  # the agent waits so long for the last lines when it ends
MOST_BYTES: Final = 4 << 30  # of the file
_CHUNK_BYTES: Final = 1 << 20
_LONGEST_BYTES: Final = 1 << 20  # of a line that is kept whole
_APPEND: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND


def output_of(config: WorkerConfig) -> str:
    """Return the file that a worker's log is copied to; "": none."""
    pattern = dict(config.environment).get(OUTPUT, "")
    return output_path(pattern, config.trainer_id)


class OutputCopies:
    """The copies of the workers on this node."""

    def __init__(self, *, look_s: float = LOOK_S, most_bytes: int = MOST_BYTES) -> None:
        self._look_s, self._most_bytes = look_s, most_bytes
        self._copies: dict[str, _Copy] = {}
        self._ending: list[_Copy] = []

    def begin(self, name: str, log_path: str, output: str) -> None:
        """Copy the log of a worker to a file from now on; "": nothing is copied."""
        if output and log_path:
            copy = _Copy(log_path, output, look_s=self._look_s, most_bytes=self._most_bytes)
            self._copies[name] = copy
            copy.start()

    def end(self, name: str) -> None:
        """Copy what is left of the log of a worker that has ended; returns at once."""
        copy = self._copies.pop(name, None)
        self._ending = [thread for thread in self._ending if thread.is_alive()]
        if copy is not None:
            copy.has_ended.set()
            self._ending.append(copy)

    def close(self, limit_s: float = LAST_S) -> None:
        """End all copies, and wait for them within the limit (blocking)."""
        for name in list(self._copies):
            self.end(name)
        for copy in self._ending:
            copy.join(limit_s)


class _Copy(threading.Thread):
    """Copies one log."""

    def __init__(self, log_path: str, output: str, *, look_s: float, most_bytes: int) -> None:
        super().__init__(name=f"output of {os.path.basename(log_path)}", daemon=True)  # noqa: PTH119 - the agent starts without pathlib's cost here
        self._log_path, self._output = log_path, output
        self._look_s, self._most_bytes = look_s, most_bytes
        self._start = _size_of(log_path)
        self.has_ended = threading.Event()

    def run(self) -> None:
        """Copy until the worker has ended."""
        try:
            target = open_file(self._output, _APPEND, 0o644)
        except OSError as problem:
            self._tell(f"--output cannot be written: {why(problem)}")
            return
        try:
            self._copy_to(target)
        except OSError as problem:
            self._tell(f"--output is not complete: {why(problem)}")
        finally:
            os.close(target)

    def _copy_to(self, target: int) -> None:
        position, has_ended = self._start, False
        while not has_ended:
            has_ended = self.has_ended.wait(self._look_s)
            chunk = b""
            while text := self._read(position + len(chunk)):
                chunk += text
                whole = chunk[: chunk.rfind(b"\n") + 1]
                if has_ended or len(chunk) > _LONGEST_BYTES:
                    whole = chunk
                if not self._write(target, whole):
                    return
                position += len(whole)
                chunk = chunk[len(whole) :]

    def _read(self, position: int) -> bytes:
        """Return what the log has from there on; it may not be there yet."""
        with suppress(FileNotFoundError):
            log = open_file(self._log_path)
            try:
                return os.pread(log, _CHUNK_BYTES, position)
            finally:
                os.close(log)
        return b""

    def _write(self, target: int, text: bytes) -> bool:
        """Append a text; return whether more may follow."""
        room = self._most_bytes - os.fstat(target).st_size
        if room <= 0:  # another worker has said so
            return False
        if len(text) > room:
            words = f"--output ends here, at {self._most_bytes} bytes; 'bftrainer logs' has all"
            text = text[:room] + f"\nbftrainer: {words}\n".encode()
        while text:
            text = text[os.write(target, text) :]
        return os.fstat(target).st_size <= self._most_bytes

    def _tell(self, words: str) -> None:
        """Say in the worker's log what became of its copy."""
        with suppress(OSError):
            log = open_log(self._log_path)
            try:
                os.write(log, f"bftrainer: {words}\n".encode())
            finally:
                os.close(log)


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - likewise
    except OSError:
        return 0
