"""Workers under a preamble: real agents, templates, keepers and programs."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bftrainer.fleet.runtimes.base import load_runtime
from bftrainer.fleet.wire.messages import Hello, KillWorker, StartWorker
from bftrainer.ground.protocol import WorkerConfig, from_body
from bftrainer.model.trainer import CheckpointContract, TrainerRecord, TrainerSpec, TrainerState
from tests.conformance.runtime import POLICY
from tests.integration.agent_harness import Daemon, Lab, end_of, in_lab, until
from tests.integration.daemon_scripts import light_spec, trainer_spec
from tests.support.processes import is_running
from tests.support.site import Site
from trainers.agent import templates
from trainers.agent.preambles import Preamble
from trainers.agent.templates import TemplatePool

# Tells in what it started; ends at once.
TELLING = """\
import json, os, sys
from pathlib import Path
told = {**os.environ, "there": os.getcwd()}
Path(sys.argv[1]).write_text(json.dumps(told))
"""
# The usual descriptors of shell scripts, a variable of its own, one that it changes; what
# stands for a container at its end.
PREPARING = """\
for fd in 3 4 5 6 7 8 9; do eval "exec $fd</dev/null"; done
export MADE="$GIVEN in $PWD" CHANGED=preamble
exec env WRAPPED=1 "$@"
"""
FAILING = """\
set -e
echo 'module: no such module "cuda/99"' >&2
(exit 7)
"""
GIVEN = (("GIVEN", "given"), ("CHANGED", "export"))
WHY = 'BFT-1061: The preamble ended with status 7: module: no such module "cuda/99"'


async def _met(lab: Lab, *, interpreters: tuple[str, ...] = ()) -> Daemon:
    daemon = await lab.start_daemon(interpreters=interpreters)
    lab.start_agent()
    await until(lambda: daemon.of(Hello), "hello")
    return daemon


def _as_trainer(lab: Lab, order: StartWorker, runtime: str) -> StartWorker:
    """Return the order of the same worker by another runtime."""
    config = from_body(order.config)
    assert isinstance(config, WorkerConfig)
    spec = TrainerSpec(
        name="t", user="u", script=config.script, interpreter=sys.executable,
        contract=CheckpointContract() if runtime == "command" else None, runtime=runtime,
    )  # fmt: skip
    record = TrainerRecord(trainer_id="t1", spec=spec, state=TrainerState.QUEUED, submitted_s=1.0)
    config = dataclasses.replace(config, checkpoint_dir=str(lab.directory / "checkpoints"))
    return load_runtime(runtime).start_message(record, config)


def _told(path: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(path.read_text())
    return told


def test_workers_of_a_template_start_under_their_preamble(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        daemon = await _met(lab)
        script, there = lab.script("tell.py", TELLING), tmp_path / "there"
        there.mkdir()
        for worker_id in ("w1", "w2"):
            own = {
                "environment": GIVEN,
                "preamble": PREPARING,
                "args": (str(tmp_path / worker_id),),
            }
            order = lab.order(worker_id, script, **own)
            order.config["cwd"] = str(there)
            daemon.send(order)
        for worker_id in ("w1", "w2"):
            await end_of(daemon, worker_id)
            told = _told(tmp_path / worker_id)
            assert told["MADE"] == f"given in {there}"
            assert (told["CHANGED"], told["WRAPPED"]) == ("preamble", "1")

    in_lab(tmp_path, scenario)
    (written,) = tmp_path.glob("preamble-*.sh")  # one file and one template for both
    assert written.stat().st_mode & 0o777 == 0o600
    assert len(list(tmp_path.glob("template-*.log"))) == 1


def _says(log: Path, words: str) -> bool:
    return log.exists() and words in log.read_text()


@pytest.mark.parametrize("runtime", ["torch", "mpi"])
def test_a_preamble_that_fails_says_why(tmp_path: Path, runtime: str) -> None:
    async def scenario(lab: Lab) -> None:
        daemon = await _met(lab)
        script = lab.script("tell.py", TELLING)
        for worker_id in ("w1", "w2"):  # another one tries again
            order = lab.order(worker_id, script, preamble=FAILING)
            daemon.send(order if runtime == "torch" else _as_trainer(lab, order, runtime))
            assert (await end_of(daemon, worker_id)).cause == WHY
            log = tmp_path / f"{worker_id}.log"
            await until(partial(_says, log, "no such module"), "its log")

    in_lab(tmp_path, scenario)


def test_a_preamble_that_does_not_end_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[tuple[str, int, str]] = []

    class Events:
        def forked(self, worker_id: str, pid: int) -> None:
            raise AssertionError(f"{worker_id} runs as {pid}")

        def exited(self, worker_id: str, returncode: int, cause: str) -> None:
            ended.append((worker_id, returncode, cause))

        def sweep(self) -> set[int]:
            return set()

    async def scenario() -> None:
        file = tmp_path / "preamble.sh"
        file.write_text("sleep 600")
        pool = TemplatePool(log_dir=tmp_path, events=Events(), started={})
        ours, theirs = socket.socketpair()
        body = {"worker_id": "w1", "log_path": str(tmp_path / "w1.log")}
        pool.fork(sys.executable, body, theirs, Preamble(str(file), str(tmp_path)))
        await until(lambda: ended, "it is given up")
        ours.close()

    monkeypatch.setattr(templates, "PREAMBLE_LIMIT_S", 0.2)
    asyncio.run(scenario())
    assert ended == [("w1", -9, "BFT-1061: The preamble did not end within 0.2 s")]


def test_a_preamble_that_hangs_ends_with_its_worker(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        daemon = await _met(lab)
        pids = tmp_path / "pids"
        hanging = f"echo $$ >>{pids}\nsleep 600\n"
        script = lab.script("tell.py", TELLING)
        daemon.send(lab.order("w1", script, preamble=hanging))
        await until(lambda: pids.exists() and pids.read_text(), "the preamble runs")
        daemon.send(KillWorker(worker_id="w1"))
        assert "BFT-1061" in (await end_of(daemon, "w1")).cause
        assert not is_running(int(pids.read_text()))
        daemon.send(lab.order("w2", script, preamble=hanging))
        await until(lambda: len(pids.read_text().split()) == 2, "another template")

    in_lab(tmp_path, scenario)


# ---- on a whole site --------------------------------------------------------------------

PROGRAM = """\
import os
print("BFT step=1 samples=1", flush=True)
open(os.environ["OUT"], "w").write(os.environ["MADE"] + os.environ["CHANGED"])
"""


def _program_spec(directory: Path, preamble: str) -> TrainerSpec:
    spec = trainer_spec(
        directory, PROGRAM, runtime="command", epochs=None, n_max=1, preamble=preamble
    )
    given = (*GIVEN, ("OUT", str(directory / "out")))
    return dataclasses.replace(
        spec, script=sys.executable, args=(spec.script,), interpreter="", environment=given
    )


@pytest.mark.long
def test_trainers_of_all_kinds_have_their_preambles(tmp_path: Path) -> None:
    with Site.open(tmp_path, n_nodes=2, policy=POLICY, options=()) as site:
        programs = tmp_path / "programs"
        good = site.client.submit(_program_spec(programs, PREPARING)).record.trainer_id
        site.in_state(good, TrainerState.FINISHED)
        assert (programs / "out").read_text() == f"given in {programs}preamble"

        mpi = light_spec(tmp_path / "mpi", preamble="export MADE=1\n", n_max=1)
        light = site.client.submit(mpi).record.trainer_id
        site.trains_at(light, 1)
        site.client.cancel(light, now=True)

        ends = {
            FAILING: WHY,
            "exit 0\n": "BFT-1061: The preamble ended with status 0",
            "exit 85\n": "BFT-1061: The preamble ended with status 85",
        }
        for number, (text, why) in enumerate(ends.items()):
            spec = _program_spec(tmp_path / f"failing{number}", text)
            failed = site.client.submit(spec).record.trainer_id
            record = site.in_state(failed, TrainerState.FAILED).record
            assert why in record.reason
            assert why in " ".join(site.client.explain(failed).sentences)
            assert "The preamble ended" in site.log_text(failed)
