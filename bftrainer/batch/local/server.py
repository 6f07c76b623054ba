"""The local batch system's process: ``python -m bftrainer.batch.local.server --dir DIR``.

It serves requests on DIR/local.sock and runs jobs as processes on this machine. It ends on
SIGTERM, on a ``shutdown`` request or with the process that started it, and kills everything it
started.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import logging
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from bftrainer.batch.local.cluster import LocalCluster
from bftrainer.batch.local.processes import JobProcesses
from bftrainer.batch.local.requests import Operations
from bftrainer.batch.local.workload import JobWorkload, WorkloadProgress, load_workload
from bftrainer.model.errors import BftError, ExitCode, UsageError

MAX_LINE_BYTES = 4 * 1024 * 1024
SOCKET_NAME = "local.sock"
TEMPLATE_SOCKET_NAME = "template.sock"  # there when the template is warm
PID_NAME = "local.pid"
MAX_SOCKET_PATH_BYTES = 107
MAX_WAIT_S = 60.0


class Server:
    """Wiring: socket (mode 0600), signals, cluster, clock; no client can block it."""

    def __init__(self, options: argparse.Namespace) -> None:
        directory: Path = options.dir
        now_s = time.time()
        workload = load_workload(options.workload) if options.workload else JobWorkload(jobs=())
        processes = JobProcesses(directory)
        if options.warm is not None:
            processes.start_template(directory / TEMPLATE_SOCKET_NAME, options.warm)
        self._cluster = LocalCluster(
            nodes=tuple(f"n{i}" for i in range(1, options.nodes + 1)),
            processes=processes,
            cycle_s=options.cycle_s,
            kill_wait_s=options.kill_wait_s,
            now_s=now_s,
            preempts_at_once=not options.preempt_in_cycles,
        )
        self._background = WorkloadProgress(self._cluster, workload)
        if not options.hold_workload:
            self._background.start(None, now_s)
        self._operations = Operations(self._cluster, self._background, gpus=options.gpus)
        self._path, self._lifeline_fd = directory / SOCKET_NAME, options.lifeline_fd
        self._is_news = asyncio.Event()
        self._is_stopping = False

    async def run(self) -> None:
        """Serve until stopped, then clean up everything."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._is_news.set)
        for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(sig, self._stop)
        if self._lifeline_fd is not None:
            loop.add_reader(self._lifeline_fd, self._stop)
        self._path.unlink(missing_ok=True)  # of a server that was killed; the lock is ours
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self._path))
        self._path.chmod(0o600)
        await asyncio.start_unix_server(self._serve, sock=listener, limit=MAX_LINE_BYTES)
        try:
            while not (self._is_stopping or self._operations.is_shutting_down):
                wait_s = min(max(0.0, self._work() - time.time()), MAX_WAIT_S)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._is_news.wait(), wait_s)
                self._is_news.clear()
        finally:
            await self._leave()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ValueError):  # ValueError: the line is too long
            while (line := await reader.readline()).endswith(b"\n"):
                writer.write(self._operations.answer(line, time.time()) or b"")
                self._is_news.set()
                await writer.drain()
        writer.close()

    def _work(self) -> float:
        is_scheduling = not self._operations.is_paused
        due_s = self._background.submit_due(time.time()) if is_scheduling else math.inf
        return min(due_s, self._cluster.tick(time.time(), is_scheduling=is_scheduling))

    def _stop(self) -> None:
        if self._lifeline_fd is not None:  # it stays readable, and we have seen it
            asyncio.get_running_loop().remove_reader(self._lifeline_fd)
        self._is_stopping = True
        self._is_news.set()

    async def _leave(self) -> None:
        self._cluster.terminate_all(time.time())
        deadline = time.monotonic() + min(self._cluster.kill_wait_s, 1.0)
        while time.monotonic() < deadline and self._cluster.is_something_ending():
            await asyncio.sleep(0.02)
            self._cluster.tick(time.time(), is_scheduling=False)
        while not self._cluster.kill_all():  # noqa: ASYNC110 - nothing tells of processes
            await asyncio.sleep(0.01)
        self._path.unlink(missing_ok=True)


def _lock(directory: Path) -> IO[str]:
    """Lock the directory for this server, as long as the file is open."""
    pid_file = (directory / PID_NAME).open("a+", encoding="ascii")
    try:
        fcntl.flock(pid_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as problem:
        pid_file.close()
        raise UsageError(
            "BFT-1255",
            f"A local batch system is already running in {directory}.",
            "Use it, stop it, or choose another directory.",
            exit_code=ExitCode.ALREADY_RUNNING,
        ) from problem
    pid_file.truncate(0)
    pid_file.write(f"{os.getpid()}\n")
    pid_file.flush()
    return pid_file


def _prepare(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    socket_path = directory / SOCKET_NAME
    if len(os.fsencode(socket_path)) > MAX_SOCKET_PATH_BYTES:
        raise UsageError(
            "BFT-1254",
            f"The path {socket_path} is too long for a socket "
            f"({MAX_SOCKET_PATH_BYTES} bytes at most).",
            "Choose a shorter directory.",
        )


def _at_least(kind: type[int | float], least: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = kind(text)
        if not least <= value < math.inf:
            raise argparse.ArgumentTypeError(f"must be at least {least}")
        return value

    return parse


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bftrainer.batch.local.server", description=__doc__)
    parser.add_argument("--dir", type=lambda p: Path(p).absolute(), required=True)
    parser.add_argument("--nodes", type=_at_least(int, 1), default=8)
    parser.add_argument("--gpus", type=_at_least(int, 0), default=0, help="per node")
    parser.add_argument("--workload", type=Path, help="JSON file of ordinary jobs")
    parser.add_argument(
        "--hold-workload", action="store_true", help="until a start_workload request"
    )
    parser.add_argument("--cycle-s", type=_at_least(float, 0.05), default=1.0)
    parser.add_argument(
        "--preempt-in-cycles",
        action="store_true",
        help="preempt pilots a cycle later, as Slurm's backfill does",
    )
    parser.add_argument("--kill-wait-s", type=_at_least(float, 0.0), default=10.0)
    parser.add_argument(
        "--warm",
        nargs="*",
        metavar="MODULE",
        help="import torch and these modules once for the workers of all nodes",
    )
    parser.add_argument("--lifeline-fd", type=int, help="end when this pipe is closed")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server in the foreground and return its exit code."""
    options = _options(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        _prepare(options.dir)
        with _lock(options.dir) as pid_file:
            try:
                asyncio.run(Server(options).run())
            finally:
                pid_file.truncate(0)  # the file stays: it is the lock
    except BftError as problem:
        sys.stderr.write(f"{problem}\n")
        return int(problem.exit_code)
    return int(ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
