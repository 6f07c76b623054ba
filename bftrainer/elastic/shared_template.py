"""One warm template for all agents of a host, where several nodes share one machine.

The embedded batch system starts ``template`` with a path in place of a descriptor. Warm, it
listens there. For every agent that connects it forks a copy, which then serves this agent as a
template of its own would. The agent says first, in one packet::

    {"serve": {"interpreter": PATH, "environment": {...}, "log": PATH}}

The copy answers ``{"serving": PID}`` with a pidfd of itself, or closes the connection if the agent
would get another template than it asks for: another user, another interpreter, or a variable that
differs (those called ``BFT_...``, and ``PLACES``, may). Such an agent starts its own.

``{"run": {"argv": [SCRIPT, ...], "environment": {...}, "log": PATH}}`` has a copy run a script as
``python`` would, with these variables beside its own; the connection closes when it ends. Called
by ``template``.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import struct
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import NoReturn

PATIENCE_S = 5.0  # for an agent's first packet
MAX_REQUEST_BYTES = 128 * 1024
OWN_PREFIX = "BFT_"  # variables in which agents of one host may differ
PLACES = ("TMPDIR", "TORCHINDUCTOR_CACHE_DIR")  # others of that kind, each agent's


def channel_of_an_agent(path: str, environment: dict[str, str]) -> socket.socket:
    """Listen at ``path`` for ever; return in each copy, with the connection of its agent.

    ``environment`` is the one we were started with; libraries have added to it since.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        Path(path).chmod(0o600)
        listener.listen(128)
        while True:
            channel, _ = listener.accept()
            if _fork_away():
                break
            channel.close()
    if not _is_for_us(channel, environment):
        os._exit(0)
    return channel


def peer_uid(connection: socket.socket) -> int:
    """Return the user at the other end of a Unix socket."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", packed)
    return int(uid)


def _fork_away() -> bool:
    """Return True in a copy of this process that the batch system, a subreaper, has adopted."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return False
    child = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == child:
        time.sleep(0.001)
    os.setsid()
    return True


def _is_for_us(channel: socket.socket, ours: dict[str, str]) -> bool:
    """Hear what is wanted; become the agent's template, if that is the same, or run a script."""
    from bftrainer.elastic.worker import write_to  # noqa: PLC0415 - agents import us early

    channel.settimeout(PATIENCE_S)
    try:
        [(kind, body)] = json.loads(channel.recv(MAX_REQUEST_BYTES)).items()
        if peer_uid(channel) != os.getuid():
            return False
        if kind == "run":
            os.environ.update(body["environment"])
            write_to(str(body["log"]))
            _run(list(map(str, body["argv"])))
        interpreter, environment = str(body["interpreter"]), dict(body["environment"])
        if interpreter != sys.executable or _common(environment) != _common(ours):
            return False
        _enter(environment)
        write_to(str(body["log"]))
        serving = json.dumps({"serving": os.getpid()}).encode()
        socket.send_fds(channel, [serving], [os.pidfd_open(os.getpid())])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    channel.settimeout(None)
    return True


def _run(argv: list[str]) -> NoReturn:
    from bftrainer.elastic import worker  # noqa: PLC0415 - as above
    from bftrainer.ground.process import die_with_parent  # noqa: PLC0415 - as above

    die_with_parent()  # now the batch system
    sys.argv = argv
    sys.path.insert(0, str(Path(argv[0]).parent))
    try:
        status = worker.status_of(argv[0])
    except BaseException:  # noqa: BLE001 - whatever the script raises
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    os._exit(status)


def _common(environment: dict[str, str]) -> dict[str, str]:
    prefixes = (OWN_PREFIX, *PLACES)
    return {name: value for name, value in environment.items() if not name.startswith(prefixes)}


def _enter(environment: dict[str, str]) -> None:
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    for name, value in environment.items():
        # Where the kernel shows it: by /proc/PID/environ the batch system knows whose job this
        # is, and all that is forked here.
        room, text = len(os.fsencode(os.environ.get(name, ""))), os.fsencode(value)
        if name.startswith(OWN_PREFIX) and len(text) <= room:
            ctypes.memmove(getenv(os.fsencode(name)), text.ljust(room, b"\0"), room)
    os.environ.update(environment)
    tempfile.tempdir = None  # which may be known already, as it was for us
