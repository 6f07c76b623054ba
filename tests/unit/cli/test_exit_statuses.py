"""Exit statuses mean what docs/reference/cli.md says of them, for all verbs and all errors.

The kind of a problem is told by the words of its cause, as a reader would tell it, and each kind
has one status. Status 1 is for what failed, not for what was asked wrongly: its codes are listed.
"""

from __future__ import annotations

import ast
import errno
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from bftrainer.cli.main import all_verbs as root_verbs
from bftrainer.cli.main import cli, main
from bftrainer.model.errors import exit_code_of

ROOT = Path(__file__).parents[3]
PACKAGES = ("bftrainer", "lsf_adapters", "milp", "slurm_plugins", "trainers")
CODE = re.compile(r"BFT-\d{4}")
# Name in ``ExitCode`` -> status, as docs/reference/cli.md has them.
STATUS = {
    "INTERNAL": 1,
    "USAGE": 2,
    "REFUSED_BY_POLICY": 3,
    "NOT_FOUND": 4,
    "NOT_PERMITTED": 5,
    "DAEMON_UNREACHABLE": 6,
    "TIMEOUT": 7,
    "VALIDATION_FAILED": 8,
    "ALREADY_RUNNING": 75,
}
OF_CLASS = {
    "BftError": 1,
    "BatchSystemError": 1,
    "UsageError": 2,
    "TraceError": 8,
    "OptionError": 8,
}
# Words of a cause -> the statuses that fit them.
KINDS = {
    r"^There is no (trainer|study|error) ": {4},
    r"is not the id of a trainer|has not begun yet|pages of the documentation": {4},
    r" belongs to |^Only root |cannot be submitted by|is not safe|The private file": {5},
    r"did not answer within|not back after|still runs after|had not finished after": {7},
    r"cannot be reached|cannot be asked|did not answer \(|daemon did not start": {6},
    r"already (uses|run|running)|have a daemon already|is already run by": {75},
    r"the policy's limit|the policy allows": {3},
    r"is not the journal|cannot be compiled|does not hold a CURVE": {8},
    r"is not a (time|number|range|price)\b(?! zone)|not of the form|^Several |are both given": {2},
    r"[Cc]annot listen on": {1, 2},  # 1 for a port: systemd tries it again
    r"(script|SCRIPT).* failed: ": {1},
}
# Status 1 -> what failed; nothing else may end with it.
FAILED = {
    "BFT-1024": "a trainer of the demonstration",
    "BFT-1053": "the script",
    "BFT-1057": "the script, which trains nothing",
    "BFT-1457": "what is around the script",
    "BFT-1100": "a defect",
    "BFT-1106": "a defect, or another release",
    "BFT-1306": "a port, which may be free later",
    "BFT-1458": "a disk",
    "BFT-1629": "all trials",
    "BFT-1636": "a disk",
    "BFT-1638": "a process of ours",
    "BFT-2216": "a disk of the daemon",
    "BFT-3054": "a policy",
    "BFT-4201": "the all-reduces",
    "BFT-4203": "the script",
    "BFT-4206": "the script, for want of memory",
}
# Never an answer of a verb: a daemon's log, a test cluster, or the doctor's trial of a release.
NOT_TOLD = re.compile(r"BFT-(12(04|08|25|31|4[1457]|5[238]|7[389]|80|85)|15(1[12]|2[34]|7[35]))")


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """An error where it is made."""

    code: str
    status: int
    cause: str
    place: str


