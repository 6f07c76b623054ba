"""Checkpoints in parts, without processes: what is read of them, and what is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bftrainer.api import checkpoint_files
from bftrainer.elastic.checkpoints import checkpoint, resharding
from bftrainer.elastic.network import shards
from bftrainer.elastic.network.shards import Box, whole_box
from bftrainer.elastic.process import control as control_module
from bftrainer.elastic.script.batch import Cutting, GlobalBatch
from bftrainer.elastic.state.state import Counters, Snapshots, State
from bftrainer.ground import files
from bftrainer.study import disk

ROWS, COLUMNS = 5, 3


def state_of() -> State:
    net = nn.Linear(COLUMNS, ROWS)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(2, COLUMNS)).sum().backward()
    optimizer.step()
    return State(net, optimizer, None, {})


def write_parts(directory: Path, state: State, step: int, count: int) -> Path:
    """Write the state cut by rows, as ``count`` workers of a node do."""
    directory.mkdir(exist_ok=True)
    counters = Counters(seed=1, step=step)
    structure, rest = state.encode_rest(counters)
    tensors = [*state.model_tensors(), *rest]
    path = directory / f"step-{step:012d}-g1.bft"
    for part in reversed(range(count)):
        cut: list[torch.Tensor] = []
        boxes: list[Any] = []
        for tensor in tensors:
            each = -(-ROWS // count)
            low, high = min(ROWS, part * each), min(ROWS, (part + 1) * each)
            if tensor.shape[:1] != (ROWS,):
                cut.append(tensor)
                boxes.append(None)
                continue
            own = tensor[low:high]
            zeros = [0] * (tensor.dim() - 1)
            cut.append(own)
            boxes.append([list(tensor.shape), list(own.shape), [low, *zeros]])
        header = {
            "layout": state.layout(), "counters": counters.as_dict(), "structure": structure,
            "part": part, "parts": count, "boxes": boxes,
        }  # fmt: skip
        checkpoint.write(files.part_of(path, part), header, cut)
    return path


def found_by(state: State, directory: Path) -> checkpoint.VerifiedCheckpoint | None:
    read = resharding.reader(state.parameters(), state.optimizer, {}, None)
    return checkpoint.find(directory, state.layouts, read)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_the_whole_comes_together_from_any_number_of_parts(tmp_path: Path, count: int) -> None:
    """With 7 parts some workers have no row at all."""
    state = state_of()
    write_parts(tmp_path, state, 4, count)
    found = found_by(state, tmp_path)
    assert found is not None
    _, rest = state.encode_rest(Counters(seed=1))
    for read, expected in zip(found.tensors, [*state.model_tensors(), *rest], strict=True):
        assert torch.equal(read, expected.detach())
    assert state.decode_rest(found.header["structure"], found.tensors[2:]).step == 4


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-60] ^= 1
    path.write_bytes(data)


def exchange(path: Path) -> None:
    path.write_bytes(path.with_suffix(".part2").read_bytes())


@pytest.mark.parametrize("harm", [Path.unlink, truncate, flip, exchange])
def test_a_checkpoint_without_one_sound_part_is_none(tmp_path: Path, harm: Any) -> None:
    state = state_of()
    write_parts(tmp_path, state, 4, 3)
    newest = write_parts(tmp_path, state, 8, 3)
    harm(files.part_of(newest, 1))
    found = found_by(state, tmp_path)
    assert found is not None
    assert found.header["counters"]["step"] == 4


@pytest.mark.parametrize(
    "told", ["x", [[1], [2]], [None] * 2, [[[9, 9], [9, 9], [0, 0]]] * 9, [[["a"], [1], [0]]] * 9]
)
def test_foreign_ranges_are_no_traceback(tmp_path: Path, told: Any) -> None:
    state = state_of()
    path = write_parts(tmp_path, state, 4, 2)
    header, tensors = checkpoint.read(path)
    checkpoint.write(path, {**header, "boxes": told}, tensors)
    assert found_by(state, tmp_path) is None


def test_parts_of_what_is_superseded_go(tmp_path: Path) -> None:
    state = state_of()
    paths = [write_parts(tmp_path, state, step, 2) for step in (1, 2, 3, 4)]
    paths[1].unlink()  # its writer was killed before the first part was written
    files.prune(tmp_path, paths[3], state.layout())
    left = sorted(p.name for p in tmp_path.iterdir())
    kept = [p.name for path in paths[2:] for p in (path, files.part_of(path, 1))]
    assert left == sorted(kept)


def test_the_first_part_waits_for_the_others_and_not_for_ever(tmp_path: Path) -> None:
    path = write_parts(tmp_path, state_of(), 4, 3)
    resharding.await_parts(path, 3, limit_s=0.0)
    files.part_of(path, 2).unlink()
    with pytest.raises(OSError, match="another worker of the node"):
        resharding.await_parts(path, 3, limit_s=0.0)


def test_boxes_meet_where_they_overlap() -> None:
    whole = torch.arange(24.0).view(4, 6)
    own = Box(whole=(4, 6), shape=(2, 3), offset=(1, 2))
    got = torch.zeros(2, 3)
    for row in range(4):
        part = Box(whole=(4, 6), shape=(1, 6), offset=(row, 0))
        own.copy(got, part, whole[row : row + 1])
    assert torch.equal(got, whole[1:3, 2:5])
    far = Box(whole=(4, 6), shape=(1, 1), offset=(3, 0))
    own.copy(got, far, torch.full((1, 1), -1.0))
    assert torch.equal(got, whole[1:3, 2:5])
    assert whole_box((4, 6)).offset == (0, 0)


@pytest.mark.parametrize("logical", [0, 8])
@pytest.mark.parametrize("most", [None, 2])
@pytest.mark.parametrize("batch", [1, 3, 7, 8, 16])
@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_the_workers_of_a_node_have_equally_many_passes(
    nodes: int, batch: int, most: int | None, logical: int
) -> None:
    """And each sample is in exactly one of them."""
    if logical and most:
        return
    parts = 2
    cutting = Cutting(rule=GlobalBatch(max_per_worker=most), logical=logical, parts=parts)
    taken: list[int] = []
    for node in range(nodes):
        own = [cutting.pieces(batch, nodes * parts, node * parts + p) for p in range(parts)]
        assert len({len(pieces) for pieces in own}) == 1
        assert own[0], "a node computes in every step"
        taken += [i for pieces in own for piece in pieces for i in range(piece.start, piece.stop)]
    assert sorted(taken) == list(range(batch))


def test_a_new_trainer_starts_from_all_parts(tmp_path: Path) -> None:
    """``submit --resume-from`` and ``--fresh``, and a study that removes checkpoints."""
    state, own = state_of(), tmp_path / "own"
    own.mkdir()
    write_parts(tmp_path / "other", state, 4, 3)
    newest = write_parts(tmp_path / "other", state, 8, 3)
    files.part_of(newest, 2).unlink()
    checkpoint_files.bring(tmp_path / "other", own)
    found = found_by(state, own)
    assert found is not None
    assert found.header["counters"]["step"] == 4
    checkpoint_files.set_aside(own)
    (aside,) = own.iterdir()
    assert found_by(state, own) is None
    assert found_by(state, aside) is not None
    disk.drop_checkpoints(aside)
    assert list(aside.iterdir()) == []


@pytest.fixture
def mesh_of_one(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The mesh of a node with one worker, in this process."""
    monkeypatch.setattr(control_module, "_current", [])
    monkeypatch.setattr(shards, "_mesh", [])
    yield shards.node_mesh()
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("is_removed", [False, True])
def test_groups_that_a_script_changed_are_resumed_sharded(
    tmp_path: Path, mesh_of_one: Any, *, is_removed: bool
) -> None:
    from torch.distributed.fsdp import fully_shard

    def built(*, is_sharded: bool) -> State:
        torch.manual_seed(4)
        net = nn.Sequential(nn.Linear(COLUMNS, ROWS), nn.Linear(ROWS, 1))
        if is_sharded:
            fully_shard(net, mesh=mesh_of_one)
        optimizer = torch.optim.Adam(net[0].parameters())
        return State(net, optimizer, None, {}, shards=shards.shards_of(net))

    def step(state: State) -> None:
        state.model(torch.ones(2, COLUMNS)).sum().backward()
        state.optimizer.step()

    whole, cut = built(is_sharded=False), built(is_sharded=True)
    step(whole)
    _, last = whole.model.children()
    whole.optimizer.add_param_group({"params": list(last.parameters()), "lr": 0.1})
    step(whole)
    if is_removed:
        del whole.optimizer.param_groups[0]
    snapshot = Snapshots(whole).take(Counters(seed=1, step=2))
    path = tmp_path / "step-000000000002-g1.bft"
    checkpoint.write(path, snapshot.header, snapshot.tensors)

    read = resharding.reader(cut.parameters(), cut.optimizer, {}, cut.shards)
    header, tensors = read(path)
    cut.decode_rest(header["structure"], tensors[4:])
    assert len(cut.optimizer.param_groups) == len(whole.optimizer.param_groups)
    for own, other in zip(cut.parameters(), whole.parameters(), strict=True):
        moments = cut.optimizer.state[own]["exp_avg"]
        assert shards.is_sharded(moments)
        assert torch.equal(moments.full_tensor(), whole.optimizer.state[other]["exp_avg"])
