"""Trials that start from another trial's state where the script is not PyTorch's."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.study_fixtures import POLICY, StudyUser
from tests.support.site import Site

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
SCRIPTS = {
    "command": (COMMAND, "epochs", 1, {"runtime": "command", "interpreter": sys.executable}),
    "mpi": (MPI, "samples", 10, {"runtime": "mpi"}),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    base = tmp_path_factory.mktemp("site")
    with Site.open(base, n_nodes=2, policy=POLICY, options=()) as opened:
        yield opened


def _outcome(home: Path, trial: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((home / f"{trial}.json").read_text())
    return found


@pytest.mark.timeout(240)
@pytest.mark.parametrize("runtime", SCRIPTS)
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
