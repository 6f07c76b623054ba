"""docs/tutorial-cluster.md on a real Slurm: its commands work, and show what it says they show."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.api.client import Client
from bftrainer.batch import process
from bftrainer.model.trainer import TrainerRecord
from slurm_plugins.testcluster import FAST_CYCLE, SlurmTestCluster
from tests.integration.slurm_fixtures import running_cluster
from tests.support import pages
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm
ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "tutorial-cluster.md").read_text()
LOOKS = ("status", "nodes", "logs", "explain")  # a reader repeats them; the others are run once
PATIENCE_S = 90


class Reader:
    """Somebody who reads the page from its beginning and types its commands."""

    def __init__(self, cluster: SlurmTestCluster, home: Path) -> None:
        self.cluster = cluster
        self.directory = home / "first"
        self.directory.mkdir(parents=True)
        (home / "bftrainer").symlink_to(ROOT)
        for name, text in pages.files(PAGE).items():
            (self.directory / name).write_text(text)
        self.client = Client(home / "state" / "daemon.sock")
        self._env = {
            **os.environ,
            **cluster.env,
            "HOME": str(home),
            "BFTRAINER_STATE_DIR": str(home / "state"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        self._rest = iter(pages.commands(PAGE))
        self._job = ""

    def reads_to(self, words: str) -> str:
        """Do what the page says up to and with a command or event; return its output."""
        for command in self._rest:
            output = self._happens(command.text) if command.is_event else self._types(command)
            if words in command.text:
                return output
        raise AssertionError(f"the page has no more {words!r}")

    def runs(self, command: str) -> str:
        done = process.run(
            ("bash", "-c", command), timeout_s=PATIENCE_S, env=self._env, cwd=self.directory
        )
        assert done.is_ok, f"{command}: {done.stderr}"
        return done.stdout

    def record(self) -> TrainerRecord:
        return self.client.trainer("t1").record

    def _types(self, command: pages.Command) -> str:
        last = ""

        def is_as_shown() -> bool:
            nonlocal last
            last = self.runs(command.text)
            return command.is_seen_in(last)

        if command.text.split()[1] not in LOOKS:
            assert is_as_shown(), f"{command} printed:\n{last}"
            return last
        try:
            wait_for(is_as_shown, timeout_s=PATIENCE_S, interval_s=0.3)
        except AssertionError:
            raise AssertionError(f"{command} printed:\n{last}") from None
        return last

    def _happens(self, event: str) -> str:
        if event == "Now somebody's job takes a node.":
            self._job = self.cluster.submit(n_nodes=1, duration_s=600)
            wait_for(lambda: self.cluster.started_s(self._job), what="it starts")
        else:
            assert event == "Now that job ends."
            self.cluster.cancel(self._job)
        return ""


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    with running_cluster(
        n_nodes=3,
        gpus_per_node=0,
        bf_interval_s=2,
        scheduler_parameters=FAST_CYCLE,
        pilot_partition="scavenge",
        preempt_mode="REQUEUE",
    ) as cluster:
        one = Reader(cluster, tmp_path_factory.mktemp("home"))
        yield one
        one.runs("bftrainer down --now || true")  # where a test failed, there may be none


@pytest.mark.long
def test_a_loop_with_five_lines_survives_a_lost_node_and_its_daemon(reader: Reader) -> None:
    reader.reads_to("bftrainer up --partition scavenge --max-nodes 3 --dry-run")
    assert not (reader.directory.parent / "state").exists()
    reader.reads_to("bftrainer logs")
    three = set(reader.record().workers)
    assert len(three) == 3
    reader.reads_to("bftrainer explain")
    two = set(reader.record().workers)
    assert len(two) == 2
    assert two < three  # nothing was restarted
    reader.reads_to("bftrainer status")
    record = reader.record()
    assert two < set(record.workers)
    assert (len(record.workers), record.failures) == (3, 0)
    reader.reads_to("bftrainer down")
    squeue = ("squeue", "-h", "-p", "scavenge")
    wait_for(lambda: not reader.cluster.command(*squeue).stdout, what="all nodes are left")
    log = reader.reads_to("bftrainer logs")
    epochs = [int(epoch) for epoch in re.findall(r"^epoch (\d+):", log, re.MULTILINE)]
    assert epochs[0] >= record.progress.epoch > 1
    assert reader.record().failures == 0
    reader.reads_to("bftrainer cancel")


@pytest.mark.long
def test_a_script_in_the_shape_of_nanogpt(reader: Reader) -> None:
    reader.reads_to("bftrainer logs t2")


@pytest.mark.long
@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("transformers", "accelerate", "sklearn"))),
    reason="transformers, accelerate or scikit-learn is not installed",
)
def test_a_trainer_of_hugging_face_with_two_lines(reader: Reader) -> None:
    reader.reads_to("bftrainer logs t3")
