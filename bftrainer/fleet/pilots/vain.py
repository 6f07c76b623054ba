"""Counts pilots that were in vain, or whose agents have not connected.

Of a trainer it counts those used up without a step, but not those that the daemon cancelled before
they had their node; of a user, those in a row that ended before their agents had connected.

Whatever the cause (an agent that never connects, nodes that go at once, a fault of ours), such a
trainer costs the batch system a request and an end again and again. ``refusals`` makes it pause.

A network that agents cannot cross looks like a slow start until a time limit is over.
``decide.claims`` then gives the pilot up, and it is counted here.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from bftrainer.decide.claims import DID_NOT_CONNECT
from bftrainer.fleet.pilots.agents import AgentBook
from bftrainer.fleet.pilots.pilots import PilotBook
from bftrainer.journal.projection import PilotRecord, PilotState
from bftrainer.model.cluster import EndedBy
from bftrainer.model.trainer import TrainerRecord

TIMES = 5  # a trainer's smallest size
SHOWN = 5  # of its pilots
IN_A_ROW = 3  # pilots without a word; one or two may have met an odd node
LOG = logging.getLogger("bftrainer.pilots")
LATE_S = 15.0  # an agent takes a second or two; on a slow file system it may take more
HINT = "See docs/howto/slurm-site.md#networks-and-ports, and the job's output."


@dataclass(slots=True, kw_only=True)
class _Usage:
    """Of one trainer, since its last step."""

    step: int
    by_plan: Counter[int] = field(default_factory=Counter)  # pilots, by when they were requested
    latest: deque[str] = field(default_factory=lambda: deque(maxlen=SHOWN))


class VainPilots:
    """Of all trainers of one daemon."""

    def __init__(self) -> None:
        self._usage: dict[str, _Usage] = {}

    def ended(
        self, record: TrainerRecord, pilot_id: str, node: str, requested_s: float, how: str
    ) -> str:
        """Record the end of a pilot of a trainer; return what to say of it, "": nothing yet.

        Pilots that one plan requests beyond n_min count as n_min: many may go at once.
        """
        if record.state.is_final or self.has_stepped(record):
            self._usage.pop(record.trainer_id, None)
        if record.state.is_final:
            return ""
        usage = self._usage.setdefault(record.trainer_id, _Usage(step=record.progress.step))
        usage.step = min(usage.step, record.progress.step)  # less after a loss of all nodes
        usage.by_plan[int(requested_s)] += 1
        usage.latest.append(f"{pilot_id} on {node}: {how or 'it ended.'}")
        n_min = record.spec.n_min
        if sum(min(n_min, count) for count in usage.by_plan.values()) < TIMES * n_min:
            return ""
        return (
            f"BFT-1311: It used {usage.by_plan.total()} pilots without a step, so requests for it"
            f" pause. The latest: {' '.join(usage.latest)} See 'bftrainer logs"
            f" {record.trainer_id}', and in the state directory pilots/ID/ of these."
        )

    def has_stepped(self, record: TrainerRecord) -> bool:
        """Return whether a trainer has made a step since its pilots are counted."""
        usage = self._usage.get(record.trainer_id)
        return usage is not None and record.progress.step > usage.step


class MutePilots:
    """The pilots of one user in a row whose agents never spoke."""

    def __init__(self) -> None:
        self.count = 0
        self._latest: deque[str] = deque(maxlen=IN_A_ROW)

    def ended(self, pilot: PilotRecord, by: EndedBy | None, how: str, where: str) -> str:
        """Record the end of a pilot whose agent never spoke; return what to say of it, "": nothing.

        ``by``: who ended it, None: we, for the reason in its record. ``how``: in the batch system's
        words.
        """
        if by is None and not pilot.reason.startswith(DID_NOT_CONNECT):
            return ""  # nobody wanted it any more
        if by not in (None, EndedBy.ITSELF, EndedBy.UNKNOWN):
            return ""
        if by is None:
            how = pilot.reason
        self.count += 1
        self._latest.append(f"{pilot.pilot_id} on {pilot.node}: {how or 'it ended.'}")
        if self.count < IN_A_ROW:
            return ""
        return (
            f"BFT-1331: {self.count} pilots in a row ended before their agent spoke, so requests"
            f" pause. The latest: {' '.join(self._latest)} {where}"
        )


class LateAgents:
    """Of one daemon."""

    def __init__(self, pilots: PilotBook, agents: AgentBook, clock: Callable[[], float]) -> None:
        self._pilots, self._agents, self._clock = pilots, agents, clock
        self._is_said = False
        self.woke_s = -math.inf  # agents could not connect before

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
            and now_s - max(pilot.start_s, self.woke_s) >= LATE_S
        }

    def look(self) -> None:
        """Log the first such pilot, and again after an agent has connected."""
        if self._agents.connected:
            self._is_said = False
        elif not self._is_said and (late := self.by_node()):
            LOG.warning("BFT-1314: %s %s", " ".join(list(late.values())[:3]), HINT)
            self._is_said = True
