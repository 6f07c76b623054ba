"""State on disk: everything comes back, nothing damaged or foreign is trusted."""

from __future__ import annotations

import json
import logging
import os
from collections import Counter, deque
from pathlib import Path
from typing import Any

import pytest
import torch

from bftrainer.elastic import ElasticError, checkpoint, codec
from bftrainer.elastic.checkpoint import Fence
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
    structure, tensors = codec.encode(TREE)
    path = checkpoint.path_for(tmp_path, 12, 3)
    checkpoint.write(path, {"structure": structure}, tensors)
    header, back = checkpoint.read(path)
    assert same(codec.decode(header["structure"], back), TREE)


def test_numpy_values_are_carried() -> None:
    numpy = pytest.importorskip("numpy")
    structure, tensors = codec.encode({"a": numpy.arange(3.0), "b": numpy.float64(2.5)})
    back = codec.decode(json.loads(json.dumps(structure)), tensors)
    assert back["b"] == 2.5
    assert numpy.array_equal(back["a"], numpy.arange(3.0))


def test_what_cannot_be_encoded_is_named() -> None:
    with pytest.raises(ElasticError, match=r"extra\['x'\]\[1\]") as refused:
        codec.encode({"x": [1, object()]}, "extra")
    assert refused.value.code == "BFT-1407"


def write(directory: Path, step: int) -> Path:
    path = checkpoint.path_for(directory, step, 1)
    checkpoint.write(path, {"step": step}, [torch.full((100,), float(step))])
    return path


def newest(directory: Path) -> int | None:
    found = checkpoint.newest_valid(directory)
    return None if found is None else int(found[1]["step"])


def test_the_two_newest_are_kept_and_no_leavings(tmp_path: Path) -> None:
    for step in (1, 2, 10, 9):
        write(tmp_path, step)
    (tmp_path / ".step-5.bft.1234.tmp").write_bytes(b"half")
    checkpoint.prune(tmp_path)
    assert sorted(p.name[5:17] for p in tmp_path.iterdir()) == ["000000000009", "000000000010"]


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
        data[len(checkpoint.MAGIC) + 9] ^= 0xFF
    else:
        data[0] ^= 1
    path.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        assert newest(tmp_path) == 1
    assert "BFT-1413" in caplog.text
    assert str(path) in caplog.text


def test_links_and_foreign_files_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, 1)
    elsewhere = write(tmp_path / "elsewhere", 9)
    checkpoint.path_for(tmp_path, 9, 1).symlink_to(elsewhere)
    assert newest(tmp_path) == 1
    real = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: real + 1)
    with caplog.at_level(logging.WARNING):
        assert newest(tmp_path) is None
    assert "another user" in caplog.text


def test_smaller_writers_are_fenced_off(tmp_path: Path) -> None:
    def fence(incarnation: int, generation: int) -> Fence:
        return Fence(incarnation=incarnation, generation=generation, token="t")  # noqa: S106

    assert checkpoint.claim(tmp_path, fence(1, 5))
    assert checkpoint.claim(tmp_path, fence(1, 5))
    assert not checkpoint.claim(tmp_path, fence(1, 4))
    assert checkpoint.claim(tmp_path, fence(2, 1))
    assert not checkpoint.claim(tmp_path, fence(1, 99))
    assert checkpoint.read_fence(tmp_path) == fence(2, 1)
    (tmp_path / "fence.json").write_text("{")
    assert checkpoint.claim(tmp_path, fence(1, 1))


def test_a_fenced_off_worker_trains_on_but_saves_nothing(
    tmp_path: Path, template: TemplateProcess
) -> None:
    directory = tmp_path / "checkpoints"
    later = Fence(incarnation=7, generation=1, token="later")  # noqa: S106
    assert checkpoint.claim(directory, later)
    with Controller(tmp_path, template) as c:
        ids = c.start(TRAIN, [json.dumps({"epochs": 3})], checkpoint_interval_s=0.0)
        c.warm(ids)
        c.form(ids)
        c.finished()
        assert c.saved() == []
        assert "BFT-1412" in c.workers[ids[0]].log.read_text()
    assert checkpoint.read_fence(directory) == later
    assert checkpoint.newest_first(directory) == []


def test_periodic_checkpoints_resume_past_a_corrupt_one(
    tmp_path: Path, template: TemplateProcess
) -> None:
    settings = json.dumps({"delay_s": 0.001})
    directory = tmp_path / "checkpoints"
    with Controller(tmp_path, template) as c:
        ids = c.start(TRAIN, [settings], count=2, epochs=1_000_000, checkpoint_interval_s=0.05)
        c.warm(ids)
        c.form(ids)
        c.until(lambda: len(c.saved()) >= 3, "three checkpoints")
        for i in ids:
            c.kill(i)
        c.until(lambda: all(c.workers[i].returncode for i in ids), "all dead")
        newest_path = checkpoint.newest_first(directory)[0]
        newest_path.write_bytes(newest_path.read_bytes()[:-1])
        expected = checkpoint.newest_first(directory)[1]
        c.members = []
        again = c.start(TRAIN, [settings], epochs=1_000_000)
        c.warm(again)
        entered = c.form(again)
        assert entered[0].resumed_from == str(expected)
        assert f"step-{entered[0].step:012d}" in expected.name
        assert "BFT-1413" in c.workers[again[0]].log.read_text()
    assert journal.entries(tmp_path, "entered")


def test_a_checkpoint_of_another_model_is_refused(
    tmp_path: Path, template: TemplateProcess
) -> None:
    with Controller(tmp_path, template) as c:
        ids = c.start(TRAIN, [json.dumps({"epochs": 1})])
        c.warm(ids)
        c.form(ids)
        c.finished()
        c.members = []
        other = c.start(TRAIN, [json.dumps({"epochs": 1, "width": 20})])
        c.warm(other)
        c.commit_only(other)
        assert c.failed(other[0]).code == "BFT-1408"
