"""The table of verbs: loaded lazily, errors in one form, exit codes as documented."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest

from bftrainer import __version__
from bftrainer.batch import process
from bftrainer.cli import main as main_module
from bftrainer.cli.main import all_verbs, main
from bftrainer.cli.output import duration
from bftrainer.cli.submit_options import SPEC_OPTIONS
from bftrainer.model.columns import columns, shown
from bftrainer.model.errors import BftError, ExitCode

HEAVY = ("torch", "zmq", "sqlalchemy", "starlette", "uvicorn", "numpy", "pydantic", "rich")
Output = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    "argv",
    [["-h"], *([verb, "-h"] for verb in ("submit", "status", "account"))]
    + [["study", verb, "-h"] for verb in ("run", "status", "plan")],
)
def test_help_imports_nothing_heavy(argv: list[str]) -> None:
    code = (
        "import sys; from bftrainer.cli.main import main; code = main(sys.argv[2:]); "
        "loaded = set(sys.argv[1].split(',')) & set(sys.modules); "
        "sys.exit(code or repr(sorted(loaded)) if code or loaded else 0)"
    )
    done = process.run([sys.executable, "-c", code, ",".join(HEAVY), *argv], timeout_s=60)
    assert done.is_ok, done.stderr
    assert "Usage: bftrainer" in done.stdout


def test_the_package_runs_as_a_module() -> None:
    done = process.run([sys.executable, "-m", "bftrainer", "--version"], timeout_s=60)
    assert done.stdout == f"bftrainer {__version__}\n"


def test_help_lists_every_verb(capsys: Output) -> None:
    assert main(["-h"]) == 0
    text = capsys.readouterr().out
    for verb in all_verbs():
        assert f"\n  {verb} " in text


@pytest.mark.parametrize("verb", all_verbs())
def test_every_verb_loads_and_has_help(verb: str, capsys: Output) -> None:
    assert main([verb, "-h"]) == 0
    assert f"Usage: bftrainer {verb}" in capsys.readouterr().out


def test_version(capsys: Output) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"bftrainer {__version__}\n"


def test_no_verb_shows_help_as_a_mistake(capsys: Output) -> None:
    assert main([]) == ExitCode.USAGE
    assert "Begin here:" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv", [["frobnicate"], ["--frobnicate"], ["explain"], ["status", "--watch", "never"]]
)
def test_usage_errors_have_a_code_and_no_traceback(argv: list[str], capsys: Output) -> None:
    assert main(argv) == ExitCode.USAGE
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("error BFT-1000: ")
    assert second.startswith(("next: See 'bftrainer", "next: bftrainer explain ID; "))


def test_errors_cannot_steer_the_terminal(capsys: Output) -> None:
    main_module.print_error(BftError("BFT-1001", "No \x1b[2J\nfile.", "Look again."))
    assert capsys.readouterr().err == ("error BFT-1001: No \\nfile.\nnext: Look again.\n")


def _command_that_raises(problem: BaseException) -> click.Command:
    def callback() -> None:
        raise problem

    return click.Command("raises", callback=callback)


@pytest.mark.parametrize("code", list(ExitCode))
def test_the_exit_code_of_an_error_is_that_of_the_process(
    code: ExitCode, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    error = BftError("BFT-1999", "It went wrong.", "Try.", exit_code=code)
    monkeypatch.setattr(main_module, "cli", _command_that_raises(error))
    assert main([]) == code
    assert capsys.readouterr().err == "error BFT-1999: It went wrong.\nnext: Try.\n"


def test_an_interrupt_is_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    monkeypatch.setattr(main_module, "cli", _command_that_raises(KeyboardInterrupt()))
    assert main([]) == main_module.INTERRUPTED
    assert "Traceback" not in capsys.readouterr().err


def test_a_defect_shows_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main_module, "cli", _command_that_raises(ZeroDivisionError("bug")))
    with pytest.raises(ZeroDivisionError):
        main([])


def test_shell_completion_knows_verbs() -> None:
    done = process.run(
        [sys.executable, "-m", "bftrainer.cli.main"],
        timeout_s=60,
        env={
            "_BFTRAINER_COMPLETE": "bash_complete",
            "COMP_WORDS": "bftrainer s",
            "COMP_CWORD": "1",
        },
    )
    verbs = ["submit", "study", "status", "site", "simulate", "solve"]
    assert done.stdout.splitlines() == [f"plain,{verb}" for verb in verbs]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (-3.0, "0s"),
        (59.4, "59s"),
        (60, "1m00s"),
        (3599.9, "1h00m"),
        (7500, "2h05m"),
        (4 * 86400 + 3 * 3600, "4d03h"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_columns_align_and_are_not_cut() -> None:
    wide = "x" * 300
    assert columns(("NAME", ">N"), [("a", "1"), (wide, "22")]).splitlines() == [
        f"{'NAME':<300}   N",
        f"{'a':<300}   1",
        f"{wide}  22",
    ]


def test_shown_keeps_letters_and_escapes_the_rest() -> None:
    assert shown("naïve 名 \u202e\x1b[0m\x1b[1m\n\x1b") == "naïve 名 \\u202e\\n\\x1b"
    assert shown("ab\tc\td") == "ab      c       d", "a tab ends at the next multiple of eight"


def test_the_reference_names_every_verb_option_and_exit_code() -> None:
    text = (Path(__file__).parents[3] / "docs" / "reference" / "cli.md").read_text()
    for verb in all_verbs():
        assert f"`{verb}" in text, verb
    for option in SPEC_OPTIONS:
        for name in option.opts:
            assert f"`{name}" in text, name
    for code in ExitCode:
        assert f"| {code.value} |" in text, code
