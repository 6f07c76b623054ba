"""The supported range of Python and torch, and who tells it."""

from __future__ import annotations

import ast
import json
import re
import socket
import subprocess
from pathlib import Path

import pytest

from bftrainer.batch import process
from bftrainer.cli.main import main
from bftrainer.ground import versions
from bftrainer.ground.protocol import Failed, from_body
from bftrainer.model.errors import ExitCode
from tests.integration.cli_fixtures import Output, home, output, service
from tests.support.memory_service import MemoryService
from tests.support.old_python import old_python

__all__ = ["home", "output", "service"]

PACKAGE = Path(versions.__file__).parents[1]
# Run by a Python that may be of any age.
FIRST = ("ground/versions.py", "elastic/template.py", "elastic/mpi/boot.py")


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("2.13.0+cpu", (2, 13)),
        ("2.10.0a0+git1f3a", (2, 10)),
        ("2.8.0+rocm6.4", (2, 8)),
        ("2.10.0+xpu", (2, 10)),
        ("2.9.0.dev20260101+cu128", (2, 9)),
        ("2.5.0a0+872d972e41.nv24.08", (2, 5)),
        ("3.10.13", (3, 10)),
        ("unknown", None),
        ("", None),
    ],
)
def test_alphas_and_builds_of_vendors_count_as_their_release(
    version: str, release: tuple[int, int] | None
) -> None:
    assert versions.release_of(version) == release


@pytest.mark.parametrize(
    ("python", "torch", "said"),
    [
        ("3.9.18", "2.8.0", "Python 3.9.18"),
        ("2.7.18", "", "Python 2.7.18"),
        ("3.10.0", "2.3.1+cu121", "torch 2.3.1+cu121"),
        ("3.12.1", "1.13.0a0+git2", "torch 1.13.0a0+git2"),
        ("3.10.0", "2.4.0", ""),
        ("3.99.0", "2.99.0", ""),
        ("4.0.0", "3.0.0", ""),
        ("3.11.7", "", ""),
        ("3.11.7", "unknown", ""),
    ],
)
def test_what_is_older_than_the_range_is_named(python: str, torch: str, said: str) -> None:
    assert versions.too_old(python, torch) == said


def test_the_range_is_said_in_words() -> None:
    pattern = r"Python 3\.10 to 3\.\d+ with torch 2\.4 to 2\.\d+, or newer"
    assert re.fullmatch(pattern, versions.supported())


@pytest.mark.parametrize("name", FIRST)
def test_what_an_unknown_python_reads_first_is_readable_by_3_6(name: str) -> None:
    tree = ast.parse((PACKAGE / name).read_text("utf-8"), feature_version=(3, 6))
    futures = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert "__future__" not in futures  # annotations: of 3.7
    evaluated = [
        annotation
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        for annotation in (node.returns, *(arg.annotation for arg in _arguments(node)))
        if annotation is not None
    ]
    for annotation in evaluated:  # list[int] raises before 3.9, int | None before 3.10
        assert isinstance(annotation, ast.Name | ast.Constant | ast.Attribute), annotation.lineno


def _arguments(node: ast.FunctionDef) -> list[ast.arg]:
    more = [arg for arg in (node.args.vararg, node.args.kwarg) if arg is not None]
    return [*node.args.args, *node.args.kwonlyargs, *more]


def test_the_releases_that_are_there_are_told_without_importing_torch(tmp_path: Path) -> None:
    python = old_python(tmp_path, "3.9.18", "2.3.0a0+git1")
    (Path(python).parent / "torch" / "__init__.py").write_text("raise ImportError")
    done = process.run((python, versions.__file__), timeout_s=60)
    assert done.stdout.split() == ["3.9.18", "2.3.0a0+git1"]


