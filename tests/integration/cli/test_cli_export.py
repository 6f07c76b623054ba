"""``submit --export``: a variable, the submitting environment, or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from bftrainer.api.client import Client
from bftrainer.cli.main import main
from bftrainer.model.errors import ExitCode
from tests.integration.cli_fixtures import Output, home, output, service
from tests.support.memory_service import socket_of

__all__ = ["home", "output", "service"]


def exported(*options: str) -> dict[str, str]:
    Path("run").write_text("#!/bin/sh\n#BFT --export LINE=1\n")
    Path("run").chmod(0o755)
    name = f"--job-name=t{len(Client(socket_of()).trainers())}"
    assert main(["submit", name, "--runtime", "command", *options, "./run"]) == ExitCode.OK
    return dict(Client(socket_of()).trainers()[-1].record.spec.environment)


@pytest.mark.usefixtures("service")
def test_the_submitting_environment_but_what_belongs_to_its_session(
    output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = (
        *("SLURM_JOB_ID", "BFT_X", "BFTRAINER_X", "SSH_TTY", "XDG_RUNTIME_DIR", "DISPLAY"),
        *("OMPI_COMM_WORLD_RANK", "RANK", "PYTHONHASHSEED"),
    )
    for name in (*session, "MINE", "OTHER"):
        monkeypatch.setenv(name, "here")
    monkeypatch.setenv("LONG", "x" * 5000)
    monkeypatch.setenv("LINES_OF_TEXT", "a\nb")
    monkeypatch.setenv("BASH_FUNC_f%%", "() { :; }")
    found = exported("--export", "OTHER=given", "--export=ALL")
    assert (found["MINE"], found["OTHER"], found["LINE"]) == ("here", "given", "1")
    assert not found.keys() & {*session, "PWD", "LONG", "LINES_OF_TEXT", "BASH_FUNC_f%%"}
    warning = output.readouterr().err
    assert "LONG (5000 bytes)" in warning
    assert "LINES_OF_TEXT (not one line of UTF-8)" in warning
    assert "SSH_TTY" not in warning


@pytest.mark.usefixtures("service")
def test_an_environment_of_any_size_is_admitted(
    output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1500):
        monkeypatch.setenv(f"V{number}", "x" * (number % 90))
    found = exported("--export", "ALL", "--export", "SMALL=1")
    assert found["SMALL"] == "1"
    assert 500 < len(found) <= 1024
    assert "bytes, too many in all)" in output.readouterr().err


@pytest.mark.usefixtures("service")
def test_nothing_is_the_default_and_forgets_what_came_before() -> None:
    assert exported() == {"LINE": "1"}
    assert exported("--export", "A=1", "--export=NONE", "--export", "B=2") == {"B": "2"}


@pytest.mark.usefixtures("service")
def test_unknown_variables_are_refused_in_lists_too(output: Output) -> None:
    for text, said in (("ALL,NO_SUCH", "'NO_SUCH' is not"), ("NO_SUCH", "is not set here")):
        assert main(["submit", "--export", text, "train.py"]) == ExitCode.USAGE
        assert said in output.readouterr().err
