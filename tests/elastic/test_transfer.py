"""State on its way: staged through the host, from device to device, only to who lacks it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from bftrainer.elastic.network import device
from bftrainer.elastic.network.group import Group
from bftrainer.elastic.process.store import StoreServer
from bftrainer.elastic.state import transfer
from tests.elastic.scripts import pretended
from tests.support.pairs import group_of

STRUCTURE = {"counters": [1, 2, 3]}
KNOWN = 4  # tensors that all members have


def tensors(seed: int) -> list[torch.Tensor]:
    """Return a state of large, small, empty and oddly laid out tensors."""
    torch.manual_seed(seed)
    return [
        torch.randn(700, 500),  # more than a megabyte, more than a piece
        torch.randn(64, 9).t(),
        torch.randn(33).to(torch.bfloat16),
        torch.randn(700, 500).t(),
        torch.randn(700, 500),
        torch.tensor(float(seed)),
        torch.empty(0, 3),
        torch.arange(seed, seed + 5),
        torch.randn(17, dtype=torch.float64),
    ]


def moved(
    groups: Sequence[Group], chain: Sequence[int]
) -> tuple[dict[int, Any], dict[int, list[torch.Tensor]]]:
    """Move the state of the chain's first rank; return structures, and tensors of all ranks."""
    held = {rank: tensors(rank) for rank in range(len(groups))}
    structures: dict[int, Any] = {}

    def act(group: Group) -> None:
        link = transfer.link_of(group, chain)
        own = held[group.rank]
        if link is None:
            transfer.stand_by(group, chain[0])
        elif link.before is None:
            transfer.send(link, STRUCTURE, own, known=KNOWN)
        else:
            structures[group.rank], rest = transfer.receive(link, own[:KNOWN], own[KNOWN:])
            held[group.rank] = [*own[:KNOWN], *rest]

    threads = [threading.Thread(target=act, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return structures, held


@pytest.mark.parametrize("way", ["host", "staged", "device"])
@pytest.mark.parametrize("chain", [[0, 1, 2, 3], [2, 0, 3], [3, 1]], ids=str)
def test_who_lacks_the_state_gets_it_and_nobody_else(
    store: StoreServer, monkeypatch: pytest.MonkeyPatch, way: str, chain: list[int]
) -> None:
    monkeypatch.setattr(transfer, "PIECE_BYTES", 300_000)  # several to a tensor
    offers = [pretended.NO_GPU] * 4
    if way != "host":
        monkeypatch.setattr(device, "is_on_device", pretended.is_pretended)
    if way == "device":
        monkeypatch.setattr(device, "new_nccl", pretended.over_gloo)
        offers = [pretended.offer(f"GPU {rank}") for rank in range(4)]
    groups = group_of(store, 1, offers)
    structures, held = moved(groups, chain)
    assert structures == dict.fromkeys(chain[1:], STRUCTURE)
    for rank, have in held.items():
        expected = tensors(chain[0] if rank in chain else rank)
        for mine, theirs in zip(have, expected, strict=True):
            assert mine.dtype == theirs.dtype
            assert torch.equal(mine, theirs)
    for group in groups:
        group.drop()


def test_staging_needs_a_few_buffers_whatever_the_state(
    store: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    real = device.host_memory

    def counted(shape: Sequence[int] | int, like: torch.Tensor) -> torch.Tensor:
        memory = real(shape, like)
        lengths.append(memory.nbytes)
        return memory

    monkeypatch.setattr(transfer, "PIECE_BYTES", 100_000)
    monkeypatch.setattr(device, "is_on_device", pretended.is_pretended)
    monkeypatch.setattr(device, "host_memory", counted)
    groups = group_of(store, 1, [pretended.NO_GPU] * 2)
    _, held = moved(groups, [0, 1])
    assert torch.equal(held[1][0], tensors(0)[0])
    assert lengths == [100_000] * transfer.SLOTS * 2
    for group in groups:
        group.drop()


def test_a_broadcast_that_breaks_is_no_state(
    store: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "is_on_device", pretended.is_pretended)
    monkeypatch.setattr(device, "new_nccl", pretended.over_gloo)
    groups = group_of(store, 1, [pretended.offer("GPU 0"), pretended.offer("GPU 1")])
    data = groups[0].data
    assert data is not None
    data._limit_s = 0.2  # from now on: to connect took as long as it took
    with pytest.raises(RuntimeError, match="did not end within"):
        transfer.broadcast(groups[0], data, 1, [torch.zeros(4, dtype=torch.uint8)])
    for group in groups:
        group.drop()
