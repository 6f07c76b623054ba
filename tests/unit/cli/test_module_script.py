"""Modules that are run as by ``python -m``: found without being imported, and checked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bftrainer.cli.main import main
from bftrainer.cli.module_script import file_of
from bftrainer.ground.main_module import module_of
from bftrainer.model.errors import UsageError

FILES = (
    "json.py",
    "pkg/__init__.py",
    "pkg/train.py",
    "pkg/__main__.py",
    "own/deep/train.py",
    "alone.py",
)
FORBIDDEN = "raise SystemExit('imported')\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with packages that must not be imported by the search."""
    for name in FILES:
        path = tmp_path / "code" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(FORBIDDEN)
    return tmp_path / "code"


def found(module: str, place: Path) -> str:
    return file_of(module, {"cwd": str(place), "interpreter": sys.executable}, {})


@pytest.mark.parametrize(
    ("module", "file"),
    [
        ("pkg.train", "pkg/train.py"),
        ("pkg", "pkg/__main__.py"),
        ("own.deep.train", "own/deep/train.py"),  # packages without __init__
        ("alone", "alone.py"),
    ],
)
def test_the_file_is_the_one_that_python_would_run(module: str, file: str, place: Path) -> None:
    assert found(module, place) == str(place / file)
    (place / "pkg" / "__init__.py").write_text("")
    (place / file).write_text("print(__file__)\n")
    argv = (sys.executable, "-m", module)
    ran = subprocess.run(argv, cwd=place, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str(place / file)


@pytest.mark.parametrize(
    ("module", "why"),
    [
        ("pkg.trian", "there is no pkg.trian"),
        ("nowhere.train", "there is no nowhere"),
        ("alone.train", "alone is no package"),
        ("own", "own is a package without __main__"),
        ("sys", "sys has no source file"),
        ("pkg/train.py", "that is no name of a module"),
        ("", "that is no name of a module"),
    ],
)
def test_what_python_could_not_run_is_refused(module: str, why: str, place: Path) -> None:
    with pytest.raises(UsageError) as refused:
        found(module, place)
    assert refused.value.code == "BFT-1078"
    assert refused.value.cause == f"The module {module} cannot be run from {place}: {why}."


def test_a_variable_is_for_its_own_file() -> None:
    assert module_of("/a/train.py", "a.train=/a/train.py") == "a.train"
    assert module_of("/b/boot.py", "a.train=/a/train.py") == ""
    assert module_of("/a/train.py", "") == module_of("", "") == module_of("", "a=") == ""


def test_a_dry_run_checks_the_module_and_reads_its_head(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    (place / "pkg" / "train.py").write_text("#BFT --epochs 7\nfrom .data import x\n")
    dry = ["submit", "--dry-run", "--json", "--runtime", "command"]
    assert main([*dry, "-m", "pkg.train", "--lr", "1"]) == 0
    spec = json.loads(capsys.readouterr().out)["spec"]
    assert spec["args"] == ["-m", "pkg.train", "--lr", "1"]
    assert (spec["name"], spec["epochs"]) == ("train", 7)

    assert main(["submit", "--dry-run", "--json", "-m", "pkg.train", "--lr", "1"]) == 0
    told = json.loads(capsys.readouterr().out)
    file = str(place / "pkg" / "train.py")
    assert told["spec"]["script"] == file
    assert told["spec"]["args"] == ["--lr", "1"]
    assert ["BFT_MODULE", f"pkg.train={file}"] in told["spec"]["environment"]
    assert f"module pkg.train is {file}" in told["checks"]

    (place / "pkg" / "train.py").write_text("#BFT --chdir /\n")
    assert main(["submit", "--dry-run", "-m", "pkg.train"]) == 2
    assert "error BFT-1078: The module pkg.train cannot be run from /: " in capsys.readouterr().err


@pytest.mark.long
def test_a_study_trains_a_module(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optuna")
    monkeypatch.chdir(place)
    (place / "s.yaml").write_text(
        "rule: {name: none, trials: 1, most: 1}\nparameters: {lr: [1, 2]}\n"
    )
    (place / "pkg" / "train.py").write_text("from .data import x\n")
    run = ["study", "run", "--dry-run", "--json", "-m", "s.yaml", "pkg.train", "--lr={lr}"]
    assert main(run) == 0
    spec = json.loads(capsys.readouterr().out)["spec"]
    assert spec["script"] == str(place / "pkg" / "train.py")
    assert ["BFT_MODULE", f"pkg.train={place}/pkg/train.py"] in spec["environment"]


def test_nothing_of_the_directory_is_imported_under_a_preamble(place: Path) -> None:
    """There the search runs in the working directory, which has a json.py."""
    preamble = place / "preamble.sh"
    preamble.write_text(":\n")
    values = {"cwd": str(place), "interpreter": sys.executable, "preamble": str(preamble)}
    assert file_of("pkg.train", values, {}) == str(place / "pkg" / "train.py")
