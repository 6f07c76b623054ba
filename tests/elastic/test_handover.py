"""Who is sent what when a generation forms: only what it lacks."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from bftrainer.elastic.loop.state_transfer import StateTransfer
from bftrainer.elastic.network.group import Group
from bftrainer.elastic.process.control import Control
from bftrainer.elastic.process.store import StoreServer
from bftrainer.elastic.state import transfer
from bftrainer.elastic.state.state import Counters, State
from bftrainer.elastic.state.transfer import Link
from bftrainer.elastic.state.writer import CheckpointWriter
from bftrainer.ground.protocol import WorkerConfig
from tests.elastic.scripts import pretended
from tests.support.pairs import commit_of, group_of


def member(directory: Path, rank: int, step: int | None) -> StateTransfer:
    """Return a member with a state of so many steps, or none yet; each built its own."""
    torch.manual_seed(rank)
    model = torch.nn.Linear(400, 300)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    state = State(model, optimizer, None, {})
    config = WorkerConfig(
        trainer_id="t1", worker_id=f"w{rank}", node="n", script="s", checkpoint_dir=str(directory)
    )
    control = Control(config, None)
    handover = StateTransfer(
        control, state, Counters(seed=1, step=step or 0), CheckpointWriter(control, state)
    )
    handover.has_state = step is not None
    return handover


def weight(handover: StateTransfer) -> torch.Tensor:
    return handover.state.model_tensors()[0].clone()


@pytest.mark.parametrize(
    ("steps", "source", "lacking"),
    [
        ((7, 7, 7), 0, ()),  # some left: nothing is sent
        ((7, 7, None), 0, (2,)),  # one joined
        ((6, 7, 7), 1, (0,)),  # one is a step behind
        ((None, 7, None), 1, (0, 2)),
        ((None, None, None), 0, (1, 2)),  # the first generation
    ],
    ids=str,
)
def test_only_who_lacks_the_state_is_sent_it(
    tmp_path: Path,
    store: StoreServer,
    monkeypatch: pytest.MonkeyPatch,
    steps: tuple[int | None, ...],
    source: int,
    lacking: tuple[int, ...],
) -> None:
    received: list[int] = []
    real = transfer.receive

    def receive(link: Link, *into: list[torch.Tensor]) -> object:
        received.append(link.group.rank)
        return real(link, *into)

    monkeypatch.setattr(transfer, "receive", receive)
    groups = group_of(store, 1, [pretended.NO_GPU] * 3)
    members = [member(tmp_path, rank, step) for rank, step in enumerate(steps)]
    before = [weight(m) for m in members]
    commit = commit_of(store, 1, "w0", "w1", "w2")
    outcomes: dict[int, object] = {}

    def agree(one: StateTransfer, group: Group) -> None:
        outcomes[group.rank] = one.agree(commit, group, group.rank)

    pairs = list(zip(members, groups, strict=True))
    threads = [threading.Thread(target=agree, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert outcomes == {0: "", 1: "", 2: ""}
    assert sorted(received) == sorted(lacking)
    for rank, one in enumerate(members):
        assert torch.equal(weight(one), before[source if rank in lacking else rank])
        assert one.counters.step == max(step or 0 for step in steps)
    for group in groups:
        group.drop()
