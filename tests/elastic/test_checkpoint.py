"""State on disk: everything comes back, nothing damaged or foreign is trusted."""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
from collections import Counter, deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bftrainer.elastic import ElasticError
from bftrainer.elastic.checkpoints import checkpoint
from bftrainer.elastic.process.control import Control
from bftrainer.elastic.state.state import Counters, State
from bftrainer.elastic.state.writer import CheckpointWriter
from bftrainer.ground import fence, files
from bftrainer.ground.checkpoint_gap import (
    LIVES,
    Cost,
    Slowdown,
    expected_life_s,
    lives_in,
    optimum_s,
)
from bftrainer.ground.fence import Fence, path_for
from bftrainer.ground.protocol import Left, PassedOver, WorkerConfig
from tests.elastic import journal
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess

TRAIN = SCRIPTS / "train_ids.py"


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and bool(a == b)


TREE: dict[Any, Any] = {
    "numbers": [1, -2.5, float("inf"), True, None, 3 + 4j, 1 << 70],
    7: {"nested": (1, (2, [3]))},
    "set": {1, 2},
    "counter": Counter({3: 2}),
    "queue": deque([1, 2]),
    "bytes": b"\x00\xff",
    "tensors": [
        torch.randn(3, 4),
        torch.tensor(5),
        torch.empty(0, 2),
        torch.randn(4).to(torch.bfloat16),
        torch.tensor([True, False]),
        torch.randn(6, 2).t(),
    ],
}


def test_every_kind_of_state_survives_a_file(tmp_path: Path) -> None:
    structure, tensors = checkpoint.encode(TREE)
    path = fence.path_for(tmp_path, 12, 3)
    checkpoint.write(path, {"structure": structure}, tensors)
    header, back = checkpoint.read(path)
    assert same(checkpoint.decode(header["structure"], back), TREE)


def test_numpy_values_are_carried() -> None:
    numpy = pytest.importorskip("numpy")
    structure, tensors = checkpoint.encode({"a": numpy.arange(3.0), "b": numpy.float64(2.5)})
    back = checkpoint.decode(json.loads(json.dumps(structure)), tensors)
    assert back["b"] == 2.5
    assert numpy.array_equal(back["a"], numpy.arange(3.0))


def test_what_cannot_be_encoded_is_named() -> None:
    with pytest.raises(ElasticError, match=r"extra\['x'\]\[1\]") as refused:
        checkpoint.encode({"x": [1, object()]}, "extra")
    assert refused.value.code == "BFT-1407"


def write(directory: Path, step: int, *, layout: int = 7) -> Path:
    path = fence.path_for(directory, step, 1)
    header = {"step": step, "layout": layout, "structure": None}
    checkpoint.write(path, header, [torch.full((100,), float(step))])
    return path


def newest(directory: Path) -> int | None:
    found = checkpoint.find(directory, (7,))
    return None if found is None else int(found.header["step"])


def steps_in(directory: Path) -> list[int]:
    return sorted(files.step_of(path) for path in directory.iterdir())


def test_the_two_newest_are_kept_and_no_leavings(tmp_path: Path) -> None:
    for step in (1, 2, 9, 10):
        written = write(tmp_path, step)
    (tmp_path / ".step-5.bft.1234.tmp").write_bytes(b"half")
    files.prune(tmp_path, written, 7)
    assert steps_in(tmp_path) == [9, 10]


def test_parts_that_others_may_be_writing_are_left_alone(tmp_path: Path) -> None:
    written = write(tmp_path, 10)
    names = [f".{fence.path_for(tmp_path, step, 1).name}.part1.host-7.tmp" for step in (9, 10, 11)]
    for name in names:
        (tmp_path / name).write_bytes(b"half")
    files.prune(tmp_path, written, 7)
    assert sorted(p.name for p in tmp_path.iterdir()) == [*names[1:], written.name]


def test_corrupt_and_foreign_files_never_push_out_good_ones(tmp_path: Path) -> None:
    for step in (100, 200):
        write(tmp_path, step).write_bytes(b"damaged")
    write(tmp_path, 300, layout=8)
    for step in (10, 20, 30):
        files.prune(tmp_path, write(tmp_path, step), 7)
    assert steps_in(tmp_path) == [20, 30, 100, 200, 300]
    assert newest(tmp_path) == 30


