"""Trials that start from another trial's state where the script is not PyTorch's."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from bftrainer.api.checkpoint_files import copy_newest
from tests.integration.study_fixtures import POLICY, StudyUser
from tests.support.site import Site, opened_site
from tests.support.waiting import wait_for

HEIR, PARENT, LAST = "4", "3", 2  # by these seeds; intervals
# Weights shrink by the rate at every update, so they tell how many there were at which rate. The
# heir removes its parent's files before it looks at its own: they are a copy.
BEGINS = """\
import json, os, pathlib, shutil
lr, trial = json.loads(os.environ["BFT_PARAMETERS"])["lr"], os.environ["BFT_TRIAL"]
home = pathlib.Path.cwd()
if trial == "4":
    shutil.rmtree(home / "pbt.study/trials/0003")
def end(weight, updates):
    (home / f"{trial}.json").write_text(json.dumps({"weight": weight, "updates": updates}))
"""
COMMAND = f"""\
{BEGINS}
file = pathlib.Path(os.environ["BFT_CHECKPOINT_DIR"], "deep", "state.json")
file.parent.mkdir(exist_ok=True)
weight, updates = json.loads(file.read_text()) if file.exists() else (1.0, [])
while len(updates) < int(os.environ["BFT_EPOCHS"]):
    weight *= 1 - lr
    updates.append(trial)
    print(f"BFT epoch={{len(updates)}} value={{weight}}", flush=True)
    file.with_suffix(".new").write_text(json.dumps([weight, updates]))
    file.with_suffix(".new").rename(file)
end(weight, updates)
"""
MPI = f"""\
{BEGINS}
import numpy as np
from bftrainer.elastic import mpi
weight, counts = np.ones(1), np.zeros(8, dtype=np.int64)
def step(run):
    weight[:] *= 1 - run.params["lr"]
    counts[int(trial)] += 1
run = mpi.Run(replicated={{"weight": weight, "counts": counts}}, batch=10)
if run.loop(step, steps=1):
    run.report(weight[0])
    end(weight[0], [str(n) for n, count in enumerate(counts) for _ in range(count)])
"""
# Trial 0 is the best and trains its second epoch while it is copied, trial 3 the worst.
BUSY = """\
import os, pathlib, time
home, trial = pathlib.Path.cwd(), int(os.environ["BFT_TRIAL"])
def wait(name):
    while not (home / name).exists():
        time.sleep(0.02)
file = pathlib.Path(os.environ["BFT_CHECKPOINT_DIR"], "epoch")
epoch = int(file.read_text()) if file.exists() else 0
while epoch < int(os.environ["BFT_EPOCHS"]):
    epoch += 1
    if (trial, epoch) == (0, 2):
        (home / "trains").touch()
        wait("copied")
    if (trial, epoch) == (3, 1):
        wait("trains")
    print(f"BFT epoch={epoch} value={trial}", flush=True)
    file.write_text(str(epoch))
"""
SCRIPTS = {
    "command": (COMMAND, "epochs", 1, {"runtime": "command", "interpreter": sys.executable}),
    "mpi": (MPI, "samples", 10, {"runtime": "mpi"}),
}


site = opened_site(n_nodes=3, policy=POLICY, options=())


def _outcome(home: Path, trial: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((home / f"{trial}.json").read_text())
    return found


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "runtime",
    ["command", *(pytest.param(r, marks=pytest.mark.long) for r in SCRIPTS if r != "command")],
)
def test_an_heir_has_its_parent_s_state_and_its_own_parameters(site: Site, runtime: str) -> None:
    script, unit, interval, submit = SCRIPTS[runtime]
    if runtime == "mpi":
        pytest.importorskip("mpi4py")
    user = StudyUser(site, site.base / runtime, script)
    rule = {"name": "pbt", "population": 4, "interval": interval, "most": LAST * interval}
    # One after the other: who is compared with whom does not depend on the time.
    user.write("pbt", rule=rule, unit=unit, parallel=1, submit=submit)
    done = user.does("run", "pbt.yaml", "train.py")
    assert done.is_ok, done.stderr
    trials = user.summary("pbt")["trials"]
    (heir,) = (t for t in trials if t["parent"] is not None)
    parent = trials[heir["parent"]]
    assert (str(heir["number"]), str(parent["number"])) == (HEIR, PARENT)
    old, own = parent["parameters"]["lr"], heir["parameters"]["lr"]
    assert own / old in (pytest.approx(0.8), pytest.approx(1.2))
    found = _outcome(user.home, HEIR)
    assert found["updates"] == [PARENT, HEIR], "nothing is trained again"
    assert found["weight"] == pytest.approx((1 - old) * (1 - own))
    assert heir["values"] == {str(LAST * interval): found["weight"]}, "none of its parent's"
    again = _outcome(user.home, PARENT)
    assert again["updates"] == [PARENT] * LAST, "it knows nothing of its heir"


@pytest.mark.long
@pytest.mark.timeout(60)
def test_a_parent_that_ends_its_budget_while_it_is_copied_has_an_heir_later(site: Site) -> None:
    user = StudyUser(site, site.base / "busy", BUSY)
    rule = {"name": "pbt", "population": 4, "interval": 1, "most": 3}
    submit = {"runtime": "command", "interpreter": sys.executable}
    user.write("pbt", rule=rule, parallel=2, submit=submit, retry=0)
    late: list[Path] = []

    def copy_late(source: Path, directory: Path) -> None:
        if not late:
            late.append(source)
            (user.home / "copied").touch()
            (parent,) = (
                t.record
                for t in site.client.trainers()
                if t.record.spec.checkpoint_dir == str(source)
            )
            wait_for(lambda: site.client.trainer(parent.trainer_id).record.rung_s is not None)
        copy_newest(source, directory)

    with mock.patch("bftrainer.study.actions.copy_newest", copy_late):
        user.says("run", "pbt.yaml", "train.py")
    assert [path.name for path in late] == ["0000"]
    *_, heir = user.summary("pbt")["trials"]
    assert (heir["number"], heir["parent"], heir["stage"]) == (4, 0, "complete")
    assert heir["values"] == {"3": 4.0}, "it went on where its parent waits"