@pytest.mark.parametrize(
    ("runtime", "python", "torch", "said"),
    [
        ("torch", "3.9.18", "2.8.0", "Python 3.9.18"),
        ("mpi", "3.9.18", "2.8.0", "Python 3.9.18"),
        ("torch", "3.12.1", "2.3.1+cu121", "torch 2.3.1+cu121"),
        ("horovod", "3.12.1", "2.0.1", "torch 2.0.1"),
    ],
)
def test_submit_refuses_what_is_too_old_before_anything_starts(
    service: MemoryService, output: Output, runtime: str, python: str, torch: str, said: str
) -> None:
    old = old_python(Path.cwd(), python, torch)
    argv = ["submit", "--runtime", runtime, "--interpreter", old, "train.py"]
    assert main(argv) == ExitCode.USAGE
    captured = output.readouterr()
    assert f"error BFT-1006: {old} has {said}; a trainer needs Python 3.10 to" in captured.err
    assert "see 'bftrainer help versions'" in captured.err
    assert service.records == {}


def test_what_is_in_range_is_said_by_a_dry_run(home: Path, output: Output) -> None:
    newer = old_python(home, "3.99.1", "2.99.0.dev20991231+xpu")
    assert main(["submit", "--dry-run", "--interpreter", newer, "train.py"]) == ExitCode.OK
    assert "is Python 3.99.1; it imports torch 2.99.0.dev20991231+xpu" in output.readouterr().out


@pytest.mark.parametrize("words", [("allreduce",), ("train.py",)])
def test_profile_starts_nothing_with_what_is_too_old(
    home: Path, output: Output, words: tuple[str, ...]
) -> None:
    old = old_python(home, "3.12.1", "2.3.1")
    assert main(["profile", "--interpreter", old, *words]) == ExitCode.USAGE
    assert "error BFT-1006:" in output.readouterr().err


def test_try_starts_nothing_with_what_is_too_old(home: Path, output: Output) -> None:
    old = old_python(home, "3.9.18")
    assert main(["try", "--interpreter", old, "train.py"]) == ExitCode.USAGE
    assert "error BFT-1006:" in output.readouterr().err


def started(python: str, program: str, kind: socket.SocketKind, first: bytes = b"") -> list[bytes]:
    """Start a program of ours with a socket, send something, return what comes until its end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    argv = [python, str(PACKAGE / program), str(theirs.fileno())]
    with ours, theirs:
        child = process.spawn(argv, pass_fds=[theirs.fileno()], stderr=subprocess.STDOUT)
        theirs.close()
        if first:
            ours.sendall(first)
        said = list(iter(lambda: ours.recv(1 << 16), b""))
    assert child.wait(60) == 1
    return said


def pythons_of_old() -> list[str]:
    places = [Path.home() / ".pyenv" / "versions", Path("/opt/python")]
    here = sorted(str(p) for place in places for p in place.glob("3.[6-9].*/bin/python"))
    return [here[0], here[-1]] if here else []


@pytest.mark.parametrize("age", ["oldest", "newest", "stand-in"])
def test_a_template_of_an_old_python_says_so_and_ends(tmp_path: Path, age: str) -> None:
    python = _of_age(age, tmp_path)
    said = started(python, "elastic/template.py", socket.SOCK_SEQPACKET)
    failed = json.loads(said[-1])["failed"]
    assert failed["code"] == "BFT-1006"
    assert re.search(r"has Python 3\.[6-9]\.\d+; a trainer needs Python 3\.10 ", failed["cause"])


@pytest.mark.parametrize("age", ["oldest", "stand-in"])
def test_a_program_of_mpi_says_so_too(tmp_path: Path, age: str) -> None:
    said = started(_of_age(age, tmp_path), "elastic/mpi/boot.py", socket.SOCK_STREAM, b"{}\n")
    failed = from_body(json.loads(b"".join(said)))
    assert isinstance(failed, Failed)
    assert failed.code == "BFT-1006"
    assert re.search(r"has Python 3\.[6-9]\.\d+; a trainer needs Python 3\.10 ", failed.cause)


def _of_age(age: str, directory: Path) -> str:
    if age == "stand-in":
        return old_python(directory, "3.9.18")
    pythons = pythons_of_old()
    if not pythons:
        pytest.skip("there is no Python from 3.6 to 3.9 here")
    return pythons[age == "newest"]