def test_a_line_that_was_not_gone_on_from_goes(tmp_path: Path) -> None:
    # Its body was damaged when we looked for a state, so training went on from step 10.
    write(tmp_path, 50)
    write(tmp_path, 10)
    files.prune(tmp_path, write(tmp_path, 12), 7)
    assert steps_in(tmp_path) == [10, 12]


def test_of_several_models_the_right_one_is_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, 1)
    foreign = write(tmp_path, 2, layout=8)
    with caplog.at_level(logging.WARNING):
        assert newest(tmp_path) == 1
    assert str(foreign) in caplog.text
    assert "different model" in caplog.text


@pytest.mark.parametrize("damage", ["flip", "cut", "append", "empty", "header", "magic"])
def test_a_damaged_checkpoint_is_skipped_with_its_reason(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, 1)
    path = write(tmp_path, 2)
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[-100] ^= 1
    elif damage == "cut":
        del data[-50:]
    elif damage == "append":
        data += b"x"
    elif damage == "empty":
        data.clear()
    elif damage == "header":
        data[len(files.MAGIC) + 9] ^= 0xFF
    else:
        data[0] ^= 1
    path.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        assert newest(tmp_path) == 1
    assert "BFT-1413" in caplog.text
    assert str(path) in caplog.text


def test_links_and_foreign_files_are_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, 1)
    elsewhere = write(tmp_path / "elsewhere", 9)
    fence.path_for(tmp_path, 9, 1).symlink_to(elsewhere)
    assert newest(tmp_path) == 1
    if os.geteuid() != 0:
        pytest.skip("only root can make a file another user's")
    os.chown(fence.path_for(tmp_path, 1, 1), 65534, -1)
    with caplog.at_level(logging.WARNING):
        assert newest(tmp_path) is None
    assert "another user" in caplog.text


def test_smaller_writers_are_fenced_off(tmp_path: Path) -> None:
    def by(incarnation: int, generation: int) -> Fence:
        return Fence(incarnation=incarnation, generation=generation, token="t")  # noqa: S106

    assert fence.claim(tmp_path, by(1, 5))
    assert fence.claim(tmp_path, by(1, 5))
    assert not fence.claim(tmp_path, by(1, 4))
    assert fence.claim(tmp_path, by(2, 1))
    assert not fence.claim(tmp_path, by(1, 99))
    assert fence.read_fence(tmp_path) == by(2, 1)
    (tmp_path / "fence.json").write_text("{")
    assert fence.claim(tmp_path, by(1, 1))


def test_a_fence_that_cannot_be_read_keeps_everybody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = Fence(incarnation=2, generation=9, token="later")  # noqa: S106
    earlier = Fence(incarnation=1, generation=9, token="earlier")  # noqa: S106
    assert fence.claim(tmp_path, later)
    real = os.open

    def failing(path: Any, *rest: Any, **more: Any) -> int:
        if Path(path).name == "fence.json":
            raise OSError(errno.EIO, "Input/output error")
        return real(path, *rest, **more)

    with monkeypatch.context() as broken:
        broken.setattr(os, "open", failing)
        with pytest.raises(OSError, match="Input/output"):
            fence.claim(tmp_path, earlier)
    assert fence.read_fence(tmp_path) == later


def test_links_and_pipes_in_the_place_of_a_fence_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "fence.json"
    path.symlink_to(tmp_path / "elsewhere")
    assert fence.read_fence(tmp_path) is None
    path.unlink()
    os.mkfifo(path)
    assert fence.read_fence(tmp_path) is None


def test_equal_numbers_need_the_same_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mine = Fence(incarnation=1, generation=5, token="mine", trainer_id="t3")  # noqa: S106
    theirs = replace(mine, token="theirs")  # noqa: S106
    assert fence.claim(tmp_path, mine)
    assert not fence.claim(tmp_path, theirs)
    assert "BFT-1412" in caplog.text
    assert fence.claim(tmp_path, mine)


def test_a_later_trainer_takes_the_directory_over(tmp_path: Path) -> None:
    """Submitted anew for the same directory, it counts its generations from 1."""
    first = Fence(incarnation=1, generation=9, token="a", trainer_id="t3")  # noqa: S106
    second = Fence(incarnation=1, generation=1, token="b", trainer_id="t12")  # noqa: S106
    assert fence.claim(tmp_path, first)
    assert fence.claim(tmp_path, second)
    assert not fence.claim(tmp_path, replace(first, generation=10))


