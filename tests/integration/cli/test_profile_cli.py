"""``bftrainer profile``: real all-reduces and real steps, in the user's interpreter."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bftrainer.batch import process
from bftrainer.batch.process import Completed
from bftrainer.cli.curve_file import read_curve, read_curve_file

SCRIPT = """\
import sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset
from bftrainer import elastic

model = torch.nn.Linear(10, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(512, 10), torch.randn(512, 2))
run = elastic.Run(model, optimizer, DataLoader(data, batch_size=int(sys.argv[1])), epochs=1000)
for epoch in run.epochs():
    for x, y in run.batches():
        time.sleep(0.002 * len(x))
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        run.step()
open("after.txt", "w").write("the loops were left")
"""


HEAVY = """\
import sys
import torch
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
from bftrainer import elastic

most = int(sys.argv[1])  # samples for which there is memory
model = torch.nn.Sequential(torch.nn.Linear(10, 64), torch.nn.Linear(64, 2))
if sys.argv[2] == "sharded":
    fully_shard(model, mesh=elastic.node_mesh())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(512, 10), torch.randn(512, 2))
run = elastic.Run(model, optimizer, DataLoader(data, batch_size=16), epochs=1000)
for epoch in run.epochs():
    for x, y in run.batches():
        if len(x) > most:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        activations = torch.ones(len(x), 4 << 20)  # 16 MiB for each sample
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        run.step()
        del activations
"""


def _profile(*words: str, cwd: Path) -> Completed:
    argv = [sys.executable, "-m", "bftrainer.cli.main", "profile", *words]
    return process.run(argv, timeout_s=120, cwd=cwd)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile") / "table.json"
    done = _profile(
        "allreduce", "--interpreter", sys.executable, "--weights", "100,2e6", "--workers", "2",
        "--seconds", "0.1", "--out", str(path), cwd=path.parent,
    )  # fmt: skip
    assert done.is_ok, done.stderr
    assert "2,000,000 weights, ms" in done.stdout
    return path


@pytest.mark.long
def test_all_reduces_are_measured(table: Path) -> None:
    found = json.loads(table.read_text())
    assert found["workers"] == [2]
    ((small_s, big_s),) = found["seconds"]
    assert 0.0 < small_s < big_s < 10.0  # 8 MB take longer than 400 bytes


@pytest.mark.long
def test_steps_are_measured_and_give_a_curve(table: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    out = tmp_path / "curve.json"
    done = _profile(
        "--interpreter", sys.executable, "--table", str(table), "--nodes", "4", "--steps", "3",
        "--out", str(out), "--json", str(script), "32", cwd=tmp_path,
    )  # fmt: skip
    assert done.is_ok, done.stderr
    found = json.loads(done.stdout)
    assert found["weights"] == 22
    assert found["global_batch"] == 32
    assert found["batches"] == [8, 16, 32]
    for batch, seconds in zip(found["batches"], found["seconds"], strict=True):
        assert seconds >= 0.002 * batch
    curve = read_curve(str(out))  # as submit --curve does
    assert curve.sizes == (1, 2, 4)
    assert curve.samples_per_s[0] == pytest.approx(32 / found["seconds"][-1])
    assert not (tmp_path / "after.txt").exists()


def _heavy(tmp_path: Path, table: Path, most: int, *words: str, how: str = "sharded") -> Completed:
    script = tmp_path / "train.py"
    script.write_text(HEAVY)
    return _profile(
        "--interpreter", sys.executable, "--table", str(table), "--workers-per-node", "2",
        "--steps", "2", *words, "--json", str(script), str(most), how, cwd=tmp_path,
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("how", ["sharded", "whole"])
def test_memory_falls_with_the_share_of_each_worker(table: Path, tmp_path: Path, how: str) -> None:
    done = _heavy(tmp_path, table, 8, "--nodes", "4", how=how)
    assert done.is_ok, done.stderr
    found = json.loads(done.stdout)
    assert (found["weights"], found["global_batch"], found["nodes"]) == (834, 16, [1, 2, 4])
    assert found["batches"] == [4, 8, 16]  # of a node
    assert found["fits_from"] is None  # nobody has said how much there is
    one, two, four = (size / (16 << 20) for size in found["memory_bytes"])
    assert one - four == pytest.approx(6.0, abs=1.5)  # shares of 8, 4 and 2 samples
    assert one - two == pytest.approx(4.0, abs=1.5)
    enough = f"{(two + 1.0) * 16 / 1024:.4f}"
    out = tmp_path / "curve.json"
    done = _heavy(
        tmp_path, table, 8, "--nodes", "4", "--memory-per-worker", enough, "--out", str(out),
        how=how,
    )  # fmt: skip
    assert done.is_ok, done.stderr
    assert json.loads(done.stdout)["fits_from"] == 2
    assert read_curve_file(str(out))[1:] == (2, 2)
    assert read_curve(str(out)).sizes == (2, 4)


@pytest.mark.long
def test_memory_that_runs_out_is_no_failure_of_the_profile(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "curve.json"
    done = _heavy(tmp_path, table, 3, "--nodes", "4", "--out", str(out))
    assert done.is_ok, done.stderr
    found = json.loads(done.stdout)
    assert (found["nodes"], found["fits_from"]) == ([4], 4)
    assert read_curve_file(str(out))[1:] == (4, 2)
    done = _heavy(tmp_path, table, 1, "--nodes", "4")
    assert done.returncode == 1
    assert "BFT-4206" in done.stderr


@pytest.mark.long
def test_a_script_without_elastic_loops_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "plain.py"
    script.write_text("print('no loops here')\n")
    done = _profile("--interpreter", sys.executable, str(script), cwd=tmp_path)
    assert done.returncode == 1
    assert "BFT-4203" in done.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["allreduce", "--workers", "1"], "BFT-4200"),
        (["allreduce", "--weights", "many"], "BFT-4200"),
        (["allreduce", "--interpreter", "/nonexistent"], "BFT-4201"),
        (["--table", "/nonexistent", __file__], "BFT-4202"),
        (["allreduce", "--join", "somewhere"], "BFT-4204"),
        (["--out", "curve.json", __file__], "BFT-4205"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_mistakes_are_named(words: list[str], code: str, tmp_path: Path) -> None:
    done = _profile(*words, cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert code in done.stderr
    assert "next: " in done.stderr
    assert "Traceback" not in done.stderr
