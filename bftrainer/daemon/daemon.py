"""The daemon's life: it takes its state directory, opens its journal, and serves until stopped.

One asyncio event loop, and one background thread each for polling, cancelling, claiming, deciding
and writing the journal. None of them waits for another (docs/adr/0016). What it does in between
is ``incarnation``'s.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from bftrainer.api.service import Service
from bftrainer.batch.awake import AWAKE
from bftrainer.batch.batch_system import BatchSystem
from bftrainer.batch.clock import CLOCK_NAME, STEADY
from bftrainer.daemon.entrance import Entrance
from bftrainer.daemon.incarnation import TICK_S, Ground, Incarnation
from bftrainer.daemon.options import DaemonOptions
from bftrainer.daemon.reload import Reloading
from bftrainer.daemon.remote import refuse_second
from bftrainer.daemon.state import DaemonState, InForce
from bftrainer.daemon.systemd import ServiceManager
from bftrainer.fleet.background import Background
from bftrainer.fleet.wire.keys import load_or_create_pair
from bftrainer.journal.journal import Journal
from bftrainer.journal.lock import InstanceLock
from bftrainer.journal.mark import MARK_NAME
from bftrainer.site.policy.model import SitePolicy

SAVE_LIMIT_S: Final = 60.0  # for the last checkpoints, when the daemon ends with its nodes


class Daemon:
    """Runs one incarnation; can be told to stop, and to read its policy again."""

    def __init__(
        self,
        options: DaemonOptions,
        policy: SitePolicy,
        system: BatchSystem,
        *,
        serve: Callable[[Daemon], Service],
        reread: Callable[[], SitePolicy] | None = None,
        clock: Callable[[], float] = STEADY,
    ) -> None:
        """``serve`` makes the users' view of our state; ``reread``: None, there is no file."""
        self._serve = serve
        self.in_force = InForce.of(policy, system)
        self.manager = ServiceManager()
        self.reloading = Reloading(self.in_force, system, self.manager, reread)
        self._ground = Ground(
            options=options,
            in_force=self.in_force,
            system=system,
            manager=self.manager,
            reloading=self.reloading,
            clock=clock,
        )
        self._stopping = asyncio.Event()
        self._background = Background()
        self.incarnation: Incarnation
        self.state: DaemonState  # while it runs

    async def run(self, on_ready: Callable[[], object] = lambda: None) -> None:
        """Start, and serve until ``stop``; trainers and pilots continue without us."""
        options = self._ground.options
        if options.may_be_shared:
            refuse_second(options.state_dir)
        with contextlib.ExitStack() as at_end, self._open_journal() as journal:
            at_end.callback(AWAKE.rest)  # also of a daemon that does not start
            AWAKE.judges(self.in_force.policy.agent_timeout_s)
            STEADY.keep_in(options.state_dir / CLOCK_NAME)
            keys = load_or_create_pair(options.state_dir / "daemon.key")
            incarnation = Incarnation(self._ground, journal, keys)
            await incarnation.open()
            self.incarnation, self.state = incarnation, incarnation.state(keys)
            entrance = Entrance(options, self.in_force, keys, self._serve(self))
            await entrance.open()
            AWAKE.rest()  # what a start takes is no sleep
            AWAKE.beat(TICK_S)
            loops = [
                asyncio.create_task(incarnation.poller.run()),
                asyncio.create_task(incarnation.decide_loop()),
                asyncio.create_task(incarnation.tick_loop()),
                asyncio.create_task(incarnation.life_loop()),
                asyncio.create_task(entrance.watch()),
            ]
            self._background.run(incarnation.warn_of_settings())
            try:
                on_ready()
                await self._until_stopped(loops)
            finally:
                for task in loops:
                    task.cancel()
                await asyncio.gather(*loops, return_exceptions=True)
                incarnation.chronicle.close()
                await entrance.close()
                await incarnation.actuator.close()
                incarnation.close()
                self._ground.system.close()

    def stop(self) -> None:
        """Ask ``run`` to return."""
        self.manager.stopping()
        self._stopping.set()

    def end_with_nodes(self, *, saves: bool) -> None:
        """Release all nodes, then stop; ``saves``: after last checkpoints."""
        save_s = 0.0
        if saves:
            save_s = SAVE_LIMIT_S
        self._background.run(self._end_with_nodes(save_s))

    async def _end_with_nodes(self, save_s: float) -> None:
        await self.incarnation.actuator.give_all_back("The daemon ends (bftrainer down).", save_s)
        self.stop()

    @contextlib.contextmanager
    def _open_journal(self) -> Iterator[Journal]:
        """Take the state directory, alone, and open its journal."""
        options = self._ground.options
        with (
            InstanceLock.acquire(options.state_dir, may_be_shared=options.may_be_shared),
            contextlib.closing(
                Journal.open(
                    options.journal_url or str(options.state_dir / "journal.db"),
                    clock=self._ground.clock,
                    mark_file=options.state_dir / MARK_NAME,
                    accepted_loss=options.accepted_loss,
                )
            ) as journal,
        ):
            yield journal

    async def _until_stopped(self, loops: list[asyncio.Task[None]]) -> None:
        """Fail if any loop ends: that is a bug, and half a daemon must not live on."""
        stopping = asyncio.create_task(self._stopping.wait())
        tasks, _ = await asyncio.wait({stopping, *loops}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        for task in tasks - {stopping}:
            task.result()
