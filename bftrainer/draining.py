"""Ends a daemon with its pilots (``bftrainer down``).

The trainers stay in the journal, and the next daemon goes on with them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from bftrainer.actuate.control_plane import ControlPlane
from bftrainer.actuate.pilots import PilotBook
from bftrainer.model.decision import Release
from bftrainer.wire.messages import Leave

LOG = logging.getLogger("bftrainer.daemon")
REASON: Final = "The daemon ends (bftrainer down)."
SAVE_LIMIT_S: Final = 60.0  # for the last checkpoints; then workers are killed
LEAVE_LIMIT_S: Final = 10.0
TURN_S: Final = 0.05


async def drain(
    pilots: PilotBook,
    plane: ControlPlane,
    cancel: Callable[[list[str]], None],
    decide_soon: Callable[[], None],
    *,
    saves: bool,
) -> None:
    """Release all nodes; ``saves``: after trainers have written a checkpoint and left them."""
    if saves:
        pilots.retire(SAVE_LIMIT_S)
        decide_soon()  # retired nodes are no offers: every trainer parks
        await _until(lambda: not plane.trainers.has_workers(), SAVE_LIMIT_S)
    everybody = [
        Release(pilot_id=pilot_id, node=pilot.record.node, reason=REASON)
        for pilot_id, pilot in pilots.pilots.items()
    ]
    told = {p for p in list(plane.agents.connected) if plane.server.send(p, Leave(reason=REASON))}
    pilots.release(everybody, told)
    cancel(pilots.job_ids(set(pilots.pilots) - told))
    await _until(lambda: not plane.agents.connected, LEAVE_LIMIT_S)
    if left := sorted(plane.agents.connected):
        LOG.warning("pilots %s did not leave; they are cancelled", ", ".join(left))
        cancel(pilots.job_ids(left))


async def _until(is_done: Callable[[], bool], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not is_done() and time.monotonic() < deadline:  # noqa: ASYNC110 - no event
        await asyncio.sleep(TURN_S)
