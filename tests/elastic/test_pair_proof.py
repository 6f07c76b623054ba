"""Strangers in the place of a member: gloo takes whoever connects first, the proof does not.

Rank 1 has the greater address, so gloo lets rank 0 listen and rank 1 connect: a stranger that is
at rank 0's port before rank 1 has its place.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore, PrefixStore

from bftrainer.elastic.network import group
from bftrainer.elastic.network.collective import settle
from bftrainer.elastic.network.group import Group
from bftrainer.elastic.process.store import StoreServer
from bftrainer.ground.protocol import Commit
from tests.support.pairs import commit_of
from tests.support.port_stranger import PAIRS, PREAMBLE, RECV_READY, SEND, SEND_READY, Stranger

ADDRESSES = ("127.0.0.1", "127.0.0.2")


def begin(commit: Commit, rank: int) -> Future[Group]:
    """Form the group of ``commit`` as this rank, in a thread."""
    outcome: Future[Group] = Future()

    def form() -> None:
        try:
            outcome.set_result(group.build(commit, rank, ADDRESSES[rank]))
        except RuntimeError as problem:
            outcome.set_exception(RuntimeError(str(problem)))  # without frames that hold the group

    threading.Thread(target=form, daemon=True).start()
    return outcome


def forms(commit: Commit) -> None:
    """Form the group without a stranger; what it sums is right."""
    outcomes = [begin(commit, rank) for rank in (0, 1)]
    groups = [outcome.result(60) for outcome in outcomes]
    tensors = [torch.ones(3), 2 * torch.ones(3)]
    works = [g.pg.allreduce([t]) for g, t in zip(groups, tensors, strict=True)]
    assert [settle(work, lambda: False) for work in works] == [None, None]
    assert [t.tolist() for t in tensors] == [[3.0] * 3] * 2
    for one in groups:
        one.drop()


def in_the_place_of_rank_1(
    commit: Commit, play: Callable[[socket.socket], object], monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Form a group where a stranger is there before rank 1; return what became of both."""
    connect, has_come = group.new_process_group, threading.Event()

    def after_the_stranger(store: Any, rank: int, size: int, address: str) -> Any:
        assert rank == 0 or has_come.wait(60)
        return connect(store, rank, size, address)

    published: Future[bytes] = Future()
    write = group.TorchStore.set

    def tell(store: Any, key: str, value: bytes | str) -> None:
        if not published.done() and isinstance(value, bytes):
            published.set_result(value)
        write(store, key, value)

    with monkeypatch.context() as patched, contextlib.ExitStack() as stack:
        patched.setattr(group, "new_process_group", after_the_stranger)
        patched.setattr(group.TorchStore, "set", tell)
        outcomes = [begin(commit, rank) for rank in (0, 1)]
        port = port_in(published.result(60))
        for pair in range(PAIRS):
            peer = stack.enter_context(socket.create_connection((ADDRESSES[0], port), 60))
            peer.sendall(pair.to_bytes(8, "little"))
            threading.Thread(target=_played, args=(peer, play), daemon=True).start()
        has_come.set()
        said = []
        for outcome in outcomes:
            with pytest.raises(RuntimeError) as problem:
                outcome.result(60)
            said.append(str(problem.value))
    return said


def port_in(published: bytes) -> int:
    """Return the port of rank 0 in what gloo publishes: a ``sockaddr_in`` is part of it."""
    address = socket.AF_INET.to_bytes(2, "little")
    place = published.index(socket.inet_aton(ADDRESSES[0])) - 2
    assert published[place - 2 : place] == address
    return int.from_bytes(published[place : place + 2], "big")


def _played(peer: socket.socket, play: Callable[[socket.socket], object]) -> None:
    with contextlib.suppress(OSError, EOFError):
        play(peer)
        while peer.recv(1 << 16):
            pass


def as_member(peer: socket.socket) -> None:
    """Answer as a member would that does not know the token."""
    stranger = Stranger(1)
    while True:
        stranger.answer(peer)


def as_mirror(peer: socket.socket) -> None:
    """Say what the victim says: its own proof."""
    heard: dict[int, bytes] = {}
    asked: dict[int, int] = {}
    while True:
        total, kind, slot, _, length, _ = PREAMBLE.unpack(_read(peer, PREAMBLE.size))
        if kind == SEND_READY:
            peer.sendall(PREAMBLE.pack(PREAMBLE.size, RECV_READY, slot, 0, length, 0))
        elif kind == RECV_READY:
            asked[slot] = length
        elif kind == SEND:
            heard[slot] = _read(peer, total - PREAMBLE.size)
        for known in heard.keys() & asked.keys():
            size = PREAMBLE.size + asked.pop(known)
            peer.sendall(PREAMBLE.pack(size, SEND, known, 0, size - PREAMBLE.size, 0))
            peer.sendall(heard[known])


