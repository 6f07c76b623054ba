"""The timeline of a daemon: fed with its decisions, read by those who wait for something new."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from bftrainer.api.documents import CodecError, document, parse, view_of
from bftrainer.ground.fence import write_whole
from bftrainer.ground.regular_file import read_file
from bftrainer.model.decision import DecisionInput, Plan
from bftrainer.model.progress import CurvesNote
from bftrainer.model.study import Seen
from bftrainer.model.timeline import NodeUses, TimelineView, UsesNote
from bftrainer.model.trainer import TrainerRecord

Note = Callable[[UsesNote], object]
NoteCurves = Callable[[CurvesNote], object]
LOG = logging.getLogger("bftrainer.daemon")
KIND: Final = "uses"  # of the journal's entries
CURVES: Final = "curves"  # likewise, of trainers
NOTE_EVERY_S: Final = 60.0  # curves
FILE_NAME = "timeline.json"  # of an ended daemon, for the next one
_KIND, _MOST_BYTES = "timeline", 64 * 1024 * 1024


class UsesOfNodes:
    """One per daemon."""

    def __init__(
        self,
        zone: Callable[[], str | None],
        note: Note = lambda _note: None,
        note_curves: NoteCurves = lambda _note: None,
    ) -> None:
        """``note``, ``note_curves``: are given what the journal is to keep."""
        self._uses, self._waiting, self._note = NodeUses(zone=zone), asyncio.Event(), note
        self._note_curves, self._noted_s = note_curves, 0.0
        self._touched = 0
        self.incarnation = 0

    def take_over(self, file: Path, now_s: float) -> None:
        """Go on where the last daemon ended, and remove its file; else begin anew."""
        try:
            timeline = parse(read_file(file, _MOST_BYTES))
            file.unlink()
            self._uses.resume(view_of(TimelineView, _KIND, timeline), now_s)
        except FileNotFoundError:
            pass
        except (OSError, CodecError, ValueError) as problem:
            LOG.warning("the page's history begins anew: %s cannot be used: %s", file, problem)

    def keep(self, file: Path) -> None:
        """Write everything down for the next daemon."""
        text = json.dumps(document(_KIND, self._uses.timeline(self.incarnation)))
        try:
            write_whole(file, (text.encode(),))
        except OSError as problem:
            LOG.warning("the page's history is lost: cannot write %s", problem)

    def saw(self, given: DecisionInput, plan: Plan, counts: tuple[int, int] = (0, 0)) -> None:
        """Add what a decision saw; ``counts``: give-backs and preemptions of this daemon."""
        is_new = self._uses.saw(given, plan)
        if (note := self._uses.note(counts, is_new=is_new)) is not None:
            self._note(note)
        if is_new:
            self._wake()

    def look(self, touched: int, now_s: float = 0.0, records: Iterable[TrainerRecord] = ()) -> None:
        """Wake the readers if trainers' records have changed; called once a second."""
        if touched != self._touched:
            self._touched = touched
            self._uses.touch(now_s, records)
            self._wake()
            if not 0.0 <= now_s - self._noted_s < NOTE_EVERY_S:  # clocks are set back at times
                self._noted_s = now_s
                self._write_curves()

    def _write_curves(self) -> None:
        if (note := self._uses.curves_note()) is not None:
            self._note_curves(note)

    def timeline(self, seen: Seen | None) -> TimelineView:
        """Return all, or what is new to who has seen this daemon's."""
        if seen is not None and seen.incarnation == self.incarnation:
            return self._uses.timeline(self.incarnation, seen.change)
        return self._uses.timeline(self.incarnation, None)

    async def news(self, seen: Seen, limit_s: float) -> None:
        """Wait until there is something new, or the time is over."""
        if (seen.incarnation, seen.change) == (self.incarnation, self._uses.count):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._waiting.wait(), limit_s)

    def close(self, file: Path | None = None) -> None:
        """Answer all readers, and leave nothing unwritten; ``file``: as for ``keep``."""
        self._write_curves()
        self._wake()
        if file is not None:
            self.keep(file)

    def _wake(self) -> None:
        self._waiting.set()
        self._waiting = asyncio.Event()
