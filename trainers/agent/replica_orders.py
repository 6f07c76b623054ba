"""Carries out the daemon's orders about copies of other nodes' trainers.

Writing to a shared file system may take long, so it runs in a background thread; its outcome is
reported. Called by ``trainers.agent.main``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from bftrainer.wire.messages import CopyOrder, CopySettled, DropCopy, HeldCopy, HoldCopy, SettleCopy
from trainers.agent.replica_store import CopyHolder


class HeldCopies:
    """The copies that this agent holds."""

    def __init__(self, *, report: Callable[[CopySettled], None]) -> None:
        self.port = 0
        self._report = report
        self._holder = CopyHolder()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, address: str) -> None:
        """Start to accept copies."""
        self.port = self._holder.start(address)

    def reports(self) -> list[HeldCopy]:
        """Return the held copies, for ``Hello``."""
        return [
            HeldCopy(
                trainer_id=facts.trainer_id,
                generation=facts.generation,
                step=facts.step,
                samples=facts.samples,
                size_bytes=facts.size_bytes,
                age_s=age_s,
            )
            for facts, age_s in self._holder.held()
        ]

    def obey(self, order: CopyOrder) -> None:
        """Carry out an order."""
        match order:
            case HoldCopy():
                self._holder.hold(order.trainer_id, order.key, order.generation)
            case DropCopy():
                self._holder.drop(order.trainer_id)
            case SettleCopy():
                task = asyncio.get_running_loop().create_task(self._settle(order))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _settle(self, order: SettleCopy) -> None:
        problem = await asyncio.to_thread(
            self._holder.settle, order.trainer_id, Path(order.directory)
        )
        self._report(CopySettled(trainer_id=order.trainer_id, problem=problem))