def _raised() -> Iterator[Raised]:
    for path in (p for package in PACKAGES for p in sorted((ROOT / package).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and _name(node.func) in OF_CLASS:
                yield from _of(node, f"{path.relative_to(ROOT)}:{node.lineno}")


def _of(call: ast.Call, place: str) -> Iterator[Raised]:
    texts = [one.value for one in call.args if isinstance(one, ast.Constant)]
    code = next((text for text in texts if CODE.fullmatch(str(text))), None)
    if code is None:
        return
    told = [one.value for one in call.keywords if one.arg == "exit_code"]
    names = re.findall(r"ExitCode\.([A-Z_]+)", ast.unparse(told[0])) if told else []
    statuses = [STATUS[name] for name in names]
    if told and "exit_code_of" in ast.unparse(told[0]):
        return  # it depends on the file
    cause = ast.unparse(call.args[1]) if len(call.args) > 1 else ""
    for status in statuses or [OF_CLASS[_name(call.func)]]:
        yield Raised(code=str(code), status=status, cause=cause.strip("f'\""), place=place)


def _name(function: ast.expr) -> str:
    return str(getattr(function, "id", getattr(function, "attr", "")))


@functools.cache
def every() -> tuple[Raised, ...]:
    return tuple(_raised())


def test_the_status_of_an_error_fits_what_its_cause_says() -> None:
    assert len(every()) > 200
    wrong = [
        (one, sorted(fits))
        for one in every()
        for words, fits in KINDS.items()
        if re.search(words, one.cause) and not (one.status in fits or NOT_TOLD.match(one.code))
    ]
    assert wrong == []


def test_status_1_is_of_what_failed_alone() -> None:
    ones = {one.code: one.place for one in every() if one.status == 1}
    told = {code: place for code, place in ones.items() if not NOT_TOLD.match(code)}
    assert {code: place for code, place in told.items() if code not in FAILED} == {}


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (errno.ENOENT, 4),
        (errno.ENOTDIR, 4),
        (errno.EACCES, 5),
        (errno.EPERM, 5),
        (errno.EROFS, 5),
        (errno.EEXIST, 2),
        (errno.EISDIR, 2),
        (errno.ENOSPC, 1),
        (errno.EDQUOT, 1),
        (errno.EIO, 1),
    ],
)
def test_a_file_that_cannot_be_used_is_missing_closed_or_on_a_disk_that_fails(
    number: int, status: int
) -> None:
    assert exit_code_of(OSError(number, "?")) == status


def test_the_page_and_the_help_have_the_same_statuses() -> None:
    page = (ROOT / "docs" / "reference" / "cli.md").read_text("utf-8")
    table = page.partition("## Exit codes")[2].partition("## Errors")[0]
    rows = [int(number) for number in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)]
    assert rows == [0, *STATUS.values()]
    epilog = " ".join((cli.epilog or "").split())
    assert [int(n) for n in re.findall(r"(?:: |, )(\d+) [a-z]", epilog)] == rows


# ---- what verbs do ----------------------------------------------------------------------


def _verbs(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if name == "SCRIPT":  # of profile: any script
            continue
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from _verbs(command, (*path, name))


@functools.cache
def all_verbs() -> tuple[tuple[str, ...], ...]:
    return tuple(_verbs(cli))


# What a verb that asks a daemon needs on its command line.
ASKING = {
    "submit": "train.py",
    "status": "",
    "nodes": "",
    "explain": "t1",
    "logs": "t1",
    "cancel": "t1",
    "hold": "t1",
    "release": "t1",
    "update": "t1 --weight 2",
    "requeue": "t1",
    "web": "",
    "top": "",
    "policy reload": "",
    "drain": "--all",
    "resume": "",
    "report harm": "",
    "account": "",
    "metrics": "",
    "down": "",
}


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a script, without a daemon and without Slurm."""
    (tmp_path / "train.py").write_text("import torch\nfrom bftrainer import elastic\n")
    monkeypatch.chdir(tmp_path)
    for name in ("BFTRAINER_SOCKET", "SLURM_CONF"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("BFTRAINER_STATE_DIR", str(tmp_path / "state"))
    return tmp_path


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("verb", root_verbs())
def test_every_verb_shows_its_help_and_refuses_what_it_does_not_know(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (path for path in all_verbs() if path[0] == verb):
        assert main([*path, "-h"]) == 0
        capsys.readouterr()
        assert main([*path, "--no-such-option"]) == 2
        err = capsys.readouterr().err
        assert err.startswith("error BFT-1000: "), path
        assert "\nnext: " in err


def test_every_verb_that_asks_a_daemon_is_in_the_table() -> None:
    asks = {" ".join(path) for path in all_verbs() if _takes_socket(path)}
    others = {"daemon", "doctor"}  # it is one; it looks at the site, too
    assert {path for path in asks if not path.startswith("study ")} - others == ASKING.keys()


def _takes_socket(path: tuple[str, ...]) -> bool:
    command: click.Command = cli
    for name in path:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    return any("--socket" in parameter.opts for parameter in command.params)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("verb", "rest"), ASKING.items(), ids=ASKING.keys())
def test_without_a_daemon_each_of_them_ends_with_6(
    verb: str, rest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*verb.split(), *rest.split()]) == 6
    assert capsys.readouterr().err.startswith("error BFT-1101: ")
