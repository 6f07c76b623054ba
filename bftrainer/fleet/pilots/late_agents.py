"""Pilots whose jobs run while their agents have not connected: said, with where they should.

A network that agents cannot cross looks like a slow start for as long as anybody waits.
``decide.overdue`` gives such a pilot up, ``actuate.vain_pilots`` counts them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from bftrainer.fleet.pilots.agents import AgentBook
from bftrainer.fleet.pilots.pilots import PilotBook
from bftrainer.journal.records import PilotState

LOG = logging.getLogger("bftrainer.pilots")
LATE_S = 15.0  # an agent takes a second or two; on a slow file system it may take more
HINT = "See docs/howto/slurm-site.md#networks-and-ports, and the job's output."


class LateAgents:
    """Of one daemon."""

    def __init__(self, pilots: PilotBook, agents: AgentBook, clock: Callable[[], float]) -> None:
        self._pilots, self._agents, self._clock = pilots, agents, clock
        self._is_said = False

    def by_node(self) -> dict[str, str]:
        """Return a sentence for each node with such a pilot."""
        now_s = self._clock()
        where = ", ".join(end.removeprefix("tcp://") for end in self._agents.offered)
        return {
            pilot.record.node: f"Its job {pilot.record.job_id} runs on {pilot.record.node} since "
            f"{now_s - pilot.start_s:.0f} s, its agent has not connected to {where}."
            for pilot_id, pilot in sorted(self._pilots.pilots.items())
            if pilot.record.state is PilotState.REQUESTED
            and not (pilot.is_leaving or pilot_id in self._agents.connected)
            and pilot.start_s is not None
            and now_s - pilot.start_s >= LATE_S
        }

    def look(self) -> None:
        """Log the first such pilot, and again after an agent has connected."""
        if self._agents.connected:
            self._is_said = False
        elif not self._is_said and (late := self.by_node()):
            LOG.warning("BFT-1314: %s %s", " ".join(list(late.values())[:3]), HINT)
            self._is_said = True