def _read(peer: socket.socket, length: int) -> bytes:
    data = peer.recv(length, socket.MSG_WAITALL)
    if len(data) < length:
        raise EOFError
    return data


@pytest.mark.parametrize("play", [as_member, as_mirror])
def test_a_stranger_that_plays_the_member_is_refused(
    store: StoreServer, play: Callable[[socket.socket], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = commit_of(store, 1, "a", "b")
    first, _ = in_the_place_of_rank_1(commit, play, monkeypatch)
    assert first == ("BFT-1344: a stranger connected to the port of rank 0 in place of rank 1")
    forms(replace(commit, attempt=2))


def silent(_peer: socket.socket) -> None:
    """Say nothing."""


def gone(peer: socket.socket) -> None:
    """Hang up at once."""
    peer.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("play", [silent, gone])
def test_a_stranger_that_says_nothing_costs_an_attempt(
    store: StoreServer, play: Callable[[socket.socket], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = commit_of(store, 1, "a", "b")
    with monkeypatch.context() as patched:
        patched.setattr(group, "PROOF_S", 0.5)
        in_the_place_of_rank_1(commit, play, monkeypatch)
    forms(replace(commit, attempt=2))


@pytest.fixture
def pair() -> Iterator[list[Any]]:
    """Two connected process groups, which nobody has proven."""
    meeting, made = HashStore(), dict[int, Any]()

    def connect(rank: int) -> None:
        made[rank] = group.new_process_group(meeting, rank, 2, ADDRESSES[rank])

    threads = [threading.Thread(target=connect, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    yield [made[0], made[1]]
    for pg in made.values():
        pg.abort()


def proven(
    pair: list[Any],
    tokens: tuple[str, str],
    nonces: Sequence[Sequence[bytes]] = ((b"a", b"b"),) * 2,
) -> list[str]:
    """Return what the proof of each side came to; "": it succeeded."""
    said = ["", ""]

    def prove(side: int) -> None:
        try:
            group.prove_pairs(pair[side], side, nonces[side], tokens[side])
        except RuntimeError as problem:
            said[side] = str(problem)

    threads = [threading.Thread(target=prove, args=(side,)) for side in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return said


def test_members_of_one_generation_prove_themselves(pair: list[Any]) -> None:
    assert proven(pair, ("one", "one")) == ["", ""]


def test_a_member_of_another_generation_is_a_stranger_to_both(pair: list[Any]) -> None:
    assert all("BFT-1344" in text for text in proven(pair, ("one", "earlier")))


def test_what_a_member_said_once_proves_nothing_the_next_time(pair: list[Any]) -> None:
    """Somebody repeats the proof that rank 1 gave for an earlier nonce of rank 0."""
    said = proven(pair, ("one", "one"), ((b"new", b"b"), (b"a", b"b")))
    assert "BFT-1344" in said[0]


def test_nonces_are_fresh(store: StoreServer) -> None:
    commit, nonces = commit_of(store, 1, "a"), set[bytes]()
    for attempt in range(3):
        meeting = group.Meeting(commit=replace(commit, attempt=attempt), rank=0, size=1)
        client, (nonce,) = meeting.gather()
        nonces.add(nonce)
        client.close()
    assert {len(nonce) for nonce in nonces} == {group.NONCE_BYTES}
    assert len(nonces) == 3


def test_a_member_of_the_release_before_is_met_without_a_proof(store: StoreServer) -> None:
    commit = commit_of(store, 1, "a", "b")
    first = begin(commit, 0)
    meeting = group.Meeting(commit=commit, rank=1, size=2)
    place = group.TorchStore(meeting.connect())
    old = group.new_process_group(PrefixStore(meeting.prefix, place), 1, 2, ADDRESSES[1])
    new = first.result(60)
    tensors = [torch.ones(3), 2 * torch.ones(3)]
    works = [pg.allreduce([t]) for pg, t in zip((new.pg, old), tensors, strict=True)]
    assert [settle(work, lambda: False) for work in works] == [None, None]
    assert [t.tolist() for t in tensors] == [[3.0] * 3] * 2
    new.drop()
    old.abort()
    place.close()
