"""Groups that connect while the script trains on: taken, forgotten, left behind."""

from __future__ import annotations

import threading

import pytest
import torch

from bftrainer.elastic.network.group import (
    LEFT_BEHIND,
    AbandonableCall,
    Broken,
    FormingGroups,
    Group,
    settle,
)
from bftrainer.elastic.process.control import Control
from bftrainer.elastic.process.store import StoreServer
from bftrainer.ground.protocol import WorkerConfig
from tests.support.pairs import commit_of
from tests.support.waiting import never, wait_for


def forming(worker_id: str) -> FormingGroups:
    config = WorkerConfig(trainer_id="t1", worker_id=worker_id, node="n", script="s.py")
    return FormingGroups(Control(config, None))


def test_a_group_heard_of_is_connected_before_it_is_asked_for(store: StoreServer) -> None:
    a, b = forming("a"), forming("b")
    commit = commit_of(store, 1, "a", "b")
    for one in (a, b):
        one.hear(commit)
        one.hear(commit)  # told twice is built once
    for one in (a, b):
        outcome = one._tasks[1, 1]._outcome
        wait_for(outcome.done, what="it connects unasked")
    groups = [one.take(commit, never) for one in (a, b)]
    works = []
    tensors = [torch.ones(3), 2 * torch.ones(3)]
    for group, tensor in zip(groups, tensors, strict=True):
        assert isinstance(group, Group)
        works.append(group.pg.allreduce([tensor]))
    assert [settle(work, never) for work in works] == [None, None]
    assert [t.tolist() for t in tensors] == [[3.0] * 3] * 2
    for group in groups:
        assert isinstance(group, Group)
        group.drop()


def test_a_group_nobody_heard_of_is_built_when_asked_for(store: StoreServer) -> None:
    a, b = forming("a"), forming("b")
    commit = commit_of(store, 1, "a", "b")
    b.hear(commit)
    group = a.take(commit, never)
    assert isinstance(group, Group)
    group.drop()
    b.forget(before=(2, 0))


def test_a_group_that_is_taken_is_not_built_again(store: StoreServer) -> None:
    a, b = forming("a"), forming("b")
    commit = commit_of(store, 1, "a", "b")
    b.hear(commit)
    group = a.take(commit, never)
    assert isinstance(group, Group)
    a.hear(commit)  # the control thread was slower than the training loop
    assert a._tasks == {}
    group.drop()
    b.forget(before=(2, 0))


def test_a_later_commit_does_not_disturb_the_one_being_entered(store: StoreServer) -> None:
    a, b = forming("a"), forming("b")
    first, second = commit_of(store, 1, "a", "b"), commit_of(store, 2, "b", "a")
    for one in (a, b):
        one.hear(first)
        one.hear(second)
    for commit in (first, second):
        groups = [one.take(commit, never) for one in (a, b)]  # who drops it breaks the other's
        for group in groups:
            assert isinstance(group, Group)
            group.drop()


def test_what_is_forgotten_closes_its_connections(store: StoreServer) -> None:
    a, b = forming("a"), forming("b")
    commit = commit_of(store, 1, "a", "b")
    a.hear(commit)
    group = b.take(commit, never)
    assert isinstance(group, Group)
    a.forget(before=(2, 0))
    broken = settle(group.pg.allreduce([torch.ones(1)]), never)
    assert isinstance(broken, Broken)
    group.drop()


def test_a_member_that_never_comes_does_not_hold_us(store: StoreServer) -> None:
    a = forming("a")
    assert a.take(commit_of(store, 1, "a", "b"), lambda: True) == Broken(reason=LEFT_BEHIND)


def test_commits_without_us_or_of_us_alone_build_nothing(store: StoreServer) -> None:
    a = forming("a")
    a.hear(commit_of(store, 1, "b", "c"))
    a.hear(commit_of(store, 2, "a"))
    assert a._tasks == {}


@pytest.mark.parametrize("is_late", [False, True])
def test_an_outcome_that_is_forgone_is_discarded_once(is_late: bool) -> None:
    control = forming("a")._control
    gate, discarded = threading.Event(), list[str]()

    def action() -> str:
        assert gate.wait(30)
        return "done"

    task = AbandonableCall(control, action)
    if not is_late:
        gate.set()
        assert task.wait(never) == "done"
    task.forgo(discarded.append)
    gate.set()
    wait_for(lambda: discarded, what="it is discarded")
    assert discarded == ["done"]
