"""The groups of one generation of several members, all in this process."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from bftrainer.elastic.network import group
from bftrainer.elastic.network.group import Group
from bftrainer.elastic.process.store import StoreServer
from bftrainer.ground.backend_choice import BackendOffer
from bftrainer.ground.protocol import Commit, Member

HOST = "127.0.0.1"


def commit_of(store: StoreServer, generation: int, *worker_ids: str) -> Commit:
    """Return the commit of a generation of these workers; its store has heard of it."""
    token = "of this generation"  # noqa: S105 - no secret
    store.expect(token)
    return Commit(
        generation=generation,
        attempt=1,
        token=token,
        members=tuple(
            Member(worker_id=w, rank=rank, node="n", address=HOST)
            for rank, w in enumerate(worker_ids)
        ),
        store_host=HOST,
        store_port=store.port,
    )


def outcomes(
    store: StoreServer, generation: int, offers: Sequence[BackendOffer], *, abandon: bool = False
) -> list[Group | Exception]:
    """Return what came of forming the generation, by rank; ``abandon``: after a loss."""
    workers = [f"w{rank}" for rank in range(len(offers))]
    commit = replace(commit_of(store, generation, *workers), abandon=abandon)
    found: dict[int, Group | Exception] = {}

    def build(rank: int, offer: BackendOffer) -> None:
        try:
            found[rank] = group.build(commit, rank, HOST, offer)
        except Exception as problem:  # noqa: BLE001 - the test looks at it
            found[rank] = problem

    threads = [
        threading.Thread(target=build, args=(rank, offer)) for rank, offer in enumerate(offers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [found[rank] for rank in range(len(offers))]


def group_of(
    store: StoreServer, generation: int, offers: Sequence[BackendOffer], *, abandon: bool = False
) -> list[Group]:
    """Return the members' ends of a generation that has to form."""
    formed = outcomes(store, generation, offers, abandon=abandon)
    groups_ = [one for one in formed if isinstance(one, Group)]
    assert len(groups_) == len(offers), formed
    return groups_


def pair(store: StoreServer, generation: int) -> tuple[Group, Group]:
    """Return both ends of a generation of two."""
    first, second = group_of(store, generation, [BackendOffer(), BackendOffer()])
    return first, second
