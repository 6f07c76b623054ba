"""Polls the cluster, the daemon and its journal: keeps samples, makes a ``Frame`` of each."""

from __future__ import annotations

import time
from dataclasses import dataclass

from bftrainer.demo.journal_facts import JournalFacts, collect
from bftrainer.demo.local_site import LocalSite
from bftrainer.demo.samples import Span, Timeline
from bftrainer.errors import BftError
from bftrainer.journal.records import JournalEntry
from bftrainer.local.adapter import LocalBatchSystem
from bftrainer.model.trainer import TrainerState
from bftrainer.model.views import StatusView


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What is shown at an instant."""

    elapsed_s: float
    status: StatusView
    nodes: tuple[Span, ...]  # as they are now
    facts: JournalFacts

    @property
    def is_over(self) -> bool:
        """Whether every trainer has ended."""
        return all(t.record.state.is_final for t in self.status.trainers)


class Watch:
    """Polls, and accumulates samples and journal entries."""

    def __init__(self, site: LocalSite) -> None:
        self._site = site
        self._system = LocalBatchSystem(site.server.client)
        self.started_s = time.time()
        self.timeline = Timeline()
        self.facts = JournalFacts()
        self._entries: list[JournalEntry] = []

    def look(self) -> Frame:
        """Poll once.

        Raises:
            BftError: the daemon does not answer, or a trainer has failed (BFT-1024).
        """
        status = self._site.client.status()
        self.timeline.add(self._system.snapshot(), status.trainers)
        after_seq = self._entries[-1].seq if self._entries else 0
        if new := self._site.sidecar.entries(after_seq=after_seq):
            self._entries += new
            self.facts = collect(self._entries)
        for view in status.trainers:
            if view.record.state is TrainerState.FAILED:
                raise BftError(
                    "BFT-1024",
                    f"The trainer {view.record.spec.name} failed: {view.record.reason}",
                    "Read the logs in the directory named below.",
                )
        return Frame(
            elapsed_s=time.time() - self.started_s,
            status=status,
            nodes=self.timeline.now(),
            facts=self.facts,
        )
