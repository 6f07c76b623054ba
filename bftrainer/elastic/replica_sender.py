"""Keeps a copy of the state in another agent's memory while this worker is alone.

``run`` calls it at every step boundary; snapshots are taken there and sent by a thread. Their
interval follows from their cost: the pauses take at most 1 % of the training's time; within
that limit the newest copy is at most ``AGE_S`` old.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from statistics import median

from bftrainer.elastic import checkpoint, replica_transfer
from bftrainer.elastic.control import Control
from bftrainer.elastic.fence import Fence
from bftrainer.elastic.protocol import Copied, KeepCopy
from bftrainer.elastic.replica_transfer import CopyError, CopyFacts
from bftrainer.elastic.state import Counters, State
from bftrainer.elastic.state_snapshot import Snapshots, StateSnapshot

log = logging.getLogger("bftrainer.elastic")

AGE_S = 5.0  # how old the newest complete copy may get
USUAL_GAP_S = 2.5  # between two snapshots; leaves as long to send one
LEAST_GAP_S = 1.0
MAX_SHARE = 0.01  # of the training's time
AGAIN_S = 5.0  # after a refusal


def gap_after(hold_s: float, send_s: float) -> float:
    """Return the time from one snapshot to the next.

    Args:
        hold_s: recent pause of the training for a snapshot.
        send_s: from the end of the pause until the holder had it.
    """
    in_time_s = min(USUAL_GAP_S, AGE_S - 1.5 * send_s)  # the next may take half as long again
    return max(LEAST_GAP_S, in_time_s, hold_s / MAX_SHARE)


class Copier:
    """Takes and sends the copies of one run's state."""

    def __init__(self, control: Control, state: State) -> None:
        self._control = control
        self._snapshots = Snapshots(state)
        self._thread: threading.Thread | None = None
        self._next_s = 0.0
        self._holds_s: deque[float] = deque(maxlen=3)  # one may be slow by chance
        self._served: KeepCopy | None = None  # the assignment the gap belongs to

    def is_due(self, nodes: int) -> bool:
        """Whether this worker should take a copy at this boundary."""
        keep = self._control.keep
        if keep is None or not keep.port or nodes > 1 or self._control.config.local_rank:
            if self._served is not None and not self._is_busy():
                self._served = None
                self._snapshots.forget()
            return False
        is_new = keep is not self._served
        return (is_new or time.monotonic() >= self._next_s) and not self._is_busy()

    def copy_aside(self, counters: Counters, writer: Fence) -> None:
        """Copy the state now, send it to the holder in a thread."""
        keep = self._control.keep
        if keep is None:
            return
        prepare = self._snapshots.preparation(counters)
        if prepare is not None:  # memory is made in the thread, not while the training waits
            self._begin(prepare)
            return
        self._served = keep
        started_s = time.monotonic()
        snapshot = self._snapshots.take(counters)
        hold_s = time.monotonic() - started_s
        self._holds_s.append(hold_s)
        self._next_s = started_s + gap_after(median(self._holds_s), 0.0)
        facts = (counters.step, counters.samples, writer, started_s, hold_s)
        self._begin(partial(self._bring, keep, snapshot, *facts))

    def _is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _begin(self, work: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=work, name="bft-copy", daemon=True)
        self._thread.start()

    def _bring(
        self,
        keep: KeepCopy,
        snapshot: StateSnapshot,
        step: int,
        samples: int,
        writer: Fence,
        started_s: float,
        hold_s: float,
    ) -> None:
        parts = list(checkpoint.parts_of(snapshot.header, snapshot.tensors))
        facts = CopyFacts(
            trainer_id=writer.trainer_id,
            incarnation=writer.incarnation,
            generation=writer.generation,
            token=writer.token,
            step=step,
            samples=samples,
            size_bytes=sum(len(part) for part in parts),
            digest=bytes(parts[-1]).hex(),
        )
        refused = ""
        try:
            replica_transfer.put((keep.host, keep.port), keep.key, facts, parts)
        except CopyError as problem:
            refused = str(problem)
            log.warning("no copy of step %d at %s: %s", step, keep.holder, problem)
        wall_s = time.monotonic() - started_s
        gap_s = max(gap_after(median(self._holds_s), wall_s - hold_s), AGAIN_S if refused else 0.0)
        self._next_s = started_s + gap_s
        self._control.send(
            Copied(
                generation=writer.generation,
                step=step,
                samples=samples,
                holder=keep.holder,
                size_bytes=facts.size_bytes,
                hold_s=hold_s,
                wall_s=wall_s,
                gap_s=gap_s,
                refused=refused,
            )
        )
