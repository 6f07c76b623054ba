"""Follows up the coming, going and last words of agents: for pilots, harm and decisions."""

from __future__ import annotations

from collections.abc import Callable

from bftrainer.batch.awake import AWAKE
from bftrainer.daemon.adoption import Adoption
from bftrainer.daemon.harm.monitor import HarmMonitor
from bftrainer.daemon.state import InForce
from bftrainer.fleet.control_plane import Listener
from bftrainer.fleet.pilots.pilots import PilotBook
from bftrainer.fleet.wire.messages import Leaving


class AgentNews:
    """Hears of the agents of one daemon."""

    def __init__(
        self,
        *,
        in_force: InForce,
        pilots: PilotBook,
        adoption: Adoption,
        harm: HarmMonitor,
        dismiss: Callable[[str, str], object],
        decide_soon: Callable[[], object],
        poll_soon: Callable[[], object],
    ) -> None:
        """``dismiss`` tells a pilot's agent to leave, and why."""
        self._in_force, self._pilots = in_force, pilots
        self._adoption, self._harm = adoption, harm
        self._dismiss, self._decide_soon, self._poll_soon = dismiss, decide_soon, poll_soon

    def listener(self) -> Listener:
        """Return the callbacks for a control plane."""
        return Listener(came=self.came, gone=self.gone, ending=self.ending, changed=self.changed)

    def came(self, pilot_id: str) -> None:
        """Note that an agent has connected; it leaves again if its pilot is over."""
        self._adoption.settled(pilot_id)
        if why := self._pilots.agent_came(pilot_id):
            self._dismiss(pilot_id, why)

    def gone(self, pilot_id: str, why: str, farewell: Leaving | None) -> None:
        """Note that an agent has left, with its last words, or was lost without any."""
        pilot = self._pilots.pilots.get(pilot_id)
        if farewell is not None and pilot is not None:
            waited_s = AWAKE.waited_s(self._in_force.policy.agent_timeout_s)
            self._harm.left(pilot_id, pilot.record.node, farewell, waited_s)
        self._pilots.agent_left(pilot_id, why)

    def ending(self, pilot_id: str, grace_s: float) -> None:
        """Note that the batch system ends a pilot in so many seconds."""
        self._pilots.agent_ends(pilot_id, grace_s)
        self._decide_soon()

    def changed(self) -> None:
        """Have nodes looked at whose agents came or went; trainers know of it."""
        self._poll_soon()  # the node may be idle, or have jobs; no announcement says so
        self._decide_soon()
