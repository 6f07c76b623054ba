"""Members that do not hear each other though both reach the daemon: the others go on."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bftrainer.lab.try_records import Records, epochs
from tests.support.hosts import Cluster, running_hosts
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm
ROOT = Path(__file__).parents[2]
VERB_S = 120.0
SCRIPT = """\
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bftrainer import elastic

torch.manual_seed(0)
x = torch.randn(600, 8)
model = nn.Linear(8, 1)
loader = DataLoader(TensorDataset(x), batch_size=60, shuffle=True)
run = elastic.Run(model, torch.optim.SGD(model.parameters(), lr=0.01), loader, epochs=100_000)
for _ in run.epochs():
    for (rows,) in run.batches():
        model(rows).square().mean().backward()
        time.sleep(0.0005 * len(rows))
        run.step()
"""


class Training:
    """A trainer on all nodes, with a daemon of its user on the login node."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.home = cluster.home / "ada"
        self.samples = self.home / "samples"
        cluster.does("login", "mkdir", str(Path("/home/ada/samples")), user="ada")
        (self.home / "train.py").write_text(SCRIPT)
        self.records = Records(self.samples)

    def verb(self, *argv: str) -> str:
        bft = str(Path(sys.executable).parent / "bftrainer")
        env = {"BFT_RECORD_SAMPLES": "/home/ada/samples"}
        return self.cluster.does("login", bft, *argv, user="ada", env=env, timeout_s=VERB_S)

    def start(self) -> None:
        self.verb("up", "--partition", "bf")
        export = ("--export", "BFT_RECORD_SAMPLES")
        self.verb("submit", "--nodes", "1:3", *export, "train.py")
        self.trains_on(3)

    def size(self) -> tuple[int, int]:
        """Generation and size of the newest update; all hosts write into one directory."""
        self.records.look()
        lines = [
            x for of in self.records.processes.values() for x in of if x["kind"] == "committed"
        ]
        newest = max(lines, key=lambda x: (x["generation"], x["step"]), default=None)
        return (0, 0) if newest is None else (newest["generation"], newest["size"])

    def trains_on(self, size: int) -> None:
        wait_for(lambda: self.size()[1] == size, what=f"it trains on {size} nodes")

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.verb("status", "--json"))
        return found


@pytest.fixture(scope="module")
def training() -> Iterator[Training]:
    with running_hosts(n_nodes=3) as cluster:
        made = Training(cluster)
        made.start()
        yield made
        made.verb("cancel", "--now", "t1")


def _told(training: Training, *nodes: str) -> str:
    (cut,) = wait_for(lambda: training.status()["cuts"], what="the pair is named")
    assert f"BFT-1340: {' and '.join(sorted(nodes))} cannot reach each other" in cut
    return str(cut)


@pytest.mark.long
@pytest.mark.parametrize(
    ("one", "other", "one_way"),
    [
        ("n1", "n3", False),
        pytest.param("n2", "n3", True, marks=pytest.mark.long),
        pytest.param("n2", "n1", True, marks=pytest.mark.long),
    ],
)
def test_one_of_two_that_do_not_hear_each_other_is_left_out_until_they_do(
    training: Training, one: str, other: str, *, one_way: bool
) -> None:
    before = training.size()[0]
    training.cluster.block(one, other, one_way=one_way)
    training.trains_on(2)
    assert training.size()[0] == before + 1, "at the first attempt"
    assert "goes on without" in _told(training, one, other)
    explained = training.verb("explain", "t1")
    assert "BFT-1340" in explained
    (left_out,) = re.findall(r"goes on without (n\d)", explained)
    assert "cannot reach it" in training.verb("nodes"), left_out
    training.cluster.unblock(one, other)
    training.trains_on(3)
    wait_for(lambda: not training.status()["cuts"], what="nothing is cut any more")
    assert training.status()["trainers"][0]["record"]["failures"] == 0
    log = (training.home / ".bftrainer").glob("*/daemon.log")
    assert any("BFT-1340" in path.read_text() for path in log)


@pytest.mark.long
def test_the_same_without_a_daemon(training: Training) -> None:
    training.trains_on(3)
    daemon = training.cluster.process("login", "bftrainer daemon")
    os.kill(daemon, signal.SIGKILL)
    training.cluster.block("n1", "n3")
    training.trains_on(2)
    training.cluster.unblock("n1", "n3")
    training.verb("up", "--partition", "bf")
    training.trains_on(3)


@pytest.mark.long
def test_samples_were_used_once(training: Training) -> None:
    """The last of this module: what all tests before it did counts."""
    training.trains_on(3)

    def epochs_begun() -> int:
        training.records.look()
        return len(epochs(training.records.processes))

    wait_for(lambda: epochs_begun() > 6, what="six epochs are whole")
    *whole, last = epochs(training.records.processes)
    assert [use for use in whole if not use.is_once] == []
    assert last.epoch == whole[-1].epoch + 1
