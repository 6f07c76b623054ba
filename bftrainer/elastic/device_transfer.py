"""Moves pieces of device memory from the member that has them to the others.

With gloo they travel down the chain through a few buffers in host memory, so that one piece is
copied while another is sent; with NCCL from device to device. Used by ``transfer``, in its side
thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch

from bftrainer.elastic.collective import GROUP_TIMEOUT_S
from bftrainer.elastic.device import DeviceCollective, host_memory
from bftrainer.elastic.group import Group

PIECE_BYTES = 32 << 20  # smaller pieces: more overhead than gain by overlap
SLOTS = 4  # pieces in host memory at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """This member's place in the chain."""

    group: Group
    source: int  # rank that has the state
    before: int | None  # rank we receive from; None for the source
    after: int | None  # rank we send to; None for the last


def move(link: Link, pieces: Sequence[torch.Tensor]) -> None:
    """Send the source's pieces to all other members of the chain."""
    data = link.group.data
    if data is None:
        stage(link, pieces)
    else:
        broadcast(link.group, data, link.source, pieces)


def broadcast(
    group: Group, data: DeviceCollective, source: int, pieces: Sequence[torch.Tensor]
) -> None:
    """Broadcast pieces from ``source``; their lengths are the same on all members.

    Returns when all members have them: until then none may leave the group.
    """
    works = [data.broadcast(piece, source) for piece in pieces]
    for work in works:
        work.wait(timedelta(seconds=GROUP_TIMEOUT_S))
    group.control.all_reduce(torch.zeros(1)).wait()


def stage(link: Link, pieces: Sequence[torch.Tensor]) -> None:
    """Receive each piece from the previous member (unless we are the source), forward it."""
    pg = link.group.pg
    longest = max((piece.numel() for piece in pieces), default=0)
    count = min(SLOTS, len(pieces))
    slots = [host_memory((longest,), like=pieces[0]) for _ in range(count)]
    incoming: dict[int, Any] = {}
    outgoing: dict[int, Any] = {}

    def await_sent(i: int) -> None:
        if work := outgoing.pop(i, None):
            work.wait()

    def expect(i: int) -> None:
        if link.before is not None and i < len(pieces):
            slot = slots[i % SLOTS][: pieces[i].numel()]
            incoming[i] = pg.recv([slot], link.before, i)

    for i in range(count):
        expect(i)
    for i, piece in enumerate(pieces):
        slot = slots[i % SLOTS][: piece.numel()]
        if link.before is None:
            await_sent(i - SLOTS)  # it used the same slot
            slot.copy_(piece)
        else:
            incoming.pop(i).wait()
        if link.after is not None:
            outgoing[i] = pg.send([slot], link.after, i)
        if link.before is not None:
            piece.copy_(slot)  # while it is being sent
            if i + SLOTS < len(pieces):
                await_sent(i)
                expect(i + SLOTS)
    for i in sorted(outgoing):
        await_sent(i)