def test_a_fenced_off_worker_trains_on_but_saves_nothing(
    tmp_path: Path, template: TemplateProcess
) -> None:
    directory = tmp_path / "checkpoints"
    later = Fence(incarnation=7, generation=1, token="later")  # noqa: S106
    assert fence.claim(directory, later)
    with Controller(tmp_path, template) as c:
        ids = c.begin(TRAIN, [json.dumps({"epochs": 3})], checkpoint_interval_s=0.0)
        c.finished()
        assert c.saved() == []
        assert "BFT-1412" in c.workers[ids[0]].log.read_text()
    assert fence.read_fence(directory) == later
    assert files.newest_first(directory) == []


def test_periodic_checkpoints_resume_past_a_corrupt_one(
    tmp_path: Path, template: TemplateProcess
) -> None:
    settings = json.dumps({"delay_s": 0.001})
    directory = tmp_path / "checkpoints"
    with Controller(tmp_path, template) as c:
        ids = c.begin(TRAIN, [settings], count=2, epochs=1_000_000, checkpoint_interval_s=0.05)
        c.until(lambda: len(c.saved()) >= 3, "three checkpoints")
        for i in ids:
            c.kill(i)
        c.until(lambda: all(c.workers[i].returncode for i in ids), "all dead")
        newest_path = files.newest_first(directory)[0]
        newest_path.write_bytes(newest_path.read_bytes()[:-1])
        expected = files.newest_first(directory)[1]
        c.members = []
        again = c.start(TRAIN, [settings], epochs=1_000_000)
        entered = c.form(again, new=again)
        assert entered[0].resumed_from == str(expected)
        assert f"step-{entered[0].step:012d}" in expected.name
        (told,) = c.workers[again[0]].all(PassedOver)
        assert told.cause in c.workers[again[0]].log.read_text()
        assert told.cause.endswith(f"goes on from step {entered[0].step} ({expected.name}).")
        assert newest_path.with_name(f"{newest_path.name}.damaged").exists()
    assert journal.entries(tmp_path, "entered")


def test_a_checkpoint_of_another_model_is_refused(
    tmp_path: Path, template: TemplateProcess
) -> None:
    with Controller(tmp_path, template) as c:
        c.begin(TRAIN, [json.dumps({"epochs": 1})])
        c.finished()
        c.members = []
        other = c.start(TRAIN, [json.dumps({"epochs": 1, "width": 20})])
        c.warm(other)
        c.commit_only(other)
        assert c.failed(other[0]).code == "BFT-1408"


def test_a_new_first_worker_writes_at_once(tmp_path: Path, template: TemplateProcess) -> None:
    """There is no file that tells how long ago the one before it wrote."""
    with Controller(tmp_path, template) as c:
        config: dict[str, Any] = {"epochs": 1_000_000, "checkpoint_interval_s": 3600.0}
        first, second = c.start(TRAIN, [json.dumps({"delay_s": 0.001})], count=2, **config)
        c.form([first, second], new=[first, second])
        c.form([second])
        # Before that the run that starts from nothing may have written its first step, too.
        c.until(lambda: c.generation in {saved.generation for saved in c.saved()}, "its checkpoint")


def test_a_run_that_starts_from_nothing_writes_at_once_and_parks_with_its_last_step(
    tmp_path: Path, template: TemplateProcess
) -> None:
    with Controller(tmp_path, template) as c:
        config: dict[str, Any] = {"epochs": 1_000_000, "checkpoint_interval_s": 3600.0}
        ids = c.begin(TRAIN, [json.dumps({"delay_s": 0.001})], count=2, **config)
        first = c.until(c.saved, "a checkpoint")[0]
        assert first.step >= 1
        c.trained_to(first.step + 20)
        c.park()
        assert c.saved()[-1].step == c.workers[ids[0]].all(Left)[0].step


def test_the_next_write_begins_so_early_that_it_is_complete_in_time(tmp_path: Path) -> None:
    writer = _writer(tmp_path, lives="1e9")
    writer.cost = Cost(wall_s=8.0)
    assert writer.gap_s() == 50.0
    writer.cost = Cost(wall_s=100.0)
    assert writer.gap_s() == 30.0


@pytest.mark.parametrize(
    ("cost", "life_s", "gap_s"),
    [
        (Cost(), 1e6, 1.0),
        (Cost(hold_s=0.001, slow_s=0.004, wall_s=0.02), 16.0, 1.0),
        (Cost(hold_s=0.1, slow_s=0.4, wall_s=1.0), 16.0, 4.0),
        (Cost(hold_s=0.1, slow_s=0.4, wall_s=6.0), 700.0, 31.3),
        (Cost(hold_s=0.01, slow_s=0.03, wall_s=0.2), 3600.0, 17.0),
    ],
)
def test_checkpoints_are_apart_as_young_and_daly_say(
    cost: Cost, life_s: float, gap_s: float
) -> None:
    assert optimum_s(cost, life_s) == pytest.approx(gap_s, rel=0.01)


