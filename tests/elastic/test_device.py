"""Real workers whose memory counts as GPUs': agreed, rescaled, killed, the same parameters.

See ``scripts/pretended.py`` for what is real here and what is not.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bftrainer.batch import process
from bftrainer.elastic.network import device
from bftrainer.elastic.process import worker_keeper
from bftrainer.fleet.generations.failures import FailureCounts
from bftrainer.ground.errors import ElasticError
from bftrainer.ground.protocol import Entered, Interrupted
from tests.elastic import journal
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess

TRAIN = SCRIPTS / "train_ids.py"
EPOCHS = 6
SAMPLES = 203
PLAIN = {"optimizer": "sgd"}
ON_GPU = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
)


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory, template: TemplateProcess) -> journal.Entry:
    """What the training comes to on one worker that has no device."""
    directory = tmp_path_factory.mktemp("fixed")
    with Controller(directory, template) as c:
        c.begin(TRAIN, [json.dumps(PLAIN)], epochs=EPOCHS)
        c.finished()
    return journal.result(directory)


def grown_shrunk_and_killed(c: Controller, kind: str) -> list[Entered]:
    """Train at sizes 1, 3, 2 (one left), 1 (one died) and 2; return what was entered."""
    holds = [[4, 2], [10, 3], [16, 4], [22, 5]]  # of 78 steps
    settings = [json.dumps({**PLAIN, "device": kind, "holds": holds})]
    first = c.begin(TRAIN, settings, epochs=EPOCHS)
    others = c.start(TRAIN, settings, count=2, epochs=EPOCHS)
    entered = c.form([*first, *others], new=others)
    c.trained_to(9)
    entered += c.form([*first, others[1]])
    c.trained_to(15)
    c.kill(first[0])
    c.until(lambda: c.workers[first[0]].returncode is not None, "its end is noticed")
    c.form([others[1]], abandon=True)
    last = c.start(TRAIN, settings, epochs=EPOCHS)
    entered += c.form([others[1], *last], new=last)
    c.finished()
    return entered


@pytest.mark.parametrize(
    ("kind", "backend"),
    [
        ("gloo", "nccl"),
        pytest.param("missing", "gloo (NCCL failed: rank ", marks=pytest.mark.long),
        ("staged", "gloo"),
        pytest.param("cuda", "nccl", marks=ON_GPU.marks),
    ],
)
def test_a_training_on_devices_is_that_of_one_worker(
    tmp_path: Path,
    template: TemplateProcess,
    fixed: journal.Entry,
    kind: str,
    backend: str,
) -> None:
    with Controller(tmp_path, template) as c:
        entered = grown_shrunk_and_killed(c, kind)
        logs = c.logs()
        broken = [i for w in c.workers.values() for i in w.all(Interrupted)]
    assert len(entered) == 7
    assert all(e.backend.startswith(backend) for e in entered), entered
    assert (entered[0].backend == backend) is (kind != "missing")
    assert ("this generation trains with gloo" in logs) is (kind == "missing")
    if kind == "missing" and not torch.distributed.is_nccl_available():
        assert "ProcessGroupNCCL" in entered[0].backend
    assert f"learning rate x 1, {backend}" in logs
    assert len(broken) <= 2
    counts = journal.committed_ids(tmp_path)
    assert sorted(counts) == list(range(EPOCHS))
    assert all(sorted(count.elements()) == list(range(SAMPLES)) for count in counts.values())
    assert journal.disagreements(tmp_path, "hash", "lr", "updates", "moments") == []
    found = journal.result(tmp_path)
    assert (found["steps"], found["lr"]) == (fixed["steps"], pytest.approx(fixed["lr"]))
    for close in ("parameters", "average"):
        for ours, theirs in zip(found[close], fixed[close], strict=True):
            torch.testing.assert_close(
                torch.tensor(ours), torch.tensor(theirs), rtol=1e-3, atol=1e-4
            )


@pytest.mark.parametrize("kind", ["gloo", ON_GPU])
def test_members_without_samples_get_the_state_from_device_to_device(
    tmp_path: Path, template: TemplateProcess, kind: str
) -> None:
    settings = {"samples": 23, "batch": 2, "epochs": 2, "device": kind}
    with Controller(tmp_path, template) as c:
        ids = c.start(TRAIN, [json.dumps(settings)], count=3)
        assert {e.backend for e in c.form(ids, new=ids)} == {"nccl"}
        c.finished()
    counts = journal.committed_ids(tmp_path)
    assert all(sorted(count.elements()) == list(range(23)) for count in counts.values())
    assert journal.disagreements(tmp_path, "hash", "lr", "updates") == []


@pytest.mark.parametrize("kind", ["gloo", ON_GPU])
def test_a_member_one_step_behind_gets_the_state_from_device_to_device(
    tmp_path: Path, template: TemplateProcess, kind: str
) -> None:
    """Its own state stays whole until what replaces it is there."""
    settings = {"epochs": 3, "device": kind, "fail_at": [5, 1]}
    with Controller(tmp_path, template) as c:
        ids = c.begin(TRAIN, [json.dumps(settings)], count=3)
        c.until(lambda: c.workers[ids[1]].all(Interrupted), "it failed there only")
        c.form(ids, abandon=True)
        c.finished()
    counts = journal.committed_ids(tmp_path)
    assert all(sorted(count.elements()) == list(range(SAMPLES)) for count in counts.values())
    assert journal.disagreements(tmp_path, "hash", "lr", "updates") == []


def test_nccl_that_is_demanded_on_cpus_ends_the_script_with_the_reason(
    tmp_path: Path, template: TemplateProcess
) -> None:
    with Controller(tmp_path, template) as c:
        (worker,) = c.start(TRAIN, ["{}"], backend="nccl")
        failed = c.failed(worker)
    assert failed.code == "BFT-1414"
    assert "the model is not on a GPU" in failed.cause


@pytest.mark.parametrize("kind", ["gloo", ON_GPU])
def test_a_member_that_is_told_to_end_leaves_at_a_step_boundary(
    tmp_path: Path, template: TemplateProcess, kind: str
) -> None:
    """SIGTERM reaches all of its processes, as a batch system sends it; nothing is interrupted."""
    settings = [json.dumps({"device": kind, "delay_s": 0.02, "loader_workers": 2})]
    with Controller(tmp_path, template) as c:
        first, second = c.begin(TRAIN, settings, count=2, epochs=EPOCHS)
        c.trained_to(4)
        loaders = worker_keeper.children(c.workers[second].pid)
        assert len(loaders) >= 2
        os.killpg(c.workers[second].pid, signal.SIGTERM)
        c.trained_to(8)
        c.form([first])
        c.until(lambda: c.workers[second].returncode is not None, "it has left")
        assert c.workers[second].returncode == 0
        c.finished()
        assert [i for w in c.workers.values() for i in w.all(Interrupted)] == []
    counts = journal.committed_ids(tmp_path)
    assert all(sorted(count.elements()) == list(range(SAMPLES)) for count in counts.values())


GIB = 2**30


@pytest.mark.parametrize(
    ("others", "users", "said"),
    [
        (1, "", ""),
        (40, "4194399, 40960", "(pid 4194399) hold 40.0 GiB of the 80.0 GiB"),
        (40, "", "Other processes hold 40.0 GiB"),
        (40, "OWN, 40960", ""),
    ],
)
def test_a_worker_does_not_join_beside_another_process_on_its_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: int, users: str, said: str
) -> None:
    """The answers of driver and nvidia-smi are made up. Processes of our own pilot may share it."""
    place = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: ((80 - 2 - others) * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 2 * GIB)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="1"))
    monkeypatch.setattr(device, "FOREIGN_PATIENCE_S", 0.5)
    monkeypatch.setattr(device, "OUR_PLACE", f"TMPDIR={tmp_path}".encode())
    own = process.spawn(["sleep", "600"], env={**os.environ, "TMPDIR": str(tmp_path)})
    text = users.replace("OWN", str(own.pid))
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{text}'\n" if users else "#!/bin/sh\nexit 9\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    try:
        if said:
            with pytest.raises(ElasticError, match="BFT-1445") as refused:
                device.require_free_memory(place)
            assert said in refused.value.cause
        else:
            device.require_free_memory(place)
    finally:
        own.kill()
        own.wait()


def test_a_node_whose_gpu_others_hold_is_avoided_and_the_trainer_not_blamed() -> None:
    failures = FailureCounts()
    assert not failures.note("n1", "BFT-1445: Other processes hold 40.0 GiB.", "w1.log", 100.0)
    assert failures.row.count == 0
    assert failures.is_cooling("n1", 100.0)
    assert failures.may_start(100.0)
