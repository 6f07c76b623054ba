"""The commands of a stand-in cluster: each is a copy of this file in the cluster's bin.

It sends its arguments to the server, prints the answer and exits with its status. If no
answer comes it waits, says so and asks again, for ever, as LSF's commands do: a request that a
stopped server has not read yet is not taken back. Standard library only: it starts in 20 ms.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
import time
import types

BIN = os.path.dirname(os.path.abspath(sys.argv[0]))  # noqa: PTH100, PTH120 - pathlib is slow
ROOT = os.path.dirname(BIN)  # noqa: PTH120
NAME = os.path.basename(sys.argv[0])  # noqa: PTH119


def request(extra: list[str], stdin: bytes, arguments: list[str]) -> bytes:
    """Return what is sent: lengths, then words separated by NUL, then standard input."""
    environment = [b"%s=%s" % item for item in os.environb.items()]
    words = [NAME, *arguments]
    parts = [
        str(len(words)).encode(),
        *map(os.fsencode, words),
        os.fsencode(working_directory()),
        b"%o" % mask(),
        str(len(extra)).encode(),
        *map(os.fsencode, extra),
        *environment,
    ]
    head = b"\0".join(parts)
    return b"%d %d\n%s%s" % (len(head), len(stdin), head, stdin)


def working_directory() -> str:
    """Return the current directory, or the root if it is gone."""
    try:
        return os.getcwd()  # noqa: PTH109
    except OSError:
        return "/"


def mask() -> int:
    """Return the umask."""
    value = os.umask(0o022)
    os.umask(value)
    return value


def setting(name: str, default: str) -> str:
    """Read a setting that the server's side wrote for commands."""
    try:
        with open(f"{ROOT}/run/{name}", encoding="utf-8") as file:  # noqa: PTH123
            return file.read().strip()
    except OSError:
        return default


def ask(message: bytes, retry_s: float) -> tuple[int, bytes, bytes] | None:
    """Ask once; ``None``: no answer within ``retry_s``."""
    started = time.monotonic()
    with socket.socket(socket.AF_UNIX) as server:
        server.settimeout(retry_s)
        try:
            server.connect(f"{ROOT}/run/mbatchd")
            server.sendall(message)
            received = bytearray()
            while True:
                server.settimeout(max(0.001, started + retry_s - time.monotonic()))
                chunk = server.recv(1 << 16)
                if not chunk:
                    break
                received += chunk
        except OSError:
            received = bytearray()
    line, _, body = bytes(received).partition(b"\n")
    words = line.split()
    if len(words) == 3:
        status, n_out, n_err = map(int, words)
        if len(body) == n_out + n_err:
            return status, body[:n_out], body[n_out:]
    time.sleep(max(0.0, started + retry_s - time.monotonic()))
    return None


def wait_for_lim(retry_s: float) -> None:
    """Wait until the load information manager answers."""
    while os.path.exists(f"{ROOT}/run/lim.stopped"):  # noqa: PTH110
        if NAME == "lsid":
            say(1, setting("banner", "") + "\n\n")
            say(2, "ls_getclustername(): LIM is down; try later\n")
            raise SystemExit(255)
        time.sleep(retry_s)
        say(2, setting("lim.message", "LIM is down") + "\n")


def say(stream: int, text: str | bytes) -> None:
    """Write all of a text to standard output or error."""
    data = text
    if isinstance(data, str):
        data = data.encode()
    while data:
        data = data[os.write(stream, data) :]


def main() -> int:
    """Run one command."""
    arguments = sys.argv[1:]
    retry_s = float(setting("retry", "10"))
    stdin = b""
    extra: list[str] = []
    hooks: types.ModuleType | None = None
    if NAME == "bsub":
        if sys.stdin is not None and not os.isatty(0):
            stdin = sys.stdin.buffer.read()
        if any(os.path.exists(f"{ROOT}/etc/{hook}") for hook in ("esub", "epsub")):  # noqa: PTH110
            sys.path.insert(0, f"{ROOT}/lib")
            hooks = importlib.import_module("lsf_adapters.testcluster.hooks")
            status, extra = hooks.before(ROOT, arguments, stdin)
            if status:
                return int(status)
    wait_for_lim(retry_s)
    message = request(extra, stdin, arguments)
    while (answer := ask(message, retry_s)) is None:
        say(2, setting("mbatchd.message", "no answer") + "\n")
    status, out, err = answer
    say(2, err)
    say(1, out)
    if hooks is not None:
        hooks.after(ROOT, arguments, out)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
