"""Connects separate processes to one communicator, by connect/accept between pairs of groups.

Each *unit* (the old members together, or a single process) has a communicator; the result
contains all units in order. Groups of units merge in pairs, so n units take log2(n) rounds. Port
names are exchanged through the generation's store. Every call here may hang when a member dies,
so ``membership`` runs it in a side thread.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from bftrainer.elastic.protocol import Commit
from bftrainer.elastic.store import StoreClient


@dataclass(frozen=True, slots=True, kw_only=True)
class Union:
    """The members of the old generation, if it is intact, followed by the joiners."""

    raw: Any
    old: tuple[str, ...]  # worker ids in their old order; empty: all are joiners
    ids: tuple[str, ...]  # of all, by rank


def unite(
    mpi: Any,
    commit: Commit,
    *,
    worker_id: str,
    old: tuple[str, ...],
    raw: Any,
    timeout_s: float,
) -> Union:
    """Connect to the members of ``commit`` and to those that it removes.

    Args:
        mpi: the library.
        commit: the generation.
        worker_id: our own.
        old: the members of ``raw``; empty for a single process.
        raw: our communicator.
        timeout_s: how long to wait for any one member.
    """
    prefix = f"{commit.generation}.{commit.attempt}.{commit.token}"
    store = StoreClient(commit.store_host, commit.store_port, commit.token, timeout_s)
    try:
        store.set(f"{prefix}/here/{worker_id}", json.dumps(old))
        roster = [m.worker_id for m in sorted(commit.members, key=lambda m: m.rank)]
        said: list[list[str]] = [json.loads(store.get(f"{prefix}/here/{name}")) for name in roster]
        whole = tuple(next((names for names in said if names), ()))
        for leaver in (name for name in whole if name not in roster):
            store.get(f"{prefix}/here/{leaver}")
        joiners = tuple(name for name in roster if name not in whole)
        units = [whole, *((j,) for j in joiners)] if whole else [(j,) for j in joiners]
        mine = next(i for i, unit in enumerate(units) if worker_id in unit)
        united = _pair_up(mpi, store, prefix, mine, len(units), raw)
    finally:
        store.close()
    return Union(raw=united, old=whole, ids=tuple(name for unit in units for name in unit))


def _pair_up(mpi: Any, store: StoreClient, prefix: str, mine: int, n_units: int, raw: Any) -> Any:
    """Merge neighbouring groups of 1, 2, 4, ... units; ranks keep the order of units."""
    comm, stride = raw, 1
    while stride < n_units:
        start = mine // stride * stride  # the first unit of our group
        is_lower = start % (2 * stride) == 0
        low = start if is_lower else start - stride
        if low + stride < n_units:
            key = f"{prefix}/port/{low}/{stride}"
            inter = _accept(mpi, store, key, comm) if is_lower else _connect(store, key, comm)
            merged = inter.Merge(not is_lower)
            inter.Disconnect()
            if comm is not raw:
                comm.Free()
            comm = merged
        stride *= 2
    return comm


def _accept(mpi: Any, store: StoreClient, key: str, comm: Any) -> Any:
    if comm.Get_rank() != 0:
        return comm.Accept("", root=0)
    port = mpi.Open_port()
    try:
        store.set(key, port)
        return comm.Accept(port, root=0)
    finally:
        mpi.Close_port(port)


def _connect(store: StoreClient, key: str, comm: Any) -> Any:
    port = store.get(key).decode() if comm.Get_rank() == 0 else ""
    return comm.Connect(port, root=0)
