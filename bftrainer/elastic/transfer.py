"""State from the member that has it to those that lack it, down a chain.

Every link of the chain passes each piece on as soon as it has it, so that many
joiners take little longer than one. Large tensors go straight from and into their
own memory, small ones packed. The calls block and are made in a side thread by
``membership``; a chain that is abandoned leaves its receiver without a state.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bftrainer.elastic import codec
from bftrainer.elastic.group import Group

DIRECT_BYTES = 1 << 20  # from here a tensor travels without a copy
PIECE_BYTES = 32 << 20  # smaller pieces cost more switches than they overlap


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """This member's place in the chain."""

    group: Group
    before: int | None  # rank we receive from; None for the source
    after: int | None  # rank we send to; None for the last


def link_of(group: Group, chain: Sequence[int]) -> Link | None:
    """Return this member's place in ``chain``, None when it is not part of it."""
    if group.rank not in chain:
        return None
    i = list(chain).index(group.rank)
    return Link(
        group=group,
        before=chain[i - 1] if i > 0 else None,
        after=chain[i + 1] if i + 1 < len(chain) else None,
    )


def send(link: Link, structure: Any, tensors: Sequence[torch.Tensor], known: int) -> None:
    """Send a structure and its tensors; receivers have the first ``known`` of them."""
    header = json.dumps([structure, codec.describe(tensors[known:])]).encode()
    body = torch.frombuffer(bytearray(header), dtype=torch.uint8)
    _pass_on(link, [torch.tensor([len(header)])])
    _pass_on(link, [body])
    ready = [t.contiguous().cpu() for t in tensors]
    _pass_on(link, [piece for wire in _wires(ready) for piece in wire.pieces()])


def receive(
    link: Link, into: Sequence[torch.Tensor], spare: Sequence[torch.Tensor] = ()
) -> tuple[Any, list[torch.Tensor]]:
    """Receive into the known tensors; return the structure and the other tensors.

    ``spare`` tensors may become such others, if they fit.
    """
    length = torch.zeros(1, dtype=torch.long)
    _pass_on(link, [length])
    body = torch.empty(int(length), dtype=torch.uint8)
    _pass_on(link, [body])
    structure, descriptions = json.loads(bytes(body.tolist()))
    rest = codec.allocate(descriptions, spare)
    landing = [t if _is_direct(t) else torch.empty_like(t, device="cpu") for t in into]
    landing = [t if t.is_contiguous() else t.contiguous() for t in landing]
    wires = list(_wires([*landing, *rest]))
    _pass_on(link, [piece for wire in wires for piece in wire.pieces()])
    for wire in wires:
        wire.unpack()
    for target, landed in zip(into, landing, strict=True):
        if target is not landed:
            target.copy_(landed)
    return structure, rest


def _is_direct(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and tensor.device.type == "cpu"


def _pass_on(link: Link, pieces: Sequence[torch.Tensor]) -> None:
    """Receive each piece from before (unless we are the source), send it after."""
    pg = link.group.pg
    # Posted in advance: a piece can land while the one before it is sent on.
    incoming = (
        [] if link.before is None else [pg.recv([p], link.before, i) for i, p in enumerate(pieces)]
    )
    outgoing = []
    for i, piece in enumerate(pieces):
        if incoming:
            incoming[i].wait()
        if link.after is not None:
            outgoing.append(pg.send([piece], link.after, i))
    for work in outgoing:
        work.wait()


class _Wire:
    """One large tensor, or several small ones packed, as bytes on the wire."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors
        self.flats = [t.reshape(-1).view(torch.uint8) for t in tensors]
        self.bytes = self.flats[0] if len(tensors) == 1 else torch.cat(self.flats)

    def pieces(self) -> Sequence[torch.Tensor]:
        total = self.bytes.numel()
        return [self.bytes[i : i + PIECE_BYTES] for i in range(0, total, PIECE_BYTES)]

    def unpack(self) -> None:
        if len(self.tensors) > 1:
            offset = 0
            for flat in self.flats:
                flat.copy_(self.bytes[offset : offset + flat.numel()])
                offset += flat.numel()


def _wires(tensors: Sequence[torch.Tensor]) -> Iterator[_Wire]:
    """Group tensors the same way on both ends: by their sizes alone."""
    pack: list[torch.Tensor] = []
    pack_bytes = 0
    for tensor in tensors:
        size_bytes = tensor.numel() * tensor.element_size()
        if size_bytes >= DIRECT_BYTES:
            yield _Wire([tensor])
        elif size_bytes:
            pack.append(tensor)
            pack_bytes += size_bytes
        if pack_bytes >= PIECE_BYTES:
            yield _Wire(pack)
            pack, pack_bytes = [], 0
    if pack:
        yield _Wire(pack)
