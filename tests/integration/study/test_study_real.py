"""Real studies: 24 configurations of a network on digits, on nodes that come and go."""

from __future__ import annotations

import csv
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits

from bftrainer.batch.local.workload import JobWorkload, WorkItem
from bftrainer.lab.demo.watch import NodeTimeline, Use, node_seconds
from tests.integration.study_fixtures import POLICY, StudyUser, outcome
from tests.support.site import Site

pytestmark = pytest.mark.long
SCRIPT = Path(__file__).parents[1].joinpath("study_digits.py").read_text()
TRIALS = 24
RULE = {"name": "sha", "trials": TRIALS, "least": 4, "most": 36, "eta": 3}
N_NODES = 6
LOOK_S = 0.2
# Jobs that take up to half of the nodes, again and again.
JOBS = JobWorkload(
    jobs=tuple(
        WorkItem(at_s=at_s, n_nodes=n, duration_s=s, limit_s=2 * s)
        for at_s, n, s in ((1.0, 3, 5.0), (11.0, 2, 6.0), (19.0, 3, 4.0))
    ),
    repeat_s=26.0,
)


def prepare(home: Path) -> None:
    """Write the data, and the configurations, drawn beforehand."""
    pixels, labels = load_digits(return_X_y=True)
    x = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    torch.save((x, torch.tensor(labels)), home / "digits.pt")
    rng = random.Random(7)  # noqa: S311 - no secret
    with (home / "drawn.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("lr", "momentum", "width", "dropout"))
        for _ in range(TRIALS):
            lr, width = 10 ** rng.uniform(-3.5, 0.3), rng.choice((4, 8, 16))
            writer.writerow((f"{lr:.6f}", rng.choice((0.0, 0.9)), width, rng.choice((0.0, 0.5))))


def studied(
    site: Site, name: str, *, is_unstable: bool
) -> tuple[dict[str, Any], NodeTimeline, float]:
    """Run the study; return what it came to, the nodes' time and how long it took."""
    user = StudyUser(site, site.base / name, SCRIPT)
    prepare(user.home)
    user.write(
        "digits", parameters={}, configurations="drawn.csv", metric="loss", rule=RULE, nodes="1:2"
    )
    if is_unstable:
        site.start_workload(JOBS)
    timeline, began_s = NodeTimeline(), time.monotonic()
    loop = user.start("digits", "digits.yaml", "train.py")
    try:
        while loop.poll() is None and time.monotonic() - began_s < 280:
            timeline.add(site.look(), site.client.trainers())
            time.sleep(LOOK_S)
        assert loop.poll() == 0, (user.home / "digits.out").read_text()
    finally:
        loop.kill()
        loop.wait()
    return user.summary("digits"), timeline, time.monotonic() - began_s


@pytest.mark.timeout(600)
def test_nodes_that_come_and_go_find_the_best_of_dedicated_ones(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with Site.open(tmp_path / "site", n_nodes=N_NODES, policy=POLICY) as site:
        dedicated, _, dedicated_s = studied(site, "dedicated", is_unstable=False)
        unstable, timeline, unstable_s = studied(site, "unstable", is_unstable=True)
        preempted = site.client.status()
    assert sorted(t["budget"] for t in unstable["trials"]) == [4] * 16 + [12] * 6 + [36] * 2
    assert unstable["best"] == dedicated["best"]
    assert outcome(unstable) == outcome(dedicated), "every value, to the last bit"
    promoted = [
        {t["number"] for t in one["trials"] if t["budget"] > 4} for one in (dedicated, unstable)
    ]
    spans = timeline.spans()
    offered = sum(span.length_s for span in spans if span.use.is_offered)
    trained = node_seconds(spans, Use.TRAINING)
    figures = {
        "best": unstable["trials"][unstable["best"]]["value"],
        "U": round(trained / offered, 3),
        "offered_node_s": round(offered, 1),
        "node_s": round(unstable["node_s"], 1),
        "dedicated_s": round(dedicated_s, 1),
        "unstable_s": round(unstable_s, 1),
        "given_back": preempted.give_backs,
        "taken": preempted.preemptions,
        "rescales": preempted.rescales,
        "promoted_alike": len(promoted[0] & promoted[1]),
    }
    (tmp_path / "figures.json").write_text(json.dumps(figures))
    for name, value in figures.items():
        record_property(name, value)
    assert preempted.give_backs + preempted.preemptions >= 3, "it was unstable"
    assert unstable_s <= 300
    assert figures["U"] >= 0.15, "most is lost to starts on a machine with few cores"
