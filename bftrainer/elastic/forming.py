"""Connects the process group of a generation while the script trains on.

A ``Commit`` comes in as soon as the control thread hears of it; its group goes out to
``membership`` at the switch, by then usually connected. What was begun and is not
wanted any more is dropped once it is done: nothing can interrupt it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from bftrainer.elastic import group as groups
from bftrainer.elastic.choosing import BackendOffer
from bftrainer.elastic.control import Control, Key, key_of
from bftrainer.elastic.group import AbandonableCall, Broken, Group
from bftrainer.elastic.protocol import Commit
from bftrainer.elastic.rank import place_in


class FormingGroups:
    """Groups under way, by commit; shared by the control thread and the training loop."""

    def __init__(self, control: Control, offer: BackendOffer = BackendOffer()) -> None:  # noqa: B008 - frozen
        self._control = control
        self._offer = offer
        self._lock = threading.Lock()
        self._tasks: dict[Key, AbandonableCall[Group]] = {}
        self._begun: set[Key] = set()  # also those taken: a second group would confuse peers
        control.on_commit = self.hear

    def hear(self, commit: Commit) -> None:
        """Begin to connect to the other members of a commit, once.

        The training loop may learn of a commit and take its group before the control
        thread, which announced it, comes to this.
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
        """Whether the group of ``commit`` is still forming, and that may take seconds.

        Sockets are connected while the members wait; a communicator of GPUs is not.
        """
        with self._lock:
            task = self._tasks.get(key_of(commit))
        return bool(self._offer.device) and task is not None and not task.is_done

    def take(self, commit: Commit, abandoned: Callable[[], bool]) -> Group | Broken:
        """Wait for the group of ``commit``, in which this worker is not alone."""
        self.hear(commit)
        with self._lock:
            task = self._tasks.pop(key_of(commit))
        outcome = task.wait(abandoned)
        if isinstance(outcome, Broken):
            task.forgo(Group.drop)
        return outcome

    def forget(self, before: Key) -> None:
        """Drop what was begun for earlier commits than this one: nobody enters them now."""
        with self._lock:
            stale = [self._tasks.pop(key) for key in sorted(self._tasks) if key < before]
            self._begun = {key for key in self._begun if key >= before}
        for task in stale:
            task.forgo(Group.drop)
