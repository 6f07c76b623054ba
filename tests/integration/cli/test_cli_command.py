"""``submit --runtime command``: any program, with the checkpoint contract as options."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bftrainer.api.client import Client
from bftrainer.cli.main import main
from bftrainer.model.errors import ExitCode
from bftrainer.model.trainer import CheckpointContract, Launch, TrainerSpec
from tests.integration.cli_fixtures import home, service
from tests.support.memory_service import MemoryService, error_code, socket_of

__all__ = ["home", "service"]


def program(name: str, text: str = "#!/bin/sh\nexit 0\n", mode: int = 0o755) -> Path:
    path = Path.cwd() / name
    path.write_text(text)
    path.chmod(mode)
    return path


def spec_of(*argv: str) -> TrainerSpec:
    assert main(["submit", "--runtime", "command", *argv]) == ExitCode.OK
    return Client(socket_of()).trainer("t1").record.spec


@pytest.mark.usefixtures("service")
def test_a_program_and_its_arguments_are_sent_as_they_are() -> None:
    path = program("solver")
    spec = spec_of("--nodes", "1..4", "--", "./solver", "--mesh", "a b", "-n")
    assert (spec.script, spec.args) == (str(path), ("--mesh", "a b", "-n"))
    assert (spec.n_min, spec.n_max, spec.name, spec.interpreter) == (1, 4, "solver", "")
    assert spec.contract == CheckpointContract()


@pytest.mark.usefixtures("service")
def test_a_command_is_found_as_a_shell_finds_it() -> None:
    spec = spec_of("--", "sleep", "1")
    assert spec.script.endswith("/sleep")
    assert Path(spec.script).is_absolute()


@pytest.mark.usefixtures("service")
def test_an_interpreter_runs_a_script_that_cannot_run_itself() -> None:
    path = program("train.py", "print()", 0o644)
    spec = spec_of("--interpreter", sys.executable, "--", "train.py", "--lr", "1")
    assert (spec.script, spec.args) == (sys.executable, (str(path), "--lr", "1"))
    assert (spec.interpreter, spec.name) == ("", "train")


@pytest.mark.usefixtures("service")
def test_the_contract_is_made_of_options_and_lines_of_the_script() -> None:
    program("job.sh", "#!/bin/sh\n#BFT --launch first --checkpoint-status 3\nexit 0\n")
    spec = spec_of(
        *("--checkpoint-signal", "TERM", "--save-signal", "USR2", "--checkpoint-grace", "7.5"),
        *("--", "./job.sh"),
    )
    assert spec.contract == CheckpointContract(
        launch=Launch.FIRST, stop_signal="TERM", save_signal="USR2", saved_status=3, grace_s=7.5
    )


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["--runtime", "command", "--", "./plain"], "BFT-1001"),
        (["--runtime", "command", "--", "no-such-command"], "BFT-1001"),
        (["--runtime", "command", "--checkpoint-signal", "KILL", "./solver"], "BFT-1305"),
        (["--runtime", "command", "--launch", "some", "./solver"], "BFT-1000"),
        (["--launch", "first", "train.py"], "BFT-1305"),
        (["--runtime", "command", "--workers-per-node", "2", "./solver"], "BFT-1305"),
        (["--workers-per-node", "65", "train.py"], "BFT-1305"),
        (["--workers-per-node", "0", "train.py"], "BFT-1016"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_sent(
    service: MemoryService, capsys: pytest.CaptureFixture[str], argv: list[str], code: str
) -> None:
    program("solver")
    program("plain", mode=0o644)
    assert main(["submit", *argv]) != ExitCode.OK
    assert error_code(capsys) == code
    assert service.records == {}
