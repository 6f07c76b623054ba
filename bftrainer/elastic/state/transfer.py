"""Sends the state from the member that has it to those that lack it.

Through host memory it travels down a chain: every member forwards each piece as soon as it
has it, so many joiners take little longer than one. Large tensors are sent from and received
into their own memory, small ones packed. With gloo device tensors travel down the chain through a
few buffers in host memory, so that one piece is copied while another is sent; with NCCL they are
broadcast from device to device, which all members take part in.
The calls block; ``state_transfer`` makes them in a side thread. After an abandoned transfer
the receiver has no state.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate, pairwise
from typing import Any

import torch

from bftrainer.elastic.checkpoints import checkpoint
from bftrainer.elastic.network import device
from bftrainer.elastic.network.collective import GROUP_TIMEOUT_S
from bftrainer.elastic.network.device import DeviceCollective
from bftrainer.elastic.network.group import Group

PIECE_BYTES = 32 << 20  # smaller pieces: more overhead than gain by overlap
SLOTS = 4  # pieces in host memory at a time
DIRECT_BYTES = 1 << 20  # tensors of this size or more are sent without packing


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """This member's place in the chain."""

    group: Group
    source: int  # rank that has the state
    before: int | None  # rank we receive from; None for the source
    after: int | None  # rank we send to; None for the last


def link_of(group: Group, chain: Sequence[int]) -> Link | None:
    """Return this member's place in ``chain``, None if it is not in it."""
    if group.rank not in chain:
        return None
    place = list(chain).index(group.rank)
    with_ends = [None, *chain, None]
    return Link(group=group, source=chain[0], before=with_ends[place], after=with_ends[place + 2])


def send(link: Link, structure: Any, tensors: Sequence[torch.Tensor], known: int) -> None:
    """Send a structure and its tensors; receivers know the shapes of the first ``known``."""
    apart = [(i, t.nbytes) for i, t in enumerate(tensors) if device.is_on_device(t)]
    header = json.dumps([structure, checkpoint.describe(tensors[known:]), apart]).encode()
    body = torch.frombuffer(bytearray(header), dtype=torch.uint8)
    _announce(link, torch.tensor([len(header)]))
    _announce(link, body)
    _move(link, [t.contiguous() for t in tensors], dict(apart))


def receive(
    link: Link, into: Sequence[torch.Tensor], spare: Sequence[torch.Tensor] = ()
) -> tuple[Any, list[torch.Tensor]]:
    """Receive into the known tensors; return the structure and the remaining tensors.

    Memory for the remaining ones is taken from ``spare`` where type and shape fit.
    """
    structure, descriptions, apart = _receive_header(link)
    apart = dict(apart)
    # A tensor that the source has on a device belongs on our device.
    if link.group.data is None:
        own_device = next((t.device for t in into if device.is_on_device(t)), None)
    else:
        own_device = link.group.data.device
    remaining = checkpoint.allocate(descriptions, spare)
    if own_device is not None:
        for i, tensor in enumerate(remaining):
            if len(into) + i in apart:
                remaining[i] = torch.empty_like(tensor, device=own_device)
    landing = [_landing_of(target, is_apart=i in apart) for i, target in enumerate(into)]
    _move(link, [*landing, *remaining], apart)
    for target, landed in zip(into, landing, strict=True):
        if target is not landed:
            target.copy_(landed)
    return structure, remaining


def _landing_of(target: torch.Tensor, *, is_apart: bool) -> torch.Tensor:
    """Return memory to receive a tensor into: its own, or the host's if the source has it there."""
    if not is_apart and device.is_on_device(target):
        target = torch.empty_like(target, device="cpu")
    return target.contiguous()


def stand_by(group: Group, source: int) -> None:
    """Take part in a broadcast whose content this member already has."""
    if group.data is None:
        return
    link = Link(group=group, source=source, before=None, after=None)
    _, _, apart = _receive_header(link)
    sizes = [size_bytes for _, size_bytes in apart]
    lengths: list[int] = []
    for pack in packs_of(sizes):
        lengths += _lengths(sum(sizes[i] for i in pack))
    longest = max(lengths, default=0)
    scratch = torch.empty(longest, dtype=torch.uint8, device=group.data.device)  # never read
    broadcast(group, group.data, source, [scratch[:length] for length in lengths])


