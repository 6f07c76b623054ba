"""Compiled models over batches of varying lengths: the numbers of one process, compiled or not."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bftrainer.ground.protocol import Diverged, Entered, Warm
from tests.elastic import journal
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess

SCRIPT = SCRIPTS / "compiled_lengths.py"
COMPILES_S = 300.0  # at most, on a busy machine
SIZES = (3, 1, 2, 3, 2, 1, 3)


class Led:
    """A training that makes no more updates than it takes to change its members."""

    def __init__(self, controller: Controller, **settings: object) -> None:
        self.controller, self.settings = controller, json.dumps({**settings, "is_led": True})
        self.allow(1)
        controller.form(self.warmed(1))

    def warmed(self, count: int, *, steps: int = 1_000_000) -> list[str]:
        """Start workers and wait until they have compiled and are warm."""
        c = self.controller
        ids = c.start(SCRIPT, [self.settings], steps=steps, count=count)
        self._until(lambda: all(c.workers[i].all(Warm) for i in ids), "warm")
        return ids

    def allow(self, step: int) -> None:
        """Let them train to this update."""
        path = self.controller.directory / "allowed"
        (fresh := path.with_suffix(".new")).write_text(str(step))
        fresh.rename(path)

    def rescale(self, size: int) -> None:
        """Change to this many members, and make two updates with them."""
        c = self.controller
        stay = c.members[:size]
        members = stay + self.warmed(max(0, size - len(stay)))
        c.commit(members, c.prepare(members))
        self._until(lambda: self._have_entered(members), "all entered")
        self.train(journal.last_step(c.directory) + 2)

    def _have_entered(self, members: list[str]) -> bool:
        """Return whether they have; else allow one more update, in which they vote."""
        c = self.controller
        said = [entered for m in members for entered in c.workers[m].all(Entered)]
        if sum(entered.generation == c.generation for entered in said) == len(members):
            return True
        self.allow(journal.last_step(c.directory) + 1)
        return False

    def park(self) -> int:
        """Have all leave; return the updates made."""
        c = self.controller
        c.generation += 1
        c.commit([], 0)
        self._until(self._have_left, "all left")
        return journal.last_step(c.directory)

    def _have_left(self) -> bool:
        c = self.controller
        if all(worker.returncode is not None for worker in c.workers.values()):
            return True
        self.allow(journal.last_step(c.directory) + 1)
        return False

    def train(self, step: int) -> None:
        """Train to this update."""
        self.allow(step)
        directory = self.controller.directory
        self._until(lambda: journal.last_step(directory) >= step, f"step {step}")

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        self.controller.until(condition, what, timeout_s=COMPILES_S)


def _alone(directory: Path, steps: int, **settings: object) -> dict[str, list[float]]:
    """Train in one process, not compiled."""
    directory.mkdir()
    argv = [
        sys.executable,
        str(SCRIPT),
        json.dumps({**settings, "compiled": False, "steps": steps}),
    ]
    environment = {**os.environ, "BFT_TEST_DIR": str(directory)}
    subprocess.run(argv, check=True, env=environment, timeout=120)
    result: dict[str, list[float]] = json.loads((directory / "result.json").read_text())
    return result


def _elastic(directory: Path, template: TemplateProcess, **settings: object) -> int:
    """Train compiled at changing sizes; return the updates made."""
    with Controller(directory, template) as c:
        led = Led(c, **settings)
        for size in SIZES:
            led.rescale(size)
        steps = led.park() + 6
        led.allow(steps + 1)
        c.form(led.warmed(2, steps=steps))
        c.finished()
        assert not any(w.all(Diverged) for w in c.workers.values())
    return steps


@pytest.mark.long
@pytest.mark.parametrize("network", ["gru", "attention"])
def test_compiled_models_and_lengths_that_vary_make_no_difference(
    tmp_path: Path, template: TemplateProcess, network: str
) -> None:
    if not (shutil.which("g++") or shutil.which("c++")):
        pytest.skip("torch.compile needs a C++ compiler")
    steps = _elastic(tmp_path, template, network=network)
    sizes = {entry["size"] for entry in journal.entries(tmp_path, "enter")}
    assert sizes == {1, 2, 3}
    commits = journal.entries(tmp_path, "commit")
    assert any(math.isnan(e["loss"]) and not e["count"] for e in commits), "a share has no words"
    alone = _alone(tmp_path / "alone", steps, network=network)
    ours = json.loads((tmp_path / "result.json").read_text())
    assert ours.keys() == alone.keys()
    for name, values in alone.items():
        assert ours[name] == pytest.approx(values, rel=1e-5, abs=1e-5), name


@pytest.mark.long
def test_a_mean_over_no_words_is_told_with_its_cure(
    tmp_path: Path, template: TemplateProcess
) -> None:
    settings = {"compiled": False, "weight": False}
    with Controller(tmp_path, template) as c:
        ids = c.begin(SCRIPT, [json.dumps(settings)], count=3, steps=20)
        c.finished()
        said = [told for i in ids for told in c.workers[i].all(Diverged)]
    assert said, "a share of one sentence with one word is NaN, and then all parameters are"
    assert all("run.weight(n)" in told.cause for told in said)
    _alone(tmp_path / "alone", 20, **settings)
    losses = [e["loss"] for e in journal.entries(tmp_path / "alone", "commit")]
    assert len(losses) == 20
    assert all(map(math.isfinite, losses)), "it is the share, not the batch, that has no words"
