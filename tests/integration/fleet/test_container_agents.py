"""Workers in containers: real agents, templates, keepers and programs."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bftrainer.fleet.runtimes.base import load_runtime
from bftrainer.fleet.wire.messages import (
    Hello,
    KillWorker,
    StartWorker,
    TellWorker,
)
from bftrainer.ground.protocol import Commit, Member, WorkerConfig, from_body, to_body
from bftrainer.model.trainer import CheckpointContract, TrainerRecord, TrainerSpec, TrainerState
from tests.conformance.container_runtime import ContainerKit
from tests.integration.agent_harness import Daemon, Lab, end_of, in_lab, until
from tests.support.containers import has, podman_kit, real_kit, recorded, stood_for
from tests.support.processes import is_running

TELLING = """\
import json, os, sys
from pathlib import Path
told = {"environ": dict(os.environ), "there": os.getcwd(), "root": sorted(os.listdir("/"))}
Path(sys.argv[1]).write_text(json.dumps(told))
if len(sys.argv) > 2:
    import time
    time.sleep(600)
"""
# Asks for nothing, says that it runs, and writes its checkpoint when it is asked to.
PROGRAM = """\
import os, signal, sys, time
from pathlib import Path
asked = Path(os.environ["BFT_CONTROL_FILE"])
def save(*_):
    Path(sys.argv[1]).write_text(asked.read_text())
    sys.exit(85)
signal.signal(signal.SIGUSR1, save)
print("BFT ready", flush=True)
while True:
    time.sleep(0.05)
"""
KITS = [
    "apptainer",
    "podman",
    pytest.param(
        "real podman",
        marks=[pytest.mark.long, pytest.mark.skipif(not has("podman"), reason="no podman here")],
    ),
    pytest.param("bwrap", marks=pytest.mark.skipif(not has("bwrap"), reason="no bwrap here")),
    pytest.param("charliecloud", marks=pytest.mark.skipif(not has("ch-run"), reason="no ch-run")),
]


def _kit(name: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> ContainerKit:
    if name == "real podman":
        kit = podman_kit(directory)
        if kit is None:
            pytest.skip("podman starts nothing on this machine")
        monkeypatch.setenv("CONTAINERS_CONF", kit.environ["CONTAINERS_CONF"])
        return kit
    made = real_kit if name in ("bwrap", "charliecloud") else stood_for
    kit = made(name, directory)
    monkeypatch.setenv("PATH", kit.environ["PATH"])
    return kit


def _contained(order: StartWorker, kit: ContainerKit, **changes: Any) -> StartWorker:
    config = from_body(order.config)
    assert isinstance(config, WorkerConfig)
    config = dataclasses.replace(
        config,
        container=kit.order.image,
        container_runtime=kit.order.runtime,
        container_mounts=kit.order.mounts,
        **changes,
    )
    return order.model_copy(update={"config": to_body(config)})


async def _met(lab: Lab) -> Daemon:
    daemon = await lab.start_daemon()
    lab.start_agent()
    await until(lambda: daemon.of(Hello), "hello")
    return daemon


def _written(path: Path) -> Callable[[], bool]:
    return lambda: path.exists() and bool(path.read_text())


@pytest.mark.parametrize("name", KITS)
def test_workers_fork_from_one_template_in_the_image(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = _kit(name, tmp_path, monkeypatch)

    async def scenario(lab: Lab) -> None:
        daemon = await _met(lab)
        script = lab.script("tell.py", TELLING)
        for worker_id in ("w1", "w2"):
            told = tmp_path / worker_id
            order = lab.order(worker_id, script, environment=(("TOKEN", "given"),))
            daemon.send(_contained(order, kit, args=(str(told),)))
            await end_of(daemon, worker_id)
            facts = json.loads(told.read_text())
            assert facts["environ"]["TOKEN"] == "given"  # noqa: S105
            assert facts["there"] == str(tmp_path)
            if kit.is_real:
                assert "boot" not in facts["root"]  # as it is on the host
        told = tmp_path / "w3"
        daemon.send(_contained(lab.order("w3", script), kit, args=(str(told), "stays")))
        await until(_written(told), "it runs")
        begun = await until(lambda: daemon.started("w3"), "it is told")
        pid = begun.pid
        assert is_running(pid)
        daemon.send(KillWorker(worker_id="w3"))
        assert (await end_of(daemon, "w3")).returncode == -signal.SIGKILL
        assert not is_running(pid)

    in_lab(tmp_path, scenario)
    logs = [file.read_text() for file in tmp_path.glob("template-*.log")]
    # One for both workers, and one for that with other variables.
    assert sum(text.count("bftrainer: container ") for text in logs) == 2
    if not kit.is_real:
        assert len(recorded(tmp_path)) == 2


@pytest.mark.parametrize("name", KITS)
def test_a_program_in_an_image_is_asked_for_its_checkpoint(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = _kit(name, tmp_path, monkeypatch)

    async def scenario(lab: Lab) -> None:
        daemon = await _met(lab)
        script, saved = lab.script("program.py", PROGRAM), tmp_path / "saved"
        spec = TrainerSpec(
            name="t", user="u", script=sys.executable, runtime="command",
            contract=CheckpointContract(),
        )  # fmt: skip
        record = TrainerRecord(
            trainer_id="t1", spec=spec, state=TrainerState.QUEUED, submitted_s=1.0
        )
        config = WorkerConfig(
            trainer_id="t1", worker_id="w1", node="n1", script=sys.executable,
            args=(str(script), str(saved)), cwd=str(tmp_path), log_path=str(tmp_path / "w1.log"),
            checkpoint_dir=str(tmp_path / "checkpoints"), container=kit.order.image,
            container_runtime=kit.order.runtime, container_mounts=kit.order.mounts,
        )  # fmt: skip
        (tmp_path / "checkpoints").mkdir()
        daemon.send(load_runtime("command").start_message(record, config))
        commit = Commit(
            generation=1, attempt=1, token="x", store_host="127.0.0.1", store_port=9,  # noqa: S106
            members=(Member(worker_id="w1", rank=0, node="n1", address="127.0.0.1"),),
        )  # fmt: skip
        await until(lambda: daemon.started("w1"), "the keeper runs")
        daemon.send(TellWorker(worker_id="w1", body=to_body(commit)))
        await until(lambda: daemon.said("w1", "Entered"), "the program runs")
        parked = dataclasses.replace(commit, generation=2, members=())
        daemon.send(TellWorker(worker_id="w1", body=to_body(parked)))
        assert (await end_of(daemon, "w1")).returncode == 0
        assert daemon.said("w1", "Saved")
        assert saved.read_text() == "stop\n"  # it could read the file, too

    in_lab(tmp_path, scenario)


@pytest.mark.parametrize(
    ("image", "path", "why"),
    [
        ("no.sif", None, "BFT-1082: The image"),
        ("image.sif", "/nowhere", "BFT-1081: "),
    ],
)
def test_an_image_that_cannot_be_started_says_why(
    image: str, path: str | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = _kit("apptainer", tmp_path, monkeypatch)
    wrong = dataclasses.replace(kit, order=dataclasses.replace(
        kit.order, image=str(tmp_path / image), runtime="singularity" if path else "apptainer"
    ))  # fmt: skip

    async def scenario(lab: Lab) -> None:
        daemon = await _met(lab)
        order = lab.order("w1", lab.script("tell.py", TELLING))
        daemon.send(_contained(order, wrong))
        end = await end_of(daemon, "w1")
        assert end.cause.startswith(why)
        assert os.uname().nodename in end.cause

    in_lab(tmp_path, scenario)
