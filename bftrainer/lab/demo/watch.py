"""Polls the cluster and the daemon, and keeps what they said."""

from __future__ import annotations

import time

from bftrainer.lab.demo.samples import Timeline
from bftrainer.lab.demo.site import DemoSite


class Watch:
    """What is known at an instant, after ``look``."""

    def __init__(self, site: DemoSite) -> None:
        self._site = site
        self.started_s = time.time()
        self.timeline = Timeline()
        self.look()

    def look(self) -> None:
        """Poll once.

        Raises:
            BftError: the daemon does not answer.
        """
        self.status = self._site.client.status()
        self.timeline.add(self._site.look(), self.status.trainers)
        self.elapsed_s = time.time() - self.started_s

    @property
    def is_over(self) -> bool:
        """Whether every trainer has ended."""
        states = [view.record.state for view in self.status.trainers]
        return bool(states) and all(state.is_final for state in states)
