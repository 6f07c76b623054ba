"""The template of benchmarks whose workers sleep: the daemon can learn that nodes are worth it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from bftrainer.ground.protocol import Entered, Progress
from tests.elastic.controller import ROOT, Controller, TemplateProcess

LIGHT = ROOT / "scripts" / "workloads" / "light_interpreter.py"


def reports(c: Controller, worker_id: str) -> list[Progress]:
    """Wait for two reports of the newest generation; return all of it."""

    def of() -> list[Progress]:
        said = c.workers[worker_id].all(Progress)
        return [p for p in said if p.generation == c.generation]

    c.until(lambda: len(of()) >= 2, "two reports")
    return of()


def samples_per_step(said: list[Progress]) -> float:
    return (said[-1].samples - said[0].samples) / (said[-1].step - said[0].step)


@pytest.mark.long
def test_samples_grow_with_the_members_and_are_never_fewer(tmp_path: Path) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text(
        f'#!/bin/sh\nexec {shlex.join((sys.executable, "-I", "-S", str(LIGHT)))} "$@"\n'
    )
    interpreter.chmod(0o755)
    with (
        TemplateProcess(tmp_path, python=str(interpreter)) as template,
        Controller(tmp_path, template) as c,
    ):
        a, b, d = c.start("/dev/null", count=3)
        c.form([a], new=[a, b, d])
        alone = reports(c, a)
        c.form([a, b, d])
        together = reports(c, a)
        # A step is a tenth of a second by the clock, and ends of reports cut it anywhere.
        assert 2.5 < samples_per_step(together) / samples_per_step(alone) < 3.5
        c.form([b])
        said = [m.samples for m in c.workers[a].said if isinstance(m, Entered | Progress)]
        assert said == sorted(said)
        assert c.workers[b].all(Entered)[-1].samples >= said[-1]
        c.park()