def test_a_life_is_expected_from_those_before_and_from_its_own_age() -> None:
    assert expected_life_s((), 0.0) == 0.0
    assert expected_life_s((), 40.0) == 40.0
    assert expected_life_s((20.0, 10.0), 0.0) == 10.0
    assert expected_life_s((20.0, 10.0), 3570.0) == 1200.0


def test_what_a_write_costs_is_found_by_the_steps_beside_it() -> None:
    beside = Slowdown()
    for _ in range(10):
        beside.note(0.1, is_writing=False)
    for _ in range(4):
        beside.note(0.2, is_writing=True)
    assert beside.lost_s(wall_s=2.0, work_s=0.3) == 0.3
    for _ in range(4):
        beside.note(0.2, is_writing=True)
    assert beside.lost_s(wall_s=2.0, work_s=0.3) == pytest.approx(1.0)
    for _ in range(100):
        beside.note(0.1, is_writing=False)
        beside.note(0.05, is_writing=True)
    assert beside.lost_s(wall_s=2.0, work_s=0.3) == 0.0


@pytest.mark.parametrize("lives", ["", "8 4", "8 x", "nan", "-1", "inf"])
def test_lives_are_told_by_the_environment(tmp_path: Path, lives: str) -> None:
    assert lives_in(lives) == ((8.0, 4.0) if lives == "8 4" else ())
    writer = _writer(tmp_path, lives=lives)
    writer.cost = Cost(hold_s=2.0)  # of so long a pause: the expected life counts
    assert writer.gap_s() == pytest.approx(4.0 if lives == "8 4" else 1.0, rel=0.2)


def test_a_checkpoint_says_what_the_one_before_it_took(tmp_path: Path) -> None:
    writer, counters, claim = (
        _writer(tmp_path),
        Counters.known(None),
        Fence(
            incarnation=1,
            generation=1,
            token="t",  # noqa: S106
            trainer_id="t1",
        ),
    )
    for counters.step in (1, 2):
        writer.save_now(counters, claim)
    newest, before = files.newest_first(tmp_path)
    assert Cost.of(files.peek(before)) == Cost()
    assert Cost.of(files.peek(newest)).wall_s > 0.0


@pytest.mark.parametrize(
    "said", [None, 3, {}, {"hold_s": "x"}, {"hold_s": -1.0}, {"wall_s": float("nan")}, {"z": 1}]
)
def test_costs_in_a_strange_header_are_not_known(said: object) -> None:
    assert Cost.of({"cost": said}) == Cost()


@pytest.mark.parametrize(
    ("written", "age_s", "committed", "is_due"),
    [
        (7, 600.0, [1, 7, 8], False),  # committed here a moment ago, whatever the file's date
        (7, 5.0, [8, 9], False),  # before this worker came: its date counts
        (7, 600.0, [8, 9], True),
        (None, 0.0, [1, 7, 8], True),
    ],
)
def test_a_new_first_worker_knows_how_old_the_newest_file_is(
    tmp_path: Path, written: int | None, age_s: float, committed: list[int], *, is_due: bool
) -> None:
    writer = _writer(tmp_path, lives="1000")
    for step in committed:
        writer.note(step)
    if written is not None:
        path = path_for(tmp_path, written, 1)
        checkpoint.write(path, Cost(hold_s=1.0).mark(), [])
        os.utime(path, (0.0, path.stat().st_mtime - age_s))
    writer.succeed()
    for thread in threading.enumerate():
        if thread.name == "bft-checkpoint-age":
            thread.join()
    assert writer.is_due() is is_due


def _writer(directory: Path, lives: str = "") -> CheckpointWriter:
    model = torch.nn.Linear(2, 2)
    state = State(model, torch.optim.SGD(model.parameters(), lr=0.1), None, {})
    config = WorkerConfig(
        trainer_id="t1", worker_id="w1", node="n1", script="x",
        checkpoint_dir=str(directory), checkpoint_interval_s=60.0,
        environment=((LIVES, lives),),
    )  # fmt: skip
    return CheckpointWriter(Control(config, None), state)
