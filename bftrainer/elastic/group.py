"""One generation's process groups, built and used so that they can be abandoned at any moment.

The torch back end blocks in ways nothing can interrupt (connecting to a dead member, a
collective with a hung one). So whatever may hang runs in a side thread or is waited for in
slices, and is abandoned when a newer ``Commit`` arrives; the next group has fresh sockets, a
fresh key in a fresh store, and fresh buffers. Used by ``membership``, ``buckets`` and
``transfer``.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch._C._distributed_c10d import HashStore, PrefixStore, ProcessGroupGloo, Store

from bftrainer.elastic import device
from bftrainer.elastic.abandonable import (
    GROUP_TIMEOUT_S,
    LEFT_BEHIND,
    AbandonableCall,
    Broken,
    in_side_thread,
)
from bftrainer.elastic.agreement import Attempt, Meeting, attempt_all, choice_of
from bftrainer.elastic.backend_choice import NCCL, BackendChoice, BackendOffer
from bftrainer.elastic.collective import Collective, Gloo, settle
from bftrainer.elastic.device import DeviceCollective
from bftrainer.elastic.protocol import Commit
from bftrainer.elastic.store import StoreClient
from bftrainer.elastic.torch_store import TorchStore

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
        """Whether its threads have ended, so that no collective writes any more."""
        return self.control.is_gone(within_s) and (self.data is None or self.data.is_gone(within_s))


def build(
    commit: Commit,
    rank: int,
    address: str,
    offer: BackendOffer = BackendOffer(),  # noqa: B008 - frozen
    per_node: int = 1,
) -> Group:
    """Connect to all members of a commit; blocks, so ``forming`` calls it in a thread.

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
