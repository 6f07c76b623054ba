"""A user's own daemon and other hosts: one daemon at a time, reached from everywhere.

``FarDaemon`` refuses to start beside one that answers, serves the API to the user's verbs on other
hosts, and tells when another daemon has taken over. Used by ``bftrainer.daemon``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from bftrainer.api import address
from bftrainer.api.address import Address
from bftrainer.api.remote_client import FarClient
from bftrainer.api.remote_server import FarServer
from bftrainer.api.server import ApiServer
from bftrainer.fleet.wire.endpoint import remember, remembered_port
from bftrainer.fleet.wire.keys import KeyPair, generate_pair, replace_pair
from bftrainer.fleet.wire.listener import offered_at
from bftrainer.model.errors import BftError

LOG = logging.getLogger("bftrainer.daemon")
ANSWER_LIMIT_S = 5.0
PORT_NAME = "api-endpoint"


class FarDaemon:
    """The daemon's interface to other hosts.

    The key of its verbs is of this daemon alone: one that was read from a backup, or copied while
    an earlier daemon ran, opens nothing.
    """

    def __init__(self, state_dir: Path, api: ApiServer, keys: KeyPair, ports: str = "") -> None:
        self._state_dir, self._keys, self._ports = state_dir, keys, ports
        self._verbs_keys = generate_pair()
        self._server = FarServer(api.app, keys, self._verbs_keys.public)
        self._own: Address | None = None

    def start(self, host: str, offered: Sequence[str] = ()) -> None:
        """Listen, at the port of the daemon before if it is free; write the key, and say where.

        Args:
            host: to bind.
            offered: addresses that verbs are told; (): the bound one.

        Raises:
            BftError: BFT-1302, the key cannot be written; BFT-1306, it cannot listen.
            OSError: the file that says where cannot be written.
        """
        file = self._state_dir / PORT_NAME
        endpoint = self._server.start(host, remembered_port(file, self._ports), self._ports)
        endpoints = offered_at(offered, endpoint)
        remember(file, *endpoints)
        replace_pair(self._verbs_keys, self._state_dir / address.KEY_NAME)
        self._own = address.own_address(endpoints, self._keys.public, os.environ)
        address.write(self._state_dir, self._own)

    async def stop(self) -> None:
        """Close; the file goes unless another daemon has written it."""
        await self._server.stop()
        if self._own is not None:
            address.remove(self._state_dir, self._own)

    def successor(self) -> Address | None:
        """Return the daemon that has taken over, if one has."""
        latest = address.read(self._state_dir)
        if latest is None or self._own is None or latest.nonce == self._own.nonce:
            return None
        return latest


def refuse_second(state_dir: Path) -> None:
    """Raise BFT-1102 if a daemon of this directory answers on some host.

    One that does not answer is taken to be dead. Should it come back, it sees its successor.
    """
    other_daemon = address.read(state_dir)
    if other_daemon is None or address.is_gone(other_daemon, os.environ):
        return
    try:
        FarClient(state_dir, other_daemon, timeout_s=ANSWER_LIMIT_S).status()
    except BftError as problem:
        LOG.warning(
            "taking over from %s, which does not answer: %s", other_daemon.where, problem.cause
        )
        return
    raise address.already_running(state_dir, other_daemon)
