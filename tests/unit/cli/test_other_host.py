"""``--host``: a verb runs on another host over ssh; a stand-in runs what ssh would have run."""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.batch import process
from bftrainer.cli.main import main
from bftrainer.cli.other_host import (
    Login,
    is_shared_already,
    login_in,
    private_directory,
    remote_command,
    ssh_argv,
)
from bftrainer.model.errors import ExitCode

# Notes its arguments, and hands the last one to a shell as sshd does. MINE: what -G prints.
STANDIN = """\
#!/bin/sh
if [ "$1" = -G ]; then printf '%s\\n' "$MINE"; exit 0; fi
printf '%s\\n' "$@" > "$ASKED"
[ -n "$FAILS" ] && exit "$FAILS"
for command; do :; done
exec "$SHELL" -c "$command"
"""
# bftrainer over there: prints its words and its input, and ends with 7.
PROGRAM = f"""\
#!{sys.executable} -S
import json, sys
print(json.dumps([sys.argv[1:], sys.stdin.read()]))
print("a word on standard error", file=sys.stderr)
sys.exit(7)
"""
ODD = ["submit", "a b.py", "--", "it's", '"$HOME"', "`id`", "*", "", "ü", "-h", "a\nb", "!!", "~"]


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def asked(tmp_path: Path, short: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the stand-in notes its arguments."""
    write_program(tmp_path / "here" / "ssh", STANDIN)
    write_program(tmp_path / "there" / "bftrainer", PROGRAM)
    for name, value in {
        "PATH": f"{tmp_path}/here:{tmp_path}/there:/usr/bin:/bin",
        "ASKED": str(tmp_path / "asked"),
        "XDG_RUNTIME_DIR": str(short),
        "HOME": str(tmp_path),
        "SHELL": "/bin/sh",
        "MINE": "user ada",
        "FAILS": "",
    }.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "asked"


def typed(*words: str, stdin: str = "") -> process.Completed:
    argv = (sys.executable, "-m", "bftrainer", *words)
    return process.run(argv, timeout_s=60, stdin=stdin)


def test_a_verb_runs_over_there_with_its_words_input_and_status(asked: Path, short: Path) -> None:
    done = typed("--host", "ada@login1", *ODD, stdin="a script\n")
    assert json.loads(done.stdout) == [ODD, "a script\n"]
    assert (done.returncode, done.stderr) == (7, "a word on standard error\n")
    options = asked.read_text().splitlines()
    assert options[: options.index("--") + 2] == [
        *("-o", "ControlMaster=auto", "-o", f"ControlPath={short}/bftrainer-ssh/%C"),
        *("-o", "ControlPersist=1h", "-T", "--", "ada@login1"),
    ]
    assert stat.S_IMODE((short / "bftrainer-ssh").stat().st_mode) == 0o700


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
def test_any_shell_over_there_hands_the_words_on(shell: str, asked: Path) -> None:
    command = remote_command(Login(host="h", program="echo"), ODD[1:])
    done = process.run((shell, "-c", command), timeout_s=30)
    assert done.stdout == " ".join(ODD[1:]) + "\n"


def test_a_profile_over_there_may_name_the_place(
    asked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = f"export PATH={asked.parent}/there:$PATH\n"
    (asked.parent / ".profile").write_text(profile)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    command = remote_command(Login(host="h"), ["status"])
    for shell in ("/bin/sh", "/bin/bash", "/bin/csh"):  # sh stands in for the last
        monkeypatch.setenv("SHELL", shell)
        done = process.run(("/bin/sh", "-c", command), timeout_s=30)
        assert json.loads(done.stdout)[0] == ["status"]


def test_one_s_own_shared_connection_is_used(asked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "controlmaster auto\ncontrolpath /home/ada/.ssh/s-%C")
    assert main(["--host", "login1", "status"]) == 7
    assert asked.read_text().splitlines()[:3] == ["-T", "--", "login1"]


@pytest.mark.parametrize(
    ("fails", "words", "status"),
    [
        ("255", "BFT-1077: ssh did not reach login1", ExitCode.DAEMON_UNREACHABLE),
        ("3", "", 3),
    ],
)
def test_ssh_that_fails_is_told_from_the_verb(
    fails: str,
    words: str,
    status: int,
    asked: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FAILS", fails)
    assert main(["--host", "login1", "status"]) == status
    assert words in capsys.readouterr().err
    assert asked.exists()


def test_without_bftrainer_over_there_its_path_is_asked_for(
    asked: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (asked.parent / "there" / "bftrainer").unlink()
    assert main(["--host=login1", "status", "-o", "id"]) == ExitCode.NOT_FOUND
    error = capfd.readouterr().err
    assert "BFT-2128: bftrainer is no program on login1." in error
    step = "bftrainer --host login1 --host-program /PATH/bin/bftrainer status ..."
    assert step in error
    write_program(asked.parent / "other" / "bft", PROGRAM)
    program = str(asked.parent / "other" / "bft")
    assert main(["--host=login1", f"--host-program={program}", "nodes"]) == 7
    assert json.loads(capfd.readouterr().out)[0] == ["nodes"]


def test_without_ssh_the_verb_is_typed_over_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["--host", "login1", "status"]) == ExitCode.NOT_FOUND
    assert "BFT-1076: There is no ssh here" in capsys.readouterr().err


def test_a_terminal_here_is_one_there(asked: Path) -> None:
    here, there = os.openpty()
    argv = (sys.executable, "-m", "bftrainer", "--host", "login1", "top")
    child = subprocess.Popen(argv, stdin=there, stdout=there, stderr=there, start_new_session=True)
    os.write(here, b"\x04")  # its input ends
    assert child.wait(timeout=60) == 7
    os.close(here)
    os.close(there)
    assert asked.read_text().splitlines()[-4:-2] == ["-t", "--"]


def test_a_terminal_is_passed_on() -> None:
    argv = ssh_argv(Login(host="h"), ["top"], is_terminal=True, directory=None)
    assert argv[:4] == ("ssh", "-t", "--", "h")
    assert shlex.split(argv[4])[-2:] == ["bftrainer", "top"]


@pytest.mark.parametrize(
    ("words", "host", "rest"),
    [
        (["--host", "h", "status", "--host", "x"], "h", ["status", "--host", "x"]),
        (["--host-program", "/b", "--host=u@h", "-h"], "u@h", ["-h"]),
        (["--host", "h"], "h", []),
        (["status", "--host", "h"], None, ["status", "--host", "h"]),
        (["--host"], None, ["--host"]),
        (["--host-program", "/b", "status"], None, ["--host-program", "/b", "status"]),
    ],
)
def test_the_host_stands_before_the_verb(
    words: list[str], host: str | None, rest: list[str]
) -> None:
    login, left = login_in(words)
    assert (None if login is None else login.host, left) == (host, rest)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--host", "-oProxyCommand=id", "status"], "'-oProxyCommand=id' is no host of ssh."),
        (["--host", "", "status"], "'' is no host of ssh."),
        (["--host"], "Option '--host' requires an argument."),
        (["status", "--host", "h"], "It stands before the verb."),
    ],
)
def test_mistakes_are_told(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == ExitCode.USAGE
    error = capsys.readouterr().err
    assert error.startswith("error BFT-1000: ")
    assert told in error


def test_the_socket_lies_where_nobody_else_comes(short: Path, tmp_path: Path) -> None:
    def directory(runtime: Path | str) -> Path | None:
        return private_directory({"XDG_RUNTIME_DIR": str(runtime)}, str(short))

    runtime, of_all = short / "r", short / f"bftrainer-ssh-{os.geteuid()}"
    runtime.mkdir()
    own = runtime / "bftrainer-ssh"
    assert directory(runtime) == own
    own.chmod(0o750)
    assert directory(runtime) == of_all, "others could enter the first"
    own.rmdir()
    own.symlink_to(tmp_path)
    assert directory(runtime) == of_all
    assert directory(short / "none") == of_all
    assert directory("/tmp/" + "long/" * 20) == of_all
    assert directory("") == of_all
    of_all.rmdir()
    of_all.write_text("")
    assert directory("") is None


@pytest.mark.parametrize(
    ("settings", "is_shared"),
    [
        ("controlmaster false\n", False),
        ("controlmaster auto\ncontrolpath /a/%C\n", True),
        ("controlmaster auto\ncontrolpath none\n", False),
        ("controlmaster false\ncontrolpath /a/%C\n", False),
        ("", False),
    ],
)
def test_settings_of_the_user_are_read(settings: str, *, is_shared: bool) -> None:
    assert is_shared_already(settings) == is_shared
