"""``bftrainer try``: whole scripts, one that is right and those that are not."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.batch import process
from bftrainer.batch.process import Completed
from bftrainer.model.errors import ExitCode
from tests.support.left_over import nothing_left, processes_of
from tests.support.waiting import wait_for

LOOP = """\
import time
import torch
from torch.utils.data import DataLoader, TensorDataset
from bftrainer import elastic

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(202, 4)), batch_size=16, shuffle=True)
run = elastic.Run(model, optimizer, loader, epochs=30)
for epoch in run.epochs():
    for number, (x,) in enumerate(run.batches()):
        optimizer.zero_grad()
        model(x).sum().backward()
        {step}
        time.sleep(0.01)
print("trained", run.samples)
"""
TRY = (sys.executable, "-m", "bftrainer.cli.main", "try")


@pytest.fixture
def scratch() -> Iterator[Path]:
    with nothing_left("bft-no-such-*") as directory:
        yield directory


def tried(
    scratch: Path, text: str, *options: str, args: tuple[str, ...] = (), timeout_s: float = 120
) -> Completed:
    script = scratch / "own.py"
    script.write_text(text)
    return process.run(
        (*TRY, *options, str(script), *args),
        timeout_s=timeout_s,
        env={**os.environ, "TMPDIR": str(scratch)},
        cwd=scratch,
    )


@pytest.mark.timeout(150)
def test_a_sound_script_is_rescaled_killed_and_uses_every_sample_once(scratch: Path) -> None:
    done = tried(scratch, LOOP.format(step="run.step()"), "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["schema"], report["state"]) == ("bftrainer/try/1", "finished")
    assert report["kill"]["size"] >= 2
    assert report["rescales"] == len(report["pauses_s"]) >= 2, "the kill and a return at least"
    assert [(e["epoch"], e["used"], e["of"]) for e in report["epochs"]] == [
        (epoch, 202, 202) for epoch in range(30)
    ]
    assert all((e["missed"], e["repeated"], e["twice"]) == (0, 0, []) for e in report["epochs"])
    assert report["last_lines"][-1] == f"trained {30 * 202}"
    assert {s["size"] for s in report["speeds"]} >= {2}
    assert "every one exactly once in each of 30 epochs" in done.stderr
    assert list(scratch.glob("bft-try-*")) == []


COMPARED = """\
import time
import torch
from torch.utils.data import DataLoader, TensorDataset
from bftrainer import elastic

torch.manual_seed(0)
x = torch.randn(202, 4)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), {norm}, torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
run = elastic.Run(model, optimizer, DataLoader(TensorDataset(x), batch_size=16), epochs=20)
for epoch in run.epochs():
    for (x,) in run.batches():
        optimizer.zero_grad()
        (model(x) - x[:, :1]).pow(2).sum().backward()
        run.step()
        time.sleep(0.02)
    run.report(model[0].weight.abs().sum())
