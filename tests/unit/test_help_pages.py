"""Pages of the documentation, as whoever installed the wheel opens them."""

from __future__ import annotations

import ast
import re
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

from bftrainer.batch import process
from bftrainer.cli import pages
from bftrainer.cli.main import VERBS, main
from bftrainer.cli.pages import command_of, with_commands
from tests.support.machine import ROOT

Output = pytest.CaptureFixture[str]
PACKAGES = ("bftrainer", "lsf_adapters", "milp", "slurm_plugins", "trainers")
NAMED = re.compile(r"docs/(?:[a-z0-9-]+/)*[a-z0-9-]+\.md")


def test_every_page_opens_by_the_command_that_messages_name(capsys: Output) -> None:
    for name, path in pages.pages().items():
        if path.name == "README.md":
            continue
        program, verb, *words = command_of(name).split()
        assert (program, verb, len(words)) == ("bftrainer", "help", 1)
        assert words[0] not in VERBS
        assert main(["help", *words]) == 0, name
        first = capsys.readouterr().out.splitlines()[0]
        assert first == path.read_text("utf-8").splitlines()[0].expandtabs()


def test_every_page_that_a_text_names_is_there() -> None:
    there = {f"docs/{name}.md" for name in pages.pages()}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            texts = (
                node.value
                for node in ast.walk(ast.parse(path.read_text("utf-8")))
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
            )
            named = {page for text in texts for page in NAMED.findall(text)}
            assert named <= there, path


def test_pages_are_named_by_commands() -> None:
    text = "See docs/howto/train-pytorch.md, Losses; docs/reference/policy.md has all."
    assert with_commands(text) == (
        "See 'bftrainer help train-pytorch', Losses; 'bftrainer help reference/policy' has all."
    )
    for other in ("/usr/share/docs/a.md", "https://a.b/docs/a.md", "docs/", "docs/a.txt"):
        assert with_commands(other) == other


def test_a_path_of_the_source_opens_the_page_and_a_wrong_one_is_told(capsys: Output) -> None:
    assert main(["help", "docs/howto/studies.md"]) == 0
    assert capsys.readouterr().out.startswith("# Search hyper-parameters\n")
    assert main(["help", "--pages"]) == 0
    assert "howto/train-pytorch" in capsys.readouterr().out.splitlines()
    assert main(["help", "docs/howto/studis.md"]) == 4
    assert "howto/studies" in capsys.readouterr().err


@pytest.mark.long
def test_the_wheel_carries_the_pages_and_finds_them_where_it_is_installed(tmp_path: Path) -> None:
    source, env = tmp_path / "source", tmp_path / "env"
    source.mkdir()
    for name in (*PACKAGES, "docs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, source / name)

    def runs(*argv: str | Path) -> str:
        done = process.run([str(word) for word in argv], timeout_s=300, cwd=source)
        assert done.is_ok, done.stdout + done.stderr
        return done.stdout

    python, ours = env / "bin" / "python", sysconfig.get_path("purelib")
    runs(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path)
    runs(sys.executable, "-m", "venv", "--without-pip", env)
    (wheel,) = tmp_path.glob("*.whl")
    runs(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", wheel)
    (site,) = env.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(f"{ours}\n")  # what it depends on
    listed = runs(python, "-P", "-m", "bftrainer", "help", "--pages").splitlines()
    assert set(listed) == set(pages.pages())
    told = runs(python, "-P", "-m", "bftrainer", "help", "train-pytorch")
    assert told.startswith("# Train a PyTorch script elastically\n")
