"""Standard output on a full disk, closed, or in a locale that lacks letters."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
import pytest

from bftrainer.batch import process
from bftrainer.cli import main as main_module
from bftrainer.cli.main import main
from bftrainer.cli.output import print_csv, print_table
from bftrainer.model.errors import ExitCode

FULL = "/dev/full"  # full(4): every write fails with ENOSPC
TOLD = (
    "error BFT-1458: standard output: No space left on device: the output is not complete.\n"
    "next: Make room where it goes, or send it elsewhere.\n"
)
ROWS = [(f"t{i}", "a name") for i in range(5000)]  # more than any buffer takes
Output = pytest.CaptureFixture[str]


def ran(code: str, redirected: str, **env: str) -> process.Completed:
    """Run a shell line with this Python and its redirections."""
    line = f'exec "{sys.executable}" -c "$CODE" {redirected}'
    argv, added = ("/bin/sh", "-c", line), {"CODE": code, **env}
    return process.run(argv, timeout_s=60, env={**os.environ, **added})


VERB = "import sys; from bftrainer.cli.main import main; sys.exit(main({}))"


@pytest.mark.parametrize(
    "argv",
    [["-h"], ["--version"], ["help", "BFT-1423"], ["status", "-o", "help"], ["policy", "schema"]],
    ids=" ".join,
)
def test_a_verb_on_a_full_disk_says_so(argv: list[str], capsys: Output) -> None:
    with (
        Path(FULL).open("w", encoding="utf-8") as full,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(sys, "stdout", full)
        assert main(argv) == ExitCode.INTERNAL
    assert capsys.readouterr().err == TOLD


def test_the_interpreter_ends_without_a_second_complaint() -> None:
    done = ran(VERB.format(["help"]), f">{FULL}")
    assert (done.returncode, done.stderr) == (ExitCode.INTERNAL, TOLD)


@pytest.mark.parametrize("is_csv", [False, True], ids=["table", "never flushed"])
def test_in_the_middle_of_a_table(is_csv: bool, capsys: Output) -> None:
    def callback() -> None:
        if is_csv:
            print_csv(("ID", "NAME"), ROWS[:3])
        else:
            print_table(("ID", "NAME"), ROWS)

    with (
        Path(FULL).open("w", encoding="utf-8") as full,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(sys, "stdout", full)
        patch.setattr(main_module, "cli", click.Command("prints", callback=callback))
        assert main([]) == ExitCode.INTERNAL
    assert capsys.readouterr().err == TOLD


def test_where_nothing_can_be_told_the_status_is_left() -> None:
    done = ran(VERB.format(["frobnicate"]), f">{FULL} 2>{FULL}")
    assert (done.returncode, done.stdout, done.stderr) == (ExitCode.USAGE, "", "")


def test_closed_streams_are_no_defect() -> None:
    done = ran(VERB.format(["help"]), ">&-")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_has_enough_is_told_nothing() -> None:
    pipe = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {VERB!r}.format("
    pipe += "['help'])], stdout=subprocess.PIPE, stderr=subprocess.PIPE); p.stdout.close(); "
    pipe += "print(p.stderr.read())"
    assert ran(pipe, "").stdout == "b''\n"


@pytest.mark.parametrize(
    ("env", "letter"),
    [
        ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, "学"),  # as click has it
        ({"PYTHONIOENCODING": "latin-1"}, "\\u5b66"),
    ],
    ids=["C", "latin-1"],
)
def test_a_letter_that_the_locale_lacks_is_no_defect(env: dict[str, str], letter: str) -> None:
    code = (
        "import click, sys; from bftrainer.cli import main as m, output; m.cli = click.Command('x',"
        " callback=lambda: output.print_table(['NAME'], [['\\u5b66']])); sys.exit(m.main([]))"
    )
    done = ran(code, "", **env)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"NAME\n{letter}\n"


def test_other_errors_of_files_are_told_as_before(
    monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    def callback() -> None:
        Path("/nowhere/file").read_bytes()

    monkeypatch.setattr(main_module, "cli", click.Command("reads", callback=callback))
    assert main([]) == ExitCode.NOT_FOUND
    assert capsys.readouterr().err.startswith("error BFT-1069: /nowhere/file: No such file")
