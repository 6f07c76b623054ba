"""A plan is carried out on real pools: every rung has its sizes, and takes what was planned."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from bftrainer.batch import process
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.study.directory import read_events
from lsf_adapters.testcluster import Profile
from slurm_plugins.testcluster import FAST_CYCLE
from tests.integration.lsf_fixtures import PARAMETERS, running_lsf
from tests.integration.slurm_fixtures import daemon_on, running_cluster
from tests.integration.study_fixtures import POLICY, StudyUser
from tests.support.site import Site, opened_site
from tests.support.waiting import wait_for

RULE = {"name": "sha", "trials": 4, "least": 1, "most": 4, "eta": 2}
UNIT_S = {"1": 1.0, "2": 0.55, "3": 0.4, "4": 0.3}
BATCH_POLICY = """\
poll_interval_s: 0.5
requests_per_minute: 1000
min_gap_s: 2
gap_margin_s: 1
reserve_nodes_per_type: 0
join_window_s: 0.5
hold_idle_s: 10
"""
EMBEDDED_S, BATCH_S = 2.0, 4.0  # of a trial in a stage: a decision, a pilot, a worker
# An epoch takes what UNIT_S says; every one is a line: trial, epoch, nodes.
SCALES = """\
import os, time
from pathlib import Path
import torch
from torch.utils.data import DataLoader, TensorDataset
from bftrainer import elastic

UNIT_S = {1: 1.0, 2: 0.55, 3: 0.4, 4: 0.3}
p, number = elastic.params(), os.environ["BFT_TRIAL"]
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=p["lr"], momentum=0.5)
x = torch.randn(48, 4)
data = TensorDataset(x, x.sum(1, keepdim=True))
run = elastic.Run(model, optimizer, DataLoader(data, batch_size=24, shuffle=True), epochs=1)
for epoch in run.epochs():
    for a, b in run.batches():
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(a), b).backward()
        time.sleep(UNIT_S[run.size] / 2)
        run.step()
    with torch.no_grad():
        value = torch.nn.functional.mse_loss(model(x), data.tensors[1]).item()
    if run.rank == 0:
        with Path(os.environ["BFT_EPOCHS_LOG"]).open("a") as log:
            log.write(f"{number} {epoch} {run.size} {time.time()}\\n")
    run.report(value)
"""


Note = Callable[[str, object], None]


def planned(user: StudyUser, name: str, start_s: float) -> dict[str, Any]:
    """Plan a study for four rented nodes, and write the plan."""
    user.write(name, rule=RULE, nodes="1:4", unit_s=UNIT_S)
    priced = ("--price", "1/h", "--instances", "4", "--start", f"{start_s}s", "--spread", "0")
    done = user.does("plan", f"{name}.yaml", "--deadline", f"{3 * start_s + 3}s", *priced, "--json")
    assert done.is_ok, done.stderr
    (user.home / f"{name}.json").write_text(done.stdout)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def carried(user: StudyUser, name: str, *, is_killed: bool) -> tuple[dict[int, set[int]], float]:
    """Carry it out; return the sizes that each rung's epochs had, and how long it took.

    If its loop is killed in the first rung, what goes on is not told of the plan again.
    """
    words = ["--plan", f"{name}.json", f"{name}.yaml", "train.py"]
    if is_killed:
        loop = user.start(name, *words)
        try:
            wait_for(user.epochs_log.exists, what="an epoch is trained")
        finally:
            process.kill_group(loop.pid)
            loop.wait()
        words = [name]
    done = user.does("run", *words, timeout_s=240.0)
    assert done.is_ok, done.stderr
    sizes: defaultdict[int, set[int]] = defaultdict(set)
    lines = [line.split() for line in user.epochs_log.read_text().splitlines()]
    for _, epoch, size, _ in lines:
        budget = next(b for b in (1, 2, 4) if int(epoch) < b)
        sizes[budget].add(int(size))
    return dict(sizes), max(float(line[3]) for line in lines) - user.began_s(name)


def at_once_at_first(user: StudyUser, name: str) -> int:
    """Return how many trials of the first rung were active at the same time."""
    active: set[int] = set()
    most = 0
    for event in read_events(user.home / f"{name}.study" / "events.jsonl"):
        if event["event"] == "grown":
            break
        if event["event"] == "started":
            active.add(event["trial"])
        if event["event"] == "reported":
            active.discard(event["trial"])
        most = max(most, len(active))
    return most


def check(
    user: StudyUser, note: Note, *, start_s: float, late_s: float, is_killed: bool = False
) -> None:
    """Plan, carry out, and compare sizes and time."""
    plan = planned(user, "study", start_s)
    sizes, took_s = carried(user, "study", is_killed=is_killed)
    note("planned_s", plan["time_s"]["mean"])
    note("measured_s", took_s)
    assert sizes == {s["budget"]: {s["gpus_per_trial"]} for s in plan["stages"]}
    assert len({s["gpus_per_trial"] for s in plan["stages"]}) > 1
    trained_s = sum(s["units"] * UNIT_S[str(s["gpus_per_trial"])] for s in plan["stages"])
    assert trained_s <= took_s <= plan["time_s"]["mean"] + late_s
    assert at_once_at_first(user, "study") == plan["stages"][0]["at_once"]
    assert [t["stage"] for t in user.summary("study")["trials"]].count("complete") == 1


site = opened_site(scope="function", n_nodes=4, policy=POLICY)


@pytest.mark.long
def test_on_the_embedded_pool(site: Site, tmp_path: Path, record_property: Note) -> None:
    user = StudyUser(site, tmp_path / "user", SCALES)
    check(user, record_property, start_s=EMBEDDED_S, late_s=20.0, is_killed=True)


def on(daemon: DaemonProcess, base: Path) -> StudyUser:
    """Return a user of a daemon that is on another batch system: only its client is used."""
    return StudyUser(cast("Site", daemon), base / "user", SCALES)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_on_slurm(tmp_path: Path, record_property: Note) -> None:
    cycle = {"bf_interval_s": 2, "scheduler_parameters": FAST_CYCLE}
    with (
        running_cluster(n_nodes=4, **cycle) as cluster,
        daemon_on(cluster, tmp_path, BATCH_POLICY) as daemon,
    ):
        check(on(daemon, tmp_path), record_property, start_s=BATCH_S, late_s=60.0)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_on_the_stand_in_of_lsf(tmp_path: Path, record_property: Note) -> None:
    profile = dataclasses.replace(Profile.FAST, mbd_sleep_s=1.0, new_job_sched_delay_s=None)
    with running_lsf(dialect="ibm", n_nodes=4, parameters=PARAMETERS, profile=profile) as cluster:
        daemon = DaemonProcess(
            tmp_path / "state",
            batch_system="lsf",
            batch_options=cluster.config.batch_options(),
            policy=BATCH_POLICY,
        )
        daemon.start()
        try:
            check(on(daemon, tmp_path), record_property, start_s=BATCH_S, late_s=60.0)
        finally:
            daemon.stop()
