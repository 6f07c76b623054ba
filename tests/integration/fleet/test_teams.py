"""Several workers per node on a whole site: a node joins and leaves with all its workers."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from bftrainer.batch import process
from bftrainer.fleet.wire.messages import Hello, StartWorker
from bftrainer.ground.protocol import WorkerConfig, to_body
from bftrainer.model.trainer import TrainerSpec, TrainerState
from milp.problem import Curve
from tests.conformance.runtime import POLICY
from tests.elastic import journal
from tests.elastic.controller import SCRIPTS
from tests.integration.agent_harness import Lab, in_lab, until
from tests.integration.daemon_scripts import SLOW, trainer_spec
from tests.support.processes import is_running
from tests.support.site import Site
from tests.support.waiting import wait_for

PER_NODE = 2
SETTINGS = {
    "samples": 101, "batch": 16, "epochs": 40, "dropout": 0.3, "noisy": True, "logical": 4,
    "delay_s": 0.4,
}  # fmt: skip
# Its pace is that of SETTINGS until everything has happened to it.
TEXT = (SCRIPTS / "train_ids.py").read_text().replace(
    'if settings["delay_s"]:', 'if not (directory / "hurry").exists():'
)  # fmt: skip
CURVE = Curve(sizes=(1, 2), samples_per_s=(100.0, 190.0))


def spec_of(work: Path, text: str, settings: dict[str, Any]) -> TrainerSpec:
    """Return a trainer of two workers per node whose script writes its journal to ``work``."""
    return trainer_spec(
        work,
        text,
        args=(json.dumps(settings),),
        epochs=None,
        workers_per_node=PER_NODE,
        curve=CURVE,
        environment=(("BFT_TEST_DIR", str(work)), ("OMP_NUM_THREADS", "1")),
    )


@pytest.mark.long
def test_nodes_of_two_workers_train_every_sample_once_to_the_same_bits(tmp_path: Path) -> None:
    """1 -> 2 -> 1 -> 2 nodes, a worker killed, parked, resumed: as one process alone."""
    work = tmp_path / "work"
    spec = spec_of(work, TEXT, SETTINGS)
    with Site.open(tmp_path / "site", n_nodes=2, policy=POLICY) as site:
        trainer = site.client.submit(spec).record.trainer_id
        site.trains_at(trainer, 2)
        members = _newest(work, size=2 * PER_NODE)
        assert sorted(members) == [0, 1, 2, 3]
        _a_rival_has_a_node(site, trainer, tmp_path / "rival")
        site.trains_at(trainer, 2)
        _one_worker_is_lost(site, trainer, work)
        site.trains_at(trainer, 2)
        site.server.client.submit(n_nodes=2, limit_s=60, duration_s=1, user="alice")
        site.was_parked(trainer)
        site.trains_at(trainer, 1, 2)
        (work / "hurry").touch()
        view = site.in_state(trainer, TrainerState.FINISHED)
        ranks = {e["rank"] for e in journal.entries(work, "entered")}
        logs = sorted(f.worker_id for f in site.client.logs(trainer))
    assert ranks == {0, 1, 2, 3}
    assert len(logs) % PER_NODE == 0
    assert all(f"{name}-1" in logs for name in logs if name.count("-") == 2)
    assert view.record.progress.samples == SETTINGS["samples"] * SETTINGS["epochs"]
    counts = journal.committed_ids(work)
    assert len(counts) == SETTINGS["epochs"]
    assert all(sorted(c.elements()) == list(range(101)) for c in counts.values())
    assert journal.disagreements(work, "hash", "average", "lr") == []
    assert journal.result(work) == _alone(tmp_path / "alone")


@pytest.mark.long
def test_a_sharded_model_trains_on_nodes_that_come_and_go(tmp_path: Path) -> None:
    """Grows, loses a worker and with it a node, is parked, resumes, and is gathered at the end."""
    work = tmp_path / "work"
    settings = {"epochs": 12, "delay_s": 0.3, "logical": 4}
    text = (SCRIPTS / "train_sharded.py").read_text()
    pace = 'time.sleep(settings["delay_s"])'
    assert pace in text
    text = text.replace(pace, f'(directory / "hurry").exists() or {pace}')
    spec = spec_of(work, text, settings)
    with Site.open(tmp_path / "site", n_nodes=2, policy=POLICY) as site:
        trainer = site.client.submit(spec).record.trainer_id
        site.trains_at(trainer, 2)
        wait_for(lambda: len(_ranks(work)) == 2 * PER_NODE, what="steps of two nodes")
        pids = _ranks(work)
        generation = site.view(trainer).record.progress.generation
        os.kill(pids[3], signal.SIGKILL)
        wait_for(lambda: not is_running(pids[2]), what="its neighbour ends, too")
        wait_for(
            lambda: site.view(trainer).record.progress.generation > generation,
            what="a generation without the node",
        )
        site.trains_at(trainer, 2)
        site.server.client.submit(n_nodes=2, limit_s=60, duration_s=1, user="alice")
        site.was_parked(trainer)
        site.trains_at(trainer, 1, 2)
        (work / "hurry").touch()
        view = site.in_state(trainer, TrainerState.FINISHED)
    assert view.record.progress.samples == 83 * 12
    counts = journal.committed_ids(work)
    assert all(sorted(c.elements()) == list(range(83)) for c in counts.values())
    assert len(counts) == 12
    assert journal.disagreements_of_shards(work) == []
    assert len(journal.result(work)["params"]) > 10, "gathered by the workers of the last node"


def _ranks(work: Path) -> dict[int, int]:
    """Return who has committed steps last, by rank."""
    return {e["rank"]: e["pid"] for e in journal.entries(work, "commit")}


def _newest(work: Path, *, size: int) -> dict[int, int]:
    """Return the pids of the newest generation of this many workers, by rank."""

    def complete() -> dict[int, int] | None:
        entered = journal.entries(work, "entered")
        key = max(((e["generation"], e["attempt"]) for e in entered), default=None)
        now = [e for e in entered if (e["generation"], e["attempt"]) == key]
        is_it = len(now) == size and all(e["size"] == size for e in now)
        return {e["rank"]: e["pid"] for e in now} if is_it else None

    return wait_for(complete, what=f"a generation of {size} workers")


def _a_rival_has_a_node(site: Site, trainer: str, directory: Path) -> None:
    """Another trainer takes a node for a while."""
    rival = site.client.submit(trainer_spec(directory, SLOW, n_max=1)).record.trainer_id
    site.trains_at(trainer, 1)
    site.client.cancel(rival)


def _one_worker_is_lost(site: Site, trainer: str, work: Path) -> None:
    """The second worker of the second node dies: its neighbour goes, the first node stays."""
    pids = _newest(work, size=2 * PER_NODE)
    generation = site.view(trainer).record.progress.generation
    os.kill(pids[3], signal.SIGKILL)
    wait_for(lambda: not is_running(pids[2]), what="its neighbour ends, too")
    wait_for(
        lambda: site.view(trainer).record.progress.generation > generation,
        what="a generation without the node",
    )
    assert is_running(pids[0])
    assert is_running(pids[1])
    lost = [r for r in site.rescales(trainer) if r.reason == "a member was lost"]
    assert [(r.size_before, r.size) for r in lost] == [(2, 1)]
    assert site.view(trainer).record.failures == 1


def _alone(directory: Path) -> journal.Entry:
    """The same script as one process that no agent started."""
    directory.mkdir()
    (directory / "hurry").touch()
    (directory / "train.py").write_text(TEXT)
    done = process.run(
        [sys.executable, str(directory / "train.py"), json.dumps(SETTINGS)],
        env={**os.environ, "BFT_TEST_DIR": str(directory), "OMP_NUM_THREADS": "1"},
        timeout_s=120,
    )
    assert done.returncode == 0, done
    return journal.result(directory)


def test_a_node_with_fewer_gpus_than_workers_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    async def scenario(lab: Lab) -> None:
        daemon = await lab.start_daemon()
        lab.start_agent(gpus=1)
        await until(lambda: daemon.of(Hello), "hello")
        config: dict[str, Any] = to_body(
            WorkerConfig(trainer_id="t1", worker_id="w1", node="n1", script="/s/x.py", local_size=2)
        )
        order = StartWorker(
            worker_id="w1", trainer_id="t1", interpreter=sys.executable, config=config
        )
        daemon.send(order)
        end = await until(lambda: daemon.exited("w1"), "refused")
        assert end.returncode < 0
        assert end.cause.startswith("BFT-1417: n1 has 1 GPU(s) for 2 workers")

    in_lab(tmp_path, scenario)
