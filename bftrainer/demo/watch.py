"""Polls cluster, daemon and journal: makes ``LiveFrame``s for the view and keeps samples.

Called by ``run`` a few times a second.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from bftrainer.demo.journal_facts import GiveBack, JournalFacts, collect
from bftrainer.demo.samples import NodeUse, Sample, Use, sample
from bftrainer.demo.sidecar import DaemonProcess
from bftrainer.errors import BftError
from bftrainer.journal.records import JournalEntry
from bftrainer.model.trainer import TrainerState
from bftrainer.model.views import NodeView, StatusView
from bftrainer.poll.batch_system import BatchSystem

JOURNAL_INTERVAL_S = 0.5
KEPT_KINDS = frozenset({"rescaled", "parked", "decision", "worker-failed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFrame:
    """What the view shows at an instant."""

    started_s: float
    elapsed_s: float
    total_s: float
    status: StatusView
    nodes: tuple[NodeView, ...]
    uses: Mapping[str, NodeUse]
    facts: JournalFacts
    offered_s: float  # node-seconds so far
    training_s: float

    @property
    def recent_give_backs(self) -> tuple[GiveBack, ...]:
        """The last few."""
        return self.facts.give_backs[-3:]

    def last_pause_s(self, trainer_id: str) -> float | None:
        """Pause of a trainer's latest rescale."""
        pauses = [r.pause_s for r in self.facts.rescales if r.trainer_id == trainer_id]
        return pauses[-1] if pauses else None

    def is_over(self) -> bool:
        """Whether every trainer has ended."""
        trainers = self.status.trainers
        return bool(trainers) and all(t.record.state.is_final for t in trainers)


class LiveView:
    """Polls, and accumulates samples and facts."""

    def __init__(self, daemon: DaemonProcess, system: BatchSystem, total_s: float) -> None:
        self._daemon, self._system, self._total_s = daemon, system, total_s
        self.started_s = time.time()
        self.samples: list[Sample] = []
        self._entries: list[JournalEntry] = []
        self._last_seq = 0
        self._facts = JournalFacts()
        self._read_s = 0.0
        self._offered_s = self._training_s = 0.0

    def look(self) -> LiveFrame:
        """Poll once.

        Raises:
            BftError: the daemon does not answer, or a trainer has failed (BFT-1024).
        """
        client = self._daemon.client
        status, nodes = client.status(), client.nodes()
        seen = sample(self._system.snapshot(), status.trainers)
        if seen is not None:
            self._keep(seen)
        if time.monotonic() - self._read_s >= JOURNAL_INTERVAL_S:
            self._read_journal()
        _refuse_failed(status)
        return LiveFrame(
            started_s=self.started_s,
            elapsed_s=time.time() - self.started_s,
            total_s=self._total_s,
            status=status,
            nodes=nodes,
            uses={n.node: n for n in self.samples[-1].nodes} if self.samples else {},
            facts=self._facts,
            offered_s=self._offered_s,
            training_s=self._training_s,
        )

    def _keep(self, seen: Sample) -> None:
        if self.samples:
            before = self.samples[-1]
            if seen.at_s <= before.at_s:
                return
            length_s = seen.at_s - before.at_s
            self._offered_s += length_s * sum(n.use.is_offered for n in before.nodes)
            self._training_s += length_s * sum(n.use is Use.TRAINING for n in before.nodes)
        self.samples.append(seen)

    def _read_journal(self) -> None:
        self._read_s = time.monotonic()
        new = self._daemon.entries(after_seq=self._last_seq)
        if new:
            self._last_seq = new[-1].seq
            self._entries += [e for e in new if e.kind in KEPT_KINDS]
            self._facts = collect(self._entries)

    def facts(self) -> JournalFacts:
        """Everything the journal says by now."""
        self._read_journal()
        return self._facts


def _refuse_failed(status: StatusView) -> None:
    for view in status.trainers:
        if view.record.state is TrainerState.FAILED:
            raise BftError(
                "BFT-1024",
                f"The trainer {view.record.spec.name} failed: {view.record.reason}",
                "Read the logs in the directory named below.",
            )
