"""One generation's process group, built and used so that it can be left at any moment.

The torch back end blocks in ways nothing can interrupt (a full mesh towards a dead
member, a collective with a hung one). So whatever may hang runs in a side thread or is
waited for in slices, and is simply left behind when a newer ``Commit`` arrives; the
next group has fresh sockets, a fresh key in a fresh store, and fresh buffers. Used by
``membership``, ``buckets`` and ``transfer``.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import (
    BroadcastOptions,
    HashStore,
    PrefixStore,
    ProcessGroupGloo,
    Store,
)

from bftrainer.elastic.protocol import Commit
from bftrainer.elastic.side import (
    GROUP_TIMEOUT_S,
    LEFT_BEHIND,
    Broken,
    SideTask,
    in_side_thread,
)
from bftrainer.elastic.store import StoreClient
from bftrainer.elastic.torch_store import TorchStore

__all__ = ["LEFT_BEHIND", "Broken", "SideTask", "in_side_thread"]

WAIT_SLICE = timedelta(milliseconds=20)


def new_process_group(store: Store, rank: int, size: int, address: str) -> Any:
    """Make the process group of a generation: the one place that knows the back end.

    A back end for GPUs is chosen here; the rest of the runtime needs allreduce,
    broadcast, send and recv that return works.
    """
    gloo: Any = ProcessGroupGloo  # its type stubs know neither options nor collectives
    options = gloo._Options()  # noqa: SLF001 - the only way to name the address
    options._timeout = timedelta(seconds=GROUP_TIMEOUT_S)  # noqa: SLF001
    options._devices = [gloo.create_device(hostname=address)]  # noqa: SLF001
    options._threads = 2  # noqa: SLF001
    return gloo(store, rank, size, options)


class Group:
    """The process group of one generation and attempt."""

    def __init__(self, pg: Any, store: Any, rank: int, size: int) -> None:
        self.pg = pg
        self.store = store
        self.rank = rank
        self.size = size
        self._is_destroyed = threading.Event()

    def drop(self) -> None:
        """Close the sockets without waiting: joining their threads takes up to 80 ms.

        ``abort`` first: it is what lets peers that wait for us fail at once.
        """
        self.pg.abort()
        self.store.close()
        last = [self.pg, self.store]
        ghost = weakref.ref(self.pg)
        self.pg = self.store = None

        def destroy() -> None:
            last.clear()
            if ghost() is None:  # nobody else held it
                self._is_destroyed.set()

        threading.Thread(target=destroy, name="bft-drop-group", daemon=True).start()

    def is_gone(self, within_s: float) -> bool:
        """Whether its threads have ended, waiting that long: no collective writes any more."""
        return self._is_destroyed.wait(within_s)


def build(commit: Commit, rank: int, address: str) -> Group:
    """Connect to all members of a commit; blocks, so ``Forming`` has a thread for it."""
    store = TorchStore(StoreClient(commit.store_host, commit.store_port, GROUP_TIMEOUT_S))
    prefix = f"{commit.generation}.{commit.attempt}.{commit.token}"
    size = len(commit.members)
    try:
        pg = new_process_group(PrefixStore(prefix, store), rank, size, address)
    except BaseException:
        store.close()
        raise
    return Group(pg, store, rank, size)


def rehearse(address: str) -> None:
    """Touch everything a first group needs, alone."""
    pg = new_process_group(HashStore(), 0, 1, address)
    pg.allreduce([torch.zeros(1)]).wait()


def settle(work: Any, abandoned: Callable[[], bool]) -> Broken | None:
    """Wait until a collective is done; None when it succeeded.

    A wait that times out leaves the collective running, so waiting in slices costs
    nothing while it runs and lets us go as soon as ``abandoned`` says so.
    """
    while True:
        was_complete = work.is_completed()
        try:
            work.wait(WAIT_SLICE)
        except RuntimeError as problem:
            # Only the text: the traceback would keep the group's sockets open, and
            # with them the peers waiting.
            reason = str(problem).partition("\n")[0][:300]
        else:
            return None
        if was_complete:
            return Broken(reason=reason)
        if abandoned():
            return Broken(reason=LEFT_BEHIND)


def broadcast(group: Group, tensor: torch.Tensor, root: int) -> Any:
    """Start sending ``tensor`` of rank ``root`` to all; return the work."""
    options = BroadcastOptions()
    options.rootRank = root
    return group.pg.broadcast([tensor], options)