def _receive_header(link: Link) -> list[Any]:
    length = torch.zeros(1, dtype=torch.long)
    _announce(link, length)
    body = torch.empty(int(length), dtype=torch.uint8)
    _announce(link, body)
    header: list[Any] = json.loads(bytes(body.tolist()))
    return header


def _announce(link: Link, words: torch.Tensor) -> None:
    """Send or forward part of the header: by broadcast where all members take part."""
    if link.group.data is None:
        _pass_on(link, [words])
    else:
        link.group.control.broadcast(words, link.source).wait()


def _move(link: Link, tensors: Sequence[torch.Tensor], apart: Mapping[int, int]) -> None:
    """Send or receive the tensors; ``apart`` are those on a device of the source."""
    wires = _wires([tensor for i, tensor in enumerate(tensors) if i not in apart])
    _pass_on(link, _pieces_of(wires))
    if apart or link.group.data is not None:
        staged = _wires([tensors[i] for i in sorted(apart)])
        pieces = _pieces_of(staged)
        if link.group.data is None:
            stage(link, pieces)
        else:
            broadcast(link.group, link.group.data, link.source, pieces)
        wires += staged
    if link.before is not None:
        for wire in wires:
            wire.unpack()


def _pass_on(link: Link, pieces: Sequence[torch.Tensor]) -> None:
    """Receive each piece from the previous member (unless we are the source), forward it."""
    pg = link.group.pg
    # Posted in advance: a piece can arrive while the previous one is forwarded.
    incoming: list[Any] = []
    if link.before is not None:
        incoming = [pg.recv([piece], link.before, i) for i, piece in enumerate(pieces)]
    outgoing = []
    for i, piece in enumerate(pieces):
        if incoming:
            incoming[i].wait()
        if link.after is not None:
            outgoing.append(pg.send([piece], link.after, i))
    for work in outgoing:
        work.wait()


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
    slots = [device.host_memory((longest,), like=pieces[0]) for _ in range(count)]
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


class _Wire:
    """One large tensor, or several small ones packed, as bytes on the wire."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors
        self.flats = [t.reshape(-1).view(torch.uint8) for t in tensors]
        self.bytes = self.flats[0]
        if len(tensors) > 1:
            self.bytes = torch.cat(self.flats)

    def pieces(self) -> Sequence[torch.Tensor]:
        ends = list(accumulate(_lengths(self.bytes.numel()), initial=0))
        return [self.bytes[start:end] for start, end in pairwise(ends)]

    def unpack(self) -> None:
        if len(self.tensors) > 1:
            offset = 0
            for flat in self.flats:
                flat.copy_(self.bytes[offset : offset + flat.numel()])
                offset += flat.numel()


def _lengths(total: int) -> list[int]:
    return [min(PIECE_BYTES, total - start) for start in range(0, total, PIECE_BYTES)]


def _wires(tensors: Sequence[torch.Tensor]) -> list[_Wire]:
    wires = []
    for pack in packs_of([tensor.nbytes for tensor in tensors]):
        members = [tensors[i] for i in pack]
        wires.append(_Wire(members))
    return wires


def _pieces_of(wires: Sequence[_Wire]) -> list[torch.Tensor]:
    pieces: list[torch.Tensor] = []
    for wire in wires:
        pieces += wire.pieces()
    return pieces


def packs_of(sizes: Sequence[int]) -> list[list[int]]:
    """Return which tensors of these sizes are packed together, alike on all members."""
    packs: list[list[int]] = []
    pack: list[int] = []
    pack_bytes = 0
    for i, size_bytes in enumerate(sizes):
        if size_bytes >= DIRECT_BYTES:
            packs.append([i])
        elif size_bytes:
            pack.append(i)
            pack_bytes += size_bytes
        if pack_bytes >= PIECE_BYTES:
            packs.append(pack)
            pack, pack_bytes = [], 0
    if pack:
        packs.append(pack)
    return packs
