"""The daemon's endpoints for agents, and which of them an agent takes.

``endpoint`` has the first, whose port the next daemon uses, too: running agents know these only. If
it is unusable, they are lost, but the daemon starts. If there are several, ``endpoints`` has all,
one a line, for agents that look for a daemon that has moved to another host; those of releases
before read the first only.

A host may have addresses that others cannot reach, or at which they reach somebody else: a bridge
of containers has the same one everywhere. So what counts is the CURVE handshake, which only the
holder of the secret key can answer. Blocking; used by agents (in a thread) and by verbs.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import zmq

from bftrainer.elastic.fence import write_whole
from bftrainer.elastic.ports import ports_of
from bftrainer.fleet.wire.keys import KeyPair, read_private
from bftrainer.model.errors import BftError

LOG = logging.getLogger("bftrainer.wire")
_MOST_BYTES = 8192
_ENDPOINT = re.compile(rb"tcp://[!-~]{1,300}:([0-9]{1,5})\s*")


def _all_beside(file: Path) -> Path:
    return file.with_name(f"{file.name}s")


def port_in(text: bytes) -> int:
    """Return the port of an endpoint; 0 if it is not one."""
    found = _ENDPOINT.fullmatch(text)
    port = int(found[1]) if found else 0
    return port if port < 1 << 16 else 0


def endpoints_in(file: Path) -> tuple[str, ...]:
    """Return the endpoints that the file, and the one of all beside it, name."""
    lines: list[bytes] = []
    for place in (file, _all_beside(file)):
        with suppress(BftError):
            lines += read_private(place, limit_bytes=_MOST_BYTES, is_secret=False).split(b"\n")
    return tuple(dict.fromkeys(line.decode("ascii").strip() for line in lines if port_in(line)))


def remembered_port(file: Path, ports: str = "") -> int:
    """Return the port to listen on; 0 (any) if none is stored, or none of ``ports``."""
    if not file.exists() and not file.is_symlink():
        return 0
    why = "it holds no endpoint"
    try:
        port = port_in(read_private(file, limit_bytes=512, is_secret=False))
    except BftError as problem:
        port, why = 0, problem.cause
    if port and ports and port not in ports_of(ports):
        port, why = 0, f"its port {port} is not in {ports}"
    if not port:
        LOG.error("%s is unusable (%s): using another port; running agents are lost", file, why)
    return port


def remember(file: Path, *endpoints: str) -> None:
    """Store the endpoints, atomically."""
    try:
        write_whole(file, (endpoints[0].encode(),))
        if len(endpoints) > 1:
            write_whole(_all_beside(file), ("\n".join(endpoints).encode(),))
        else:
            _all_beside(file).unlink(missing_ok=True)
    except OSError as problem:
        LOG.warning("agents will not find the next daemon: cannot write %s (%s)", file, problem)


STAGGER_S = 0.25  # until the next endpoint is tried, too (as RFC 8305, section 8, advises)
# "Not let in" is said by the right daemon, too.
_ANSWERS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH


def first_answering(
    endpoints: Sequence[str], *, server_key: str, keys: KeyPair, limit_s: float
) -> str:
    """Return the first endpoint that answers; "": none did within ``limit_s``.

    Earlier endpoints have a start of ``STAGGER_S`` each.
    """
    begin_s = time.monotonic()
    with ExitStack() as opened:
        context = opened.enter_context(zmq.Context())
        poller, waiting = zmq.Poller(), dict[zmq.Socket[bytes], str]()
        untried = list(dict.fromkeys(endpoints))
        while (passed_s := time.monotonic() - begin_s) < limit_s:
            while untried and len(waiting) * STAGGER_S <= passed_s:
                dealer = opened.enter_context(context.socket(zmq.DEALER))
                monitor = opened.enter_context(dealer.get_monitor_socket(_ANSWERS))
                waiting[monitor] = untried.pop(0)
                poller.register(monitor, zmq.POLLIN)
                _connect(dealer, waiting[monitor], server_key, keys)
            next_s = len(waiting) * STAGGER_S if untried else limit_s
            for found, _ in poller.poll(math.ceil(1000 * (min(next_s, limit_s) - passed_s))):
                return waiting[found]
    return ""


def _connect(dealer: zmq.Socket[bytes], endpoint: str, server_key: str, keys: KeyPair) -> None:
    dealer.set(zmq.LINGER, 0)
    dealer.set(zmq.IPV6, 1)
    keys.prove(dealer, server_key)
    with suppress(zmq.ZMQError):  # no endpoint at all
        dealer.connect(endpoint)
