"""Defaults of ``submit`` of a user's file and variables, and what wins over what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bftrainer.cli.main import main
from bftrainer.cli.user_defaults import config_path
from bftrainer.model.errors import ExitCode
from tests.support.memory_service import prepare_home

Output = pytest.CaptureFixture[str]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of the user's file, which is not there yet."""
    home = prepare_home(tmp_path, monkeypatch)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "etc"))
    path = home / "etc" / "bftrainer" / "config.toml"
    path.parent.mkdir(parents=True)
    return path


def asked(output: Output, *words: str) -> dict[str, Any]:
    status = main(["submit", "--dry-run", "--json", *words, "train.py"])
    printed = output.readouterr()
    assert status == ExitCode.OK, printed.err
    fields: dict[str, Any] = json.loads(printed.out)["spec"]
    return fields


def test_the_command_line_wins_over_the_script_the_variable_and_the_file(
    config: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    def weight(*words: str) -> float:
        return float(asked(capsys, *words)["weight"])

    assert weight() == 1.0
    config.write_text("[submit]\nweight = 2\n")
    assert weight() == 2.0
    monkeypatch.setenv("BFT_SUBMIT_WEIGHT", "3")
    assert weight() == 3.0
    Path("train.py").write_text("#BFT --weight 4\n")
    assert weight() == 4.0
    assert weight("--weight", "5") == 5.0


def test_all_kinds_of_options_may_be_set(
    config: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text(
        '[submit]\nnodes = "1:8"\njob_name = "digits"\nhold = true\nallow-nan = false\n'
        'export = ["A=1", "NONE,B=2"]\nmax-failures = 3\n'
    )
    spec = asked(capsys)
    assert (spec["n_max"], spec["name"], spec["hold"], spec["max_failures"]) == (
        8, "digits", True, 3,
    )  # fmt: skip
    assert spec["environment"][0] == ["B", "2"]
    # Sizes say the same in nodes and in GPUs; variables of several places add up.
    monkeypatch.setenv("BFT_SUBMIT_GPUS", "4")
    monkeypatch.setenv("BFT_SUBMIT_HOLD", "no")
    monkeypatch.setenv("BFT_SUBMIT_EXPORT", "C=3")
    spec = asked(capsys)
    assert (spec["n_max"], spec["gpus_per_unit"]) == (4, 1)
    assert spec["environment"][:2] == [["B", "2"], ["C", "3"]]
    assert not spec["hold"]
    assert asked(capsys, "--nodes", "2")["gpus_per_unit"] == 0


@pytest.mark.parametrize(
    ("text", "code", "line", "cause"),
    [
        ("[submit]\n\nwieght = 2\n", "BFT-1062", 3, "submit has no option --wieght."),
        ("[submit]\nweight = 'much'\n", "BFT-1062", 2, "'much' is not a valid float"),
        ("[submit]\nweight = [1, 2]\n", "BFT-1062", 2, "--weight takes a text or a number."),
        ("[submit]\nhold = 'perhaps'\n", "BFT-1062", 2, "--hold is true or false, not perhaps."),
        ("[submit]\n# sizes\nnodes = '8:1'\n", "BFT-1002", 3, "above the largest"),
        ("weight = 2\n", "BFT-1062", 1, "weight is no table [submit]."),
        ("[submit]\n[defaults]\n", "BFT-1062", 2, "defaults is no table [submit]."),
        ("[submit]\nmem = '4G'\n", "BFT-1062", 2, "submit has no option --mem."),
    ],
)
def test_a_mistake_names_file_and_line(
    text: str, code: str, line: int, cause: str, config: Path, capsys: Output
) -> None:
    config.write_text(text)
    assert main(["submit", "--dry-run", "train.py"]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert said.startswith(f"error {code}: {config}:{line}: ")
    assert cause in said


def test_a_file_that_is_no_toml_says_where(config: Path, capsys: Output) -> None:
    config.write_text("[submit]\nweight = \n")
    assert main(["submit", "--dry-run", "train.py"]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "BFT-1062" in said
    assert "line 2" in said
    assert str(config) in said


def test_a_wrong_variable_is_named(
    config: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not config.exists()
    monkeypatch.setenv("BFT_SUBMIT_EPOCS", "3")
    assert main(["submit", "--dry-run", "train.py"]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "error BFT-1062: The variable BFT_SUBMIT_EPOCS: submit has no option --epocs." in said


def test_the_file_is_below_the_users_configuration() -> None:
    assert config_path({"HOME": "/h"}) == Path("/h/.config/bftrainer/config.toml")
    relative = {"HOME": "/h", "XDG_CONFIG_HOME": "c"}  # as the standard has it: not heeded
    assert config_path(relative) == Path("/h/.config/bftrainer/config.toml")
    assert config_path({"XDG_CONFIG_HOME": "/c"}) == Path("/c/bftrainer/config.toml")


def test_a_program_may_be_the_default_kind(
    config: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not config.exists()
    monkeypatch.setenv("BFT_SUBMIT_RUNTIME", "command")
    assert main(["submit", "--dry-run", "--json", "sleep", "1"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["spec"]["script"].endswith("/sleep")
