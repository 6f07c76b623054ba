"""The local batch system's process: ``python -m bftrainer.batch.local.server --dir DIR``.

It serves requests on DIR/local.sock and runs jobs as processes on this machine. It ends on
SIGTERM, on a ``shutdown`` request or with the process that started it, and kills everything it
started.
"""

from __future__ import annotations

import argparse
import fcntl
import logging
import math
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from bftrainer.batch.local.cluster import LocalCluster
from bftrainer.batch.local.processes import JobProcesses
from bftrainer.batch.local.requests import Operations
from bftrainer.batch.local.workload import JobWorkload, WorkloadProgress, load_workload
from bftrainer.model.errors import BftError, ExitCode, UsageError

MAX_LINE_BYTES = 4 * 1024 * 1024

Handler = Callable[[bytes], bytes | None]


class Connections:
    """A listening Unix socket (mode 0600) and its clients; never blocks on any of them."""

    def __init__(self, path: Path, selector: selectors.BaseSelector, on_line: Handler) -> None:
        self._path = path
        self._selector = selector
        self._on_line = on_line
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        path.unlink(missing_ok=True)  # of a server that was killed; the lock is ours
        self._listener.bind(str(path))
        path.chmod(0o600)
        self._listener.listen(128)
        self._clients: dict[socket.socket, _Client] = {}
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        connection.settimeout(0)
        client = _Client(connection, self)
        self._clients[connection] = client
        self._selector.register(connection, selectors.EVENT_READ, client.on_ready)

    def handle(self, line: bytes) -> bytes | None:
        """Return the answer to a line."""
        return self._on_line(line)

    def watch(self, connection: socket.socket, *, is_writing: bool) -> None:
        """Register the events that a client's connection waits for."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if is_writing else 0)
        self._selector.modify(connection, events, self._clients[connection].on_ready)

    def drop(self, connection: socket.socket) -> None:
        """Forget a client."""
        self._selector.unregister(connection)
        connection.close()
        del self._clients[connection]

    def close(self) -> None:
        """Close all connections and remove the socket."""
        for connection in list(self._clients):
            self.drop(connection)
        self._selector.unregister(self._listener)
        self._listener.close()
        self._path.unlink(missing_ok=True)


class _Client:
    """One connection, with its unfinished line and its unsent output."""

    def __init__(self, connection: socket.socket, owner: Connections) -> None:
        self._connection = connection
        self._owner = owner
        self._incoming = bytearray()
        self._outgoing = bytearray()

    def on_ready(self) -> None:
        """Read what is there, answer complete lines, write what can be written."""
        try:
            self._read()
            if self._outgoing:
                del self._outgoing[: self._connection.send(self._outgoing)]
        except BlockingIOError:
            pass  # the rest goes when the client reads on
        except (OSError, EOFError):
            self._owner.drop(self._connection)
            return
        self._owner.watch(self._connection, is_writing=bool(self._outgoing))

    def _read(self) -> None:
        try:
            chunk = self._connection.recv(1 << 16)
        except BlockingIOError:
            return  # only writable
        if not chunk:
            raise EOFError
        self._incoming += chunk
        while (end := self._incoming.find(b"\n")) >= 0:
            line = bytes(self._incoming[:end])
            del self._incoming[: end + 1]
            self._outgoing += self._owner.handle(line) or b""
        if max(len(self._incoming), len(self._outgoing)) > MAX_LINE_BYTES:
            raise EOFError


SOCKET_NAME = "local.sock"
TEMPLATE_SOCKET_NAME = "template.sock"  # there when the template is warm
PID_NAME = "local.pid"
MAX_SOCKET_PATH_BYTES = 107
MAX_WAIT_S = 60.0

log = logging.getLogger("bftrainer.local")


class Server:
    """Wiring: selector, signals, cluster, clock."""

    def __init__(self, options: argparse.Namespace) -> None:
        directory: Path = options.dir
        now_s = time.time()
        workload = load_workload(options.workload) if options.workload else JobWorkload(items=())
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
        self._is_stopping = False
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = socket.socketpair()
        for end in (self._wake_reader, self._wake_writer):
            end.settimeout(0)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, self._on_wake)
        if options.lifeline_fd is not None:
            self._selector.register(
                options.lifeline_fd,
                selectors.EVENT_READ,
                lambda: self._on_lifeline(options.lifeline_fd),
            )
        self._connections = Connections(
            directory / SOCKET_NAME,
            self._selector,
            lambda line: self._operations.answer(line, time.time()),
        )

    def run(self) -> None:
        """Serve until stopped, then clean up everything."""
        signal.set_wakeup_fd(self._wake_writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only to wake us
        for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(sig, lambda *_: self._stop())
        try:
            while not (self._is_stopping or self._operations.is_shutting_down):
                self._wait(self._work() - time.time())
        finally:
            self._leave()

    def _work(self) -> float:
        is_scheduling = not self._operations.is_paused
        due_s = self._background.submit_due(time.time()) if is_scheduling else math.inf
        return min(due_s, self._cluster.tick(time.time(), is_scheduling=is_scheduling))

    def _wait(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(min(max(0.0, timeout_s), MAX_WAIT_S)):
            key.data()

    def _on_wake(self) -> None:
        self._wake_reader.recv(4096)

    def _on_lifeline(self, fd: int) -> None:
        self._selector.unregister(fd)  # it stays readable, and we have seen it
        self._stop()

    def _stop(self) -> None:
        self._is_stopping = True

    def _leave(self) -> None:
        self._cluster.terminate_all(time.time())
        deadline = time.monotonic() + min(self._cluster.kill_wait_s, 1.0)
        while time.monotonic() < deadline and self._cluster.is_something_ending():
            self._wait(0.02)
            self._cluster.tick(time.time(), is_scheduling=False)
        while not self._cluster.kill_all():
            self._wait(0.01)
        self._connections.close()
        self._selector.close()
        self._wake_reader.close()
        self._wake_writer.close()


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
                Server(options).run()
            finally:
                pid_file.truncate(0)  # the file stays: it is the lock
    except BftError as problem:
        sys.stderr.write(f"{problem}\n")
        return int(problem.exit_code)
    return int(ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
