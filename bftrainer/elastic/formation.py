"""Connects the process group of a generation while the script trains on.

Starts when the control thread receives a ``Commit``; ``membership`` takes the group at the
switch, when it is usually connected. A group that is no longer wanted is dropped when it is
complete, because nothing can interrupt it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from bftrainer.elastic import group as groups
from bftrainer.elastic.backend_choice import BackendOffer
from bftrainer.elastic.control import Control, Key, key_of
from bftrainer.elastic.group import AbandonableCall, Broken, Group
from bftrainer.elastic.protocol import Commit
from bftrainer.elastic.rank import place_in


class FormingGroups:
    """Forming groups by commit; shared by the control thread and the training loop."""

    def __init__(self, control: Control, offer: BackendOffer = BackendOffer()) -> None:  # noqa: B008 - frozen
        self._control = control
        self._offer = offer
        self._lock = threading.Lock()
        self._tasks: dict[Key, AbandonableCall[Group]] = {}
        self._begun: set[Key] = set()  # including those taken: a second group confuses peers
        control.on_commit = self.hear

    def hear(self, commit: Commit) -> None:
        """Begin to connect to the other members of a commit, once.

        The training loop may see a commit and take its group before the control thread,
        which received it, calls this.
        """
        config = self._control.config
        me = place_in(commit, config)
        if me is None or me.size == 1 or self._control.is_over:
            return
        rank, address, per_node = me.rank, me.address, config.local_size
        with self._lock:
            if key_of(commit) not in self._begun:
                self._begun.add(key_of(commit))
                self._tasks[key_of(commit)] = AbandonableCall(
                    self._control,
                    lambda: groups.build(commit, rank, address, self._offer, per_node),
                )

    def is_slow(self, commit: Commit) -> bool:
        """Whether the group of ``commit`` is still forming, and may take seconds.

        Members may wait while sockets connect, but not for a communicator of GPUs.
        """
        with self._lock:
            task = self._tasks.get(key_of(commit))
        return bool(self._offer.device) and task is not None and not task.is_done

    def take(self, commit: Commit, abandoned: Callable[[], bool]) -> Group | Broken:
        """Wait for the group of ``commit``, which has several members."""
        self.hear(commit)
        with self._lock:
            task = self._tasks.pop(key_of(commit))
        outcome = task.wait(abandoned)
        if isinstance(outcome, Broken):
            task.forgo(Group.drop)
        return outcome

    def forget(self, before: Key) -> None:
        """Drop the groups of earlier commits, which will not be entered."""
        with self._lock:
            stale = [self._tasks.pop(key) for key in sorted(self._tasks) if key < before]
            self._begun = {key for key in self._begun if key >= before}
        for task in stale:
            task.forgo(Group.drop)