"""


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("norm", "said"),
    [
        ("torch.nn.Tanh()", "changed nothing but the order of sums"),
        ("torch.nn.BatchNorm1d(4)", "changed something"),
    ],
    ids=["a sum", "batch normalisation"],
)
def test_beside_one_process_it_says_what_differs(scratch: Path, norm: str, said: str) -> None:
    done = tried(scratch, COMPARED.format(norm=norm), "--compare", "--json", timeout_s=280)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["comparison"]
    ways = (found["elastic"], found["alone"])
    assert [(way["updates"], way["samples"]) for way in ways] == [(260, 4040)] * 2
    assert all(way["metric"] > 0 and way["loss"] > 0 and way["seconds"] > 0 for way in ways)
    is_same = max(found["parameters"], found["losses"]) < 1e-5
    assert is_same == ("nothing" in said)
    assert f"Elastic training {said}" in done.stderr
    assert (found["first"] is None) == is_same
    assert is_same or "layer 1 (BatchNorm1d) normalises" in found["first"]["likely"]
    assert list(scratch.glob("bft-try-*")) == []


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("text", "code", "said", "status"),
    [
        pytest.param("print('hello')", "BFT-1057", "bftrainer.elastic", 1, marks=pytest.mark.long),
        pytest.param(
            LOOP.format(step="raise ValueError('no such luck')"),
            "BFT-1053",
            "no such luck",
            1,
            marks=pytest.mark.long,
        ),
        pytest.param(
            LOOP.format(step="if run.step() and run.step_count % 4 == 0: break"),
            "BFT-1054",
            "epoch 0",
            8,
            marks=pytest.mark.long,
        ),
    ],
    ids=["no bftrainer", "raises", "leaves epochs"],
)
def test_what_is_wrong_is_named_and_the_logs_are_kept(
    scratch: Path, text: str, code: str, said: str, status: int
) -> None:
    done = tried(scratch, text)
    assert "\nImporting torch, once for all of them.\n" in done.stdout
    assert f"error {code}: " in done.stderr
    assert said in done.stderr
    assert done.returncode == status
    [kept] = scratch.glob("bft-try-*")
    assert f"Logs are kept in {kept}." in done.stderr
    assert (kept / "state" / "daemon.log").exists()


@pytest.mark.long
@pytest.mark.timeout(150)
def test_each_failure_is_told_with_its_line(scratch: Path) -> None:
    step = "if number == 4: raise ValueError(f'\x1b[1mbad\x1b[0m batch of {os.getpid()}')"
    text = "import os\n" + LOOP.format(step=f"{step}\n        run.step()")
    done = tried(scratch, text)
    assert re.search(
        r"failure \d: BFT-1410: The script raised ValueError: bad batch of", done.stdout
    )
    assert "Raised at own.py:15." in done.stdout
    assert "\n  failures    " in done.stdout
    assert "error BFT-1053: own.py failed: BFT-1410: The script raised ValueError" in done.stderr
    assert "Raised at own.py:15." in done.stderr
    assert "x1b" not in done.stderr
    assert "What it printed is in the worker's log." not in done.stderr


@pytest.mark.timeout(150)
def test_a_script_that_fails_at_once_is_told_its_cause_once(scratch: Path) -> None:
    text = "from bftrainer import elastic\n\n\ndef deep():\n    raise ValueError('no luck')\n\n\n"
    done = tried(scratch, f"{text}deep()\n")
    told = f"{done.stdout}{done.stderr}"
    assert told.count("ValueError: no luck") == 1
    assert "error BFT-1053: own.py failed: BFT-1410: The script raised ValueError" in done.stderr
    assert told.count("Raised at own.py:5.") == 1
    assert "    deep()\n" in done.stdout  # who called it
    assert not re.search(r"runpy|elastic/worker.py", told)


@pytest.mark.timeout(150)
@pytest.mark.long
def test_it_ends_after_the_time_it_is_given(scratch: Path) -> None:
    options = ("--seconds", "2", "--epochs", "9999", "--workers-per-node", "2")
    done = tried(scratch, LOOP.format(step="run.step()"), *options, args=("--nodes", "2"))
    assert "--nodes follows" in done.stderr
    assert "options of try come before the script" in done.stderr
    assert "error BFT-1055: own.py had not finished after 2 s." in done.stderr
    assert done.returncode == ExitCode.TIMEOUT


@pytest.mark.timeout(150)
@pytest.mark.long
def test_it_says_what_takes_so_long_before_the_first_batch(scratch: Path) -> None:
    """With an interpreter of its own each node imports torch, as on a cluster; both wait for it."""
    own, said, script = scratch / "python", scratch / "said", scratch / "own.py"
    waits = f"until grep -q ': importing torch; nodes: ' {said}; do sleep 0.1; done"
    own.write_text(
        f'#!/bin/sh\ncase "$1" in *template.py) {waits};; esac\nexec {sys.executable} "$@"\n'
    )
    own.chmod(0o755)
    waits = f"while ': running the script up to' not in open({str(said)!r}).read():"
    text = LOOP.format(step="run.step()")
    script.write_text(text.replace("model =", f"{waits} time.sleep(0.1)\nmodel =", 1))
    with said.open("wb") as stream:
        child = process.spawn(
            (*TRY, "--interpreter", str(own), "--epochs", "1", str(script)),
            env={**os.environ, "TMPDIR": str(scratch)},
            cwd=scratch,
            stdout=stream,
            stderr=stream,
        )
    try:
        assert child.wait(120) == 0, said.read_text()
    finally:
        process.kill_group(child.pid)
        child.wait()


def test_another_runtime_is_refused(scratch: Path) -> None:
    done = tried(scratch, "#BFT --runtime command\nprint('hello')\n")
    assert "error BFT-1056: " in done.stderr
    assert done.returncode == 2


@pytest.mark.long
@pytest.mark.timeout(150)
def test_interrupted_it_leaves_nothing(scratch: Path) -> None:
    (scratch / "own.py").write_text(LOOP.format(step="run.step()"))
    with (scratch / "said").open("wb") as said:
        child = process.spawn(
            (*TRY, "--epochs", "9999", str(scratch / "own.py")),
            env={**os.environ, "TMPDIR": str(scratch)},
            cwd=scratch,
            stdout=said,
            stderr=said,
        )
    try:
        wait_for(lambda: "killed" in (scratch / "said").read_text())
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 130
    finally:
        process.kill_group(child.pid)
        child.wait()
    assert list(scratch.glob("bft-try-*")) == []
    wait_for(lambda: not processes_of(scratch), what="everything has ended")


@pytest.mark.long
@pytest.mark.timeout(150)
@pytest.mark.parametrize("is_allowed", [False, True])
def test_a_loss_that_is_nan_is_told(scratch: Path, is_allowed: bool) -> None:
    text = LOOP.format(step="run.step()").replace("model(x).sum()", "(model(x).sum() * torch.nan)")
    done = tried(scratch, text, *(["--allow-nan"] * is_allowed), "--epochs", "6", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["state"] == "finished"
    assert report["warning"].startswith("BFT-1435: ") is not is_allowed
    assert ("  warning     BFT-1435: " in done.stderr) is not is_allowed


@pytest.mark.long
@pytest.mark.timeout(150)
def test_extra_state_that_differs_is_told(scratch: Path) -> None:
    seen = (
        "class Seen:\n"
        "    samples = 0\n"
        "    def state_dict(self):\n        return {'samples': self.samples}\n"
        "    def load_state_dict(self, state):\n        self.samples = state['samples']\n"
        "seen = Seen()\n"
    )
    text = LOOP.format(step="run.step(); seen.samples += len(x) + run.rank").replace(
        "run = elastic.Run(", f"{seen}run = elastic.Run("
    )
    done = tried(scratch, text.replace("epochs=30", "epochs=30, extra={'seen': seen}"), "--json")
    assert done.returncode == 0, done.stderr
    [remark] = json.loads(done.stdout)["remarks"]
    assert remark.startswith("BFT-1438: The workers differ in extra state: extra.seen.samples is ")
    # On a terminal a page is named by the command that shows it.
    told = remark.replace(
        "docs/howto/same-on-all-workers.md", "'bftrainer help same-on-all-workers'"
    )
    assert f"  warning     {told}" in done.stderr
