"""Gradient memory after a collective that failed: kept when nobody writes into it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from bftrainer.elastic.gradients.buckets import GradientReducer
from bftrainer.elastic.gradients.gradient_bucket import FIRST_BUCKET_BYTES
from bftrainer.elastic.gradients.ordered_reducer import OrderedReducer
from bftrainer.elastic.network.collective import settle
from bftrainer.elastic.network.group import LEFT_BEHIND, Group
from bftrainer.elastic.process.store import StoreServer
from tests.support.pairs import pair


def broken_step(reducer: GradientReducer, group: Group, is_abandoned: Callable[[], bool]) -> None:
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
    reducer = GradientReducer([parameter])
    first = reducer.buckets[0].flat
    own, other = pair(store, 1)
    other.drop()  # as the kernel closes the sockets of a process that died
    broken_step(reducer, own, lambda: False)
    assert own.is_gone(60.0)
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


def test_samples_that_do_not_count_leave_nothing_in_the_average(store: StoreServer) -> None:
    values: list[tuple[torch.Tensor | None, ...]] = [(), ()]

    def step(rank: int, group: Group) -> None:
        used, unused = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
        reducer = GradientReducer([used, unused])
        reducer.bind(group, lambda: False, lambda: False)
        reducer.begin(1.0 - rank, passes=(1, 0))
        loss = (used * 2).sum() if rank == 0 else ((used + unused) * float("nan")).sum()
        loss.backward()
        reducer.finish()
        values[rank] = (used.grad, unused.grad)

    groups = pair(store, 1)
    threads = [threading.Thread(target=step, args=one) for one in enumerate(groups)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for group in groups:
        group.drop()
    for used, unused in values:
        assert used is not None
        assert used.tolist() == [2.0, 2.0]
        assert unused is None


class Signalled:
    """A collective during whose wait a signal arrives."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())

    def wait(self, _slice: object) -> None:
        signal.raise_signal(signal.SIGUSR1)


def test_what_a_signal_handler_raises_is_not_taken_for_a_broken_collective(
    store: StoreServer,
) -> None:
    own, other = pair(store, 1)

    def out_of_memory(_number: int, _frame: object) -> None:
        raise RuntimeError("no memory left")

    before = signal.signal(signal.SIGUSR1, out_of_memory)
    try:
        work = own.control.all_reduce(torch.zeros(1))
        with pytest.raises(RuntimeError, match="no memory left"):
            settle(Signalled(work), lambda: True)
    finally:
        signal.signal(signal.SIGUSR1, before)
        own.drop()
        other.drop()


def test_padding_of_a_bucket_is_not_taken_for_its_flags() -> None:
    """In bitwise mode buckets are padded to a multiple of the members; only the last has flags."""
    count = FIRST_BUCKET_BYTES // 4 + 1
    parameters = [torch.nn.Parameter(torch.ones(n)) for n in (5, count)]
    reducer = OrderedReducer(parameters, list)
    reducer.bind(None, lambda: False, lambda: False)
    reducer._padding = 3  # as of three members
    reducer._allocate()
    padded = reducer.buckets[0]
    assert len(reducer.buckets) == 2
    assert len(padded.flags) == -count % 3 > 0
    reducer.begin(1.0)
    reducer.is_in_hand = True
    torch.stack([p.square().sum() for p in parameters]).sum().backward()
    reducer.finish()
    assert all(bool((p.grad == 2).all()) for p in parameters if p.grad is not None)
    assert not any(p.grad is None for p in parameters)
