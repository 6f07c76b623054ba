"""One generation's process groups: connected while the script trains, and aborted.

The torch back end blocks in ways nothing can interrupt (connecting to a dead member, a
collective with a hung one). So whatever may hang runs in a side thread or is waited for in
slices, and is abandoned when a newer ``Commit`` arrives; the next group has fresh sockets, a
fresh key in a fresh store, and fresh buffers. Used by ``membership``, ``buckets`` and
``transfer``.

``FormingGroups`` starts to form a group when the control thread receives a ``Commit``;
``membership`` takes it at the switch, when it is usually connected. A group that is no longer
wanted is dropped when it is complete, because nothing can interrupt it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch._C._distributed_c10d import HashStore, PrefixStore, ProcessGroupGloo, Store

from bftrainer.elastic import device
from bftrainer.elastic.agreement import Attempt, Meeting, attempt_all, choice_of
from bftrainer.elastic.backend_choice import NCCL, BackendChoice, BackendOffer
from bftrainer.elastic.collective import (
    GROUP_TIMEOUT_S,
    LEFT_BEHIND,
    AbandonableCall,
    Broken,
    Collective,
    Gloo,
    in_side_thread,
    settle,
)
from bftrainer.elastic.control import Control, Key, key_of
from bftrainer.elastic.device import DeviceCollective
from bftrainer.elastic.protocol import Commit, place_in
from bftrainer.elastic.store import StoreClient


class TorchStore(Store):
    """Implements what a process group uses: ``set``, ``get`` and ``wait``."""

    def __init__(self, client: StoreClient) -> None:
        super().__init__()
        self._client = client

    def set(self, key: str, value: bytes | str) -> None:
        """Set a value."""
        self._client.set(key, value)

    def get(self, key: str) -> bytes:
        """Return a value; blocks until a member has set it."""
        return self._client.get(key)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are set."""
        if timeout is not None:
            self._client.limit(timeout.total_seconds())
        for key in keys:
            self._client.get(key)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


__all__ = ["LEFT_BEHIND", "AbandonableCall", "Broken", "in_side_thread", "settle"]


def new_process_group(store: Store, rank: int, size: int, address: str) -> Any:
    """Make the gloo process group that every generation has."""
    gloo: Any = ProcessGroupGloo  # its type stubs know neither options nor collectives
    options = gloo._Options()  # noqa: SLF001 - the only way to set the address
    options._timeout = timedelta(seconds=GROUP_TIMEOUT_S)  # noqa: SLF001
    options._devices = [gloo.create_device(hostname=address)]  # noqa: SLF001
    options._threads = 2  # noqa: SLF001
    return gloo(store, rank, size, options)


class Group:
    """The process groups of one generation and attempt.

    ``control`` carries what is in host memory: votes, member status, and with gloo everything
    else. ``data`` carries device tensors, if the members agreed on NCCL.
    """

    def __init__(
        self,
        pg: Any,
        store: Any,
        rank: int,
        size: int,
        data: DeviceCollective | None = None,
        choice: BackendChoice = BackendChoice(),  # noqa: B008 - frozen
    ) -> None:
        self.control = Gloo(pg)
        self.data = data
        self.choice = choice
        self.store = store
        self.rank = rank
        self.size = size

    @property
    def pg(self) -> Any:
        """Gloo's process group."""
        return self.control.pg

    def carrier_of(self, tensor: torch.Tensor) -> Collective:
        """Return the back end that carries this tensor."""
        if self.data is not None and device.is_on_device(tensor):
            return self.data
        return self.control

    def drop(self) -> None:
        """Close the sockets without waiting: joining their threads takes up to 80 ms."""
        self.control.close()
        if self.data is not None:
            self.data.close()
        self.store.close()
        self.store = None

    def is_gone(self, within_s: float) -> bool:
        """Return whether its threads have ended, so that no collective writes any more."""
        return self.control.is_gone(within_s) and (self.data is None or self.data.is_gone(within_s))


def build(
    commit: Commit,
    rank: int,
    address: str,
    offer: BackendOffer = BackendOffer(),  # noqa: B008 - frozen
    per_node: int = 1,
) -> Group:
    """Connect to all members of a commit; blocks, so ``FormingGroups`` calls it in a thread.

    Raises:
        ElasticError: BFT-1414 when NCCL is demanded and cannot be used.
        RuntimeError: a member, or the store, cannot be reached.
    """
    client = StoreClient(commit.store_host, commit.store_port, commit.token, GROUP_TIMEOUT_S)
    store = TorchStore(client)
    prefix = f"{commit.generation}.{commit.attempt}.{commit.token}"
    size = len(commit.members) * per_node
    meeting = Meeting(
        host=commit.store_host,
        port=commit.store_port,
        token=commit.token,
        prefix=prefix,
        rank=rank,
        size=size,
    )
    try:
        pg = new_process_group(PrefixStore(prefix, store), rank, size, address)
        choice, data = choice_of(meeting, client, offer), None
        if choice.backend == NCCL:
            limit_s = device.HURRIED_S if commit.abandon else device.PROBE_S
            connect = partial(connect_device, store, meeting, offer)
            attempt = Attempt(meeting, connect, limit_s)
            choice = attempt_all(attempt, meeting, choice)
            data = attempt.collective
    except BaseException:
        store.close()
        raise
    return Group(pg, store, rank, size, data, choice)


def connect_device(store: TorchStore, meeting: Meeting, offer: BackendOffer) -> DeviceCollective:
    """Connect and probe NCCL."""
    made = device.new_nccl(
        PrefixStore(f"{meeting.prefix}/nccl", store),
        meeting.rank,
        meeting.size,
        torch.device(offer.place),
    )
    try:
        device.probe(made, meeting.size)
    except BaseException:
        made.close()
        raise
    return made


def rehearse(address: str) -> None:
    """Form a group of one, to warm up the code that a first group needs."""
    pg = new_process_group(HashStore(), 0, 1, address)
    pg.allreduce([torch.zeros(1)]).wait()


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
                    lambda: build(commit, rank, address, self._offer, per_node),
                )

    def is_slow(self, commit: Commit) -> bool:
        """Return whether the group of ``commit`` is still forming, and may take seconds.

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
