"""Gradient memory after a collective that failed: kept when nobody writes into it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bftrainer.elastic.buckets import Reducer
from bftrainer.elastic.group import LEFT_BEHIND, Group
from bftrainer.elastic.store import StoreServer
from tests.support.pairs import pair


def broken_step(reducer: Reducer, group: Group, is_abandoned: Callable[[], bool]) -> None:
    """Do a step whose reduction does not succeed, and leave its group."""
    reducer.bind(group, lambda: False, is_abandoned)
    parameter = reducer.params[0]
    parameter.grad = None
    reducer.begin(1.0)
    (parameter * 2).sum().backward()
    assert reducer.broken is not None
    reducer.let_go()
    group.drop()


def test_gradient_memory_stays_when_a_member_dies_and_goes_when_one_hangs(
    store: StoreServer,
) -> None:
    parameter = torch.nn.Parameter(torch.ones(25_000_000))  # fresh memory takes its time
    reducer = Reducer([parameter])
    first = reducer.buckets[0].flat
    own, other = pair(store, 1)
    other.drop()  # as the kernel closes the sockets of a process that died
    broken_step(reducer, own, lambda: False)
    reducer.buckets[0].is_haunted = True  # whether it was depends on who was quicker
    own, other = pair(store, 2)
    reducer.bind(own, lambda: False, lambda: False)
    assert reducer.buckets[0].flat is first
    # One that hangs keeps its sockets: the collective may still write at any time.
    broken_step(reducer, own, lambda: True)
    assert reducer.broken is not None
    assert reducer.broken.reason == LEFT_BEHIND
    last, another = pair(store, 3)
    reducer.bind(last, lambda: False, lambda: False)
    assert reducer.buckets[0].flat is not first
    assert not reducer.buckets[0].is_haunted
    for group in (other, last, another):
        group.drop()


def test_a_group_somebody_still_uses_is_not_gone(store: StoreServer) -> None:
    own, other = pair(store, 1)
    in_use = own.pg
    own.drop()
    other.drop()
    assert not own.is_gone(0.2)
    assert other.is_gone(30.0)
    del in_use
