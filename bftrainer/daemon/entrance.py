"""The ways by which users reach the daemon: its socket and, of a user's own, from other hosts."""

from __future__ import annotations

import asyncio
from typing import Final

from bftrainer.api.address import already_running
from bftrainer.api.server import ApiServer
from bftrainer.api.service import Service
from bftrainer.daemon.options import DaemonOptions
from bftrainer.daemon.remote import FarDaemon
from bftrainer.daemon.state import InForce
from bftrainer.fleet.wire.keys import KeyPair

LOOK_EVERY_S: Final = 1.0
MODE_FOR_ALL: Final = 0o666  # of the socket
MODE_OF_OWNER: Final = 0o600


class Entrance:
    """One per daemon."""

    def __init__(
        self, options: DaemonOptions, in_force: InForce, keys: KeyPair, service: Service
    ) -> None:
        self._options = options
        mode = MODE_OF_OWNER
        if in_force.policy.is_for_all:
            mode = MODE_FOR_ALL
        self._api = ApiServer(
            service,
            options.socket or options.state_dir / "daemon.sock",
            mode=mode,
            visibility=lambda: in_force.policy.visibility,
        )
        self._far: FarDaemon | None = None
        if options.may_be_shared:
            ports = in_force.policy.ports or ""
            self._far = FarDaemon(options.state_dir, self._api, keys, ports)

    async def open(self) -> None:
        """Answer requests from now on.

        Raises:
            BftError: BFT-1102, another daemon answers; BFT-1104, the socket's path is not safe;
                BFT-1306, other hosts cannot be listened to.
        """
        await self._api.start()
        if self._far is not None:
            self._far.start(self._options.bind_host, self._options.offered)

    async def close(self) -> None:
        """Finish the answers under way."""
        if self._far is not None:
            await self._far.stop()
        await self._api.stop()

    async def watch(self) -> None:
        """Raise BFT-1102 when another daemon has taken over the state directory."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if self._far is not None and (successor := self._far.successor()):
                raise already_running(self._options.state_dir, successor)
