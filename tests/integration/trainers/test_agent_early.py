"""What an agent starts before it has talked to anybody: the template it will need."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path

from bftrainer.batch import process
from tests.integration.agent_harness import Lab, children, in_lab, until
from tests.support.processes import is_running
from trainers.agent.start import log_of

ENDING = "import sys; sys.exit(int(sys.argv[1]))"


def test_a_template_is_started_before_the_daemon_says_a_word(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        daemon = await lab.start_daemon()
        daemon.is_talking = False
        agent = lab.start_agent(interpreters=(lab.torchless,))
        (template,) = await until(lambda: children(agent.pid), "a template")
        await until(lambda: daemon.heard, "hello")
        assert children(agent.pid) == [template]
        daemon.is_talking = True
        ending = lab.script("ending.py", ENDING)
        await until(lambda: daemon.server.is_connected("p1"), "a connection")
        daemon.send(lab.order("w1", ending, args=("3",)))
        exited = await until(partial(daemon.exited, "w1"), "exit")
        assert exited.returncode == 3
        assert children(agent.pid) == [template], "the worker came from it"
        assert log_of(tmp_path, 0).exists()

    in_lab(tmp_path, scenario)


def test_a_signal_during_start_up_takes_the_template_along(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        await lab.start_daemon()
        agent = lab.start_agent(interpreters=(sys.executable,))
        (template,) = await until(lambda: children(agent.pid), "a template")
        agent.send_signal(signal.SIGTERM)
        assert await lab.agent_ended() == 0
        await until(lambda: not is_running(template), "its end")

    in_lab(tmp_path, scenario)


def test_an_interpreter_that_is_not_there_is_told_when_it_is_needed(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        daemon = await lab.start_daemon()
        lab.start_agent(interpreters=("/nowhere/python",))
        await until(lambda: daemon.heard, "hello")
        order = lab.order("w1", lab.script("ending.py", ENDING), interpreter="/nowhere/python")
        daemon.send(order)
        exited = await until(partial(daemon.exited, "w1"), "exit")
        assert "/nowhere/python" in exited.cause

    in_lab(tmp_path, scenario)


def test_a_pilot_that_was_requeued_ends_at_once(tmp_path: Path) -> None:
    argv = (sys.executable, "-I", "-m", "trainers.agent", "--config", str(tmp_path / "nix.json"))
    first = process.run(argv, timeout_s=60, env={**os.environ, "SLURM_RESTART_COUNT": "0"})
    assert "BFT-1302" in first.stderr  # it looks for its configuration
    again = process.run(argv, timeout_s=60, env={**os.environ, "SLURM_RESTART_COUNT": "1"})
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
