"""The gauges of the house: ``scripts/trace_walks.py``, on a real Slurm, and ``support.house``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.slurm_fixtures import need_slurm

ROOT = Path(__file__).parents[3]
# What each walk has to pass. How many modules it has depends on what else falls into its time.
WALKS = {
    "idle node, Slurm": {"slurm_plugins/launcher.py", "trainers/agent/main.py"},
    "announced job, Slurm": {"slurm_plugins/hook/watch.py", "bftrainer/decide/giveback.py"},
    "rescale": {"bftrainer/elastic/run.py", "bftrainer/fleet/generations/generation.py"},
}


def gauged(directory: Path, *argv: str) -> Any:
    """Run a gauge; whether its targets are met is no failure."""
    file = directory / "gauge.json"
    command = (sys.executable, *argv, "--json", str(file))
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=900
    )
    assert file.exists(), done.stderr
    return json.loads(file.read_text())


@pytest.mark.long
@pytest.mark.slurm
def test_the_walks_are_traced_on_a_real_slurm(tmp_path: Path) -> None:
    need_slurm()
    walks = gauged(tmp_path, "scripts/trace_walks.py", "--parts", "slurm", "rescale")["walks"]
    for name, passed in WALKS.items():
        assert passed <= walks[name].keys(), name


@pytest.mark.long
def test_the_house_has_its_rooms_in_order(tmp_path: Path) -> None:
    found = {one["name"]: one for one in gauged(tmp_path, "-m", "tests.support.house")}
    missed = {name for name, one in found.items() if one["measured"] > one["limit"]}
    # How much there is of it is told, and no limit.
    amounts = {"lines of the product", "lines of Python in all", "words of documents"}
    assert missed <= amounts | {"modules of the product"}
