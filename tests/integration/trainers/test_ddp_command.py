"""The template for DistributedDataParallel as a command: resized, killed, and still exact."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
import torch

import trainers.examples
from bftrainer.batch import process
from bftrainer.model.trainer import CheckpointContract, TrainerState
from tests.conformance.runtime import CURVE, open_site
from tests.integration.daemon_scripts import trainer_spec
from tests.support import hurried
from tests.support.processes import is_running
from tests.support.waiting import wait_for

DDP = Path(trainers.examples.__file__).parent / "ddp_command.py"
EPOCHS, SAMPLES = 40, 1000
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}


@pytest.mark.timeout(240)
@pytest.mark.long
def test_it_ends_as_a_plain_run_after_a_job_and_a_kill(tmp_path: Path) -> None:
    plain, elastic = tmp_path / "plain", tmp_path / "elastic"
    plain.mkdir()
    options = ("--epochs", str(EPOCHS))
    done = process.run(
        (sys.executable, str(DDP), *options),
        timeout_s=100,
        cwd=plain,
        env={**os.environ, **ENVIRONMENT},
    )
    assert done.is_ok, done.stderr
    spec = trainer_spec(
        elastic,
        "",
        runtime="command",
        contract=CheckpointContract(grace_s=20.0),
        script=sys.executable,
        args=(hurried.__file__, str(DDP), *options, "--pause", "0.1"),
        interpreter="",
        n_max=3,
        epochs=None,
        curve=CURVE,
        checkpoint_interval_s=1.0,
        environment=tuple(ENVIRONMENT.items()),
    )
    with open_site(tmp_path / "site") as site:
        trainer = site.client.submit(spec).record.trainer_id
        site.trains_at(trainer, 3)
        site.trains_on(trainer)
        wait_for(
            lambda: list((elastic / "checkpoints").glob("*/ddp.pt")), what="it has saved on request"
        )
        pids = map(int, re.findall(r"rank 0 of 3, pid (\d+)", site.log_text(trainer)))
        [first] = filter(is_running, pids)
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: site.view(trainer).record.failures == 1, what="the death was noticed")
        site.trains_on(trainer)
        site.server.client.submit(n_nodes=2, limit_s=20.0, duration_s=2.0)
        site.trains_at(trainer, 1)
        (elastic / "hurry").touch()
        view = site.in_state(trainer, TrainerState.FINISHED)
    [found] = (elastic / "checkpoints").glob("latest/result.json")
    result, expected = (
        json.loads(found.read_text()),
        json.loads((plain / "result.json").read_text()),
    )
    assert result["at"] == expected["at"]
    assert result["at"]["index_sum"] == EPOCHS * SAMPLES * (SAMPLES - 1) // 2
    assert view.record.progress.samples == EPOCHS * SAMPLES
    torch.testing.assert_close(
        torch.tensor(result["parameters"]),
        torch.tensor(expected["parameters"]),
        rtol=1e-3,
        atol=1e-4,
    )
