"""The daemon's endpoints for agents: kept in files, and chosen by agents.

``endpoint`` has the first, whose port the next daemon uses, too: running agents know these only. If
it is unusable, they are lost, but the daemon starts. If there are several, ``endpoints`` has all,
one a line, for agents that look for a daemon that has moved to another host; agents of earlier
releases read the first only.

A host may have addresses that others cannot reach, or at which they reach somebody else: a bridge
of containers has the same one everywhere. So what counts is the CURVE handshake, which only the
holder of the secret key can answer. Blocking; used by agents (in a thread) and by verbs.

Written by the daemon into the pilot's directory (0600) and read by the agent; none of it is
ever in an argument list or in the environment.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated

import zmq
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from zmq.utils.monitor import parse_monitor_message

from bftrainer.fleet.wire.keys import Z85_KEY_CHARS, KeyPair
from bftrainer.fleet.wire.private import read_private, write_private
from bftrainer.ground.fence import write_whole
from bftrainer.ground.ports import ports_of
from bftrainer.model.errors import BftError, UsageError

LOG = logging.getLogger("bftrainer.wire")
_MOST_BYTES = 8192
_ENDPOINT = re.compile(rb"tcp://[!-~]{1,300}:(?P<port>[0-9]{1,5})\s*")
STAGGER_S = 0.25  # until the next endpoint is tried, too (as RFC 8305, section 8, advises)
# "Not let in" is said by the right daemon, too, but nothing proves who says it.
_ANSWERS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
REFUSED_S = 1.0  # after all were tried: whether another one lets us in
# Not written while they have their defaults: agents of releases before do not know them.
ADDED = ("tidies", "agent_timeout_s", "endpoints", "network", "ports")


def _all_beside(file: Path) -> Path:
    return file.with_name(f"{file.name}s")


def port_in(text: bytes) -> int:
    """Return the port of an endpoint; 0 if it is not one."""
    match = _ENDPOINT.fullmatch(text)
    if match is None:
        return 0
    port = int(match["port"])
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


def first_answering(
    endpoints: Sequence[str], *, server_key: str, keys: KeyPair, limit_s: float
) -> str:
    """Return the first endpoint that answers; "": none did within ``limit_s``.

    Earlier endpoints have a start of ``STAGGER_S`` each. One that lets us in has the daemon's key.
    One that does not counts only if no other lets us in within ``REFUSED_S``: anybody can say so.
    """
    begin_s, refused = time.monotonic(), ""
    untried = list(dict.fromkeys(endpoints))
    tried_s = STAGGER_S * len(untried)
    with ExitStack() as opened:
        context = opened.enter_context(zmq.Context())
        poller, waiting = zmq.Poller(), dict[zmq.Socket[bytes], str]()
        while (passed_s := time.monotonic() - begin_s) < limit_s:
            while untried and len(waiting) * STAGGER_S <= passed_s:
                dealer = opened.enter_context(context.socket(zmq.DEALER))
                monitor = opened.enter_context(dealer.get_monitor_socket(_ANSWERS))
                waiting[monitor] = untried.pop(0)
                poller.register(monitor, zmq.POLLIN)
                _connect(dealer, waiting[monitor], server_key, keys)
            next_s = len(waiting) * STAGGER_S if untried else limit_s
            timeout_ms = math.ceil(1000 * (min(next_s, limit_s) - passed_s))
            for monitor, _ in poller.poll(timeout_ms):
                if _event(monitor) == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    return waiting[monitor]
                if not refused:
                    refused = waiting[monitor]
                    limit_s = min(limit_s, max(tried_s, time.monotonic() - begin_s) + REFUSED_S)
    return refused


def _event(monitor: zmq.Socket[bytes]) -> int:
    return int(parse_monitor_message(monitor.recv_multipart())["event"])


def _connect(dealer: zmq.Socket[bytes], endpoint: str, server_key: str, keys: KeyPair) -> None:
    dealer.set(zmq.LINGER, 0)
    dealer.set(zmq.IPV6, 1)
    keys.prove(dealer, server_key)
    with suppress(zmq.ZMQError):  # no endpoint at all
        dealer.connect(endpoint)


Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class AgentConfig(BaseModel):
    """The contents of ``agent.json``."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    pilot_id: str = Field(min_length=1)
    daemon_endpoint: str = Field(pattern=r"^tcp://.+:\d+$")
    daemon_public_key: str = Field(min_length=Z85_KEY_CHARS, max_length=Z85_KEY_CHARS)
    key_file: Path  # the agent's own CURVE pair, a 0600 file
    state_dir: Path  # directory of the templates' logs; both may be relative to this file's
    node: str = Field(min_length=1)
    incarnation: int = Field(default=0, ge=0)
    address: str = ""  # data-plane address; "": what the node's host name resolves to
    end_s: float | None = None  # wall clock: end of the pilot's time limit
    end_margin_s: float = Field(default=5.0, ge=0)  # leave this much earlier
    heartbeat_s: Seconds = 1.0
    lease_s: Seconds = 1800.0
    agent_timeout_s: Seconds = 5.0  # without any sign of the daemon the path to it is dead
    worker_lease_s: Seconds = 10.0
    gpus: int = Field(default=0, ge=0)
    interpreters: tuple[str, ...] = ()  # templates to start first
    endpoint_file: Path | None = None  # says where a daemon is that has moved to another host
    tidies: bool = False  # the directory is the user's, so nobody else removes keys and old logs
    endpoints: tuple[str, ...] = ()  # further ones at which the daemon may be found
    network: str = ""  # of the data plane (policy ``training_network``); "": the daemon's
    ports: str = ""  # that the agent and its workers may listen on; "": any

    def text(self) -> str:
        """Return the file's contents, without what agents of releases before do not know."""
        unused = set[str]()
        for name in ADDED:
            if getattr(self, name) == AgentConfig.model_fields[name].default:
                unused.add(name)
        return self.model_dump_json(indent=1, exclude=unused)

    def save(self, path: Path) -> None:
        """Write the file; BFT-1302 when it exists."""
        write_private(path, self.text().encode())

    @classmethod
    def load(cls, path: Path) -> AgentConfig:
        """Read the file.

        Raises:
            BftError: BFT-1302 when it is not private, BFT-1303 when it is malformed.
        """
        try:
            config = cls.model_validate_json(read_private(path))
        except ValidationError as problem:
            first = problem.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "top level"
            raise UsageError(
                "BFT-1303",
                f"The agent configuration {path} is malformed at {where}: {first['msg']}.",
                "The daemon writes it: run daemon and agents from one installation.",
            ) from problem
        directory = path.absolute().parent
        key_file, state_dir = directory / config.key_file, directory / config.state_dir
        return config.model_copy(update={"key_file": key_file, "state_dir": state_dir})
