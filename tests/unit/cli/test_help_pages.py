"""Pages of the documentation, as whoever installed the wheel opens them."""

from __future__ import annotations

import ast
import re
import shutil
import sys
import sysconfig
from itertools import pairwise
from pathlib import Path

import pytest
from rich.cells import cell_len

from bftrainer.batch import process
from bftrainer.cli import pages
from bftrainer.cli.main import all_verbs, main
from bftrainer.cli.markdown import page_lines
from bftrainer.cli.pages import command_of, names_meant, with_commands
from bftrainer.decide.policies.base import policy_names
from tests.support.machine import ROOT
from tests.support.terminals import Terminal

Output = pytest.CaptureFixture[str]
WIDTHS = (
    pytest.param(40, marks=pytest.mark.long),
    80,
    pytest.param(60, marks=pytest.mark.long),
    pytest.param(200, marks=pytest.mark.long),
)
MARKDOWN = re.compile(r"\]\(|<!--|\*\*|^#{1,6} |^\|.*\|$")
FENCED = re.compile(r"^( *)```.*?\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
LISTED = re.compile(r"^ *([*]|\d+\.) ", re.MULTILINE)
LINKED = re.compile(r"\[bftrainer\s+help\s+([^]]+)\]")
PACKAGES = ("bftrainer", "lsf_adapters", "milp", "slurm_plugins", "trainers")
NAMED = re.compile(r"docs/(?:[a-z0-9-]+/)*[a-z0-9-]+\.md")


def test_every_page_opens_by_the_command_that_messages_name(capsys: Output) -> None:
    for name, path in pages.pages().items():
        if path.name == "README.md":
            continue
        program, verb, *words = command_of(name).split()
        assert (program, verb, len(words)) == ("bftrainer", "help", 1)
        assert words[0] not in all_verbs()
        assert main(["help", *words]) == 0, name
        shown = " ".join(capsys.readouterr().out.split())
        title = path.read_text("utf-8").splitlines()[0].removeprefix("# ").replace("**", "")
        assert shown.startswith(title.partition("[")[0].strip()), name


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
    assert capsys.readouterr().out.startswith("Search hyper-parameters\n====")
    assert main(["help", "--pages"]) == 0
    assert "howto/train-pytorch" in capsys.readouterr().out.splitlines()
    assert main(["help", "docs/howto/studis.md"]) == 4
    assert "howto/studies" in capsys.readouterr().err


def code_of(page: str) -> set[str]:
    """The lines of a page's blocks of code, without what indents a block."""
    fenced = {
        line.removeprefix(indent).expandtabs().rstrip()
        for indent, body in FENCED.findall(page)
        for line in body.splitlines()
    }
    # Blocks that four spaces make code: after an empty line, and not in a list.
    blocks = FENCED.sub("", page).split("\n\n")
    indented = [
        block
        for before, block in pairwise(blocks)
        if block.startswith("    ") and not LISTED.search(before)
    ]
    return fenced | {line[4:].rstrip() for block in indented for line in block.splitlines()}


@pytest.mark.parametrize("width", WIDTHS)
def test_a_page_is_text_in_its_width_that_can_be_copied(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    names = pages.pages()
    for name, path in names.items():
        assert main(["help", name]) == 0
        text = capsys.readouterr().out
        lines, code = text.splitlines(), code_of(path.read_text("utf-8"))
        shown = {line.strip(): line for line in lines}
        for copied in code:  # whole, with what indents it in its block
            assert shown.get(copied.strip(), "").endswith(copied), (name, copied)
        words_of_code = {copied.strip() for copied in code}
        for line in lines:
            if line.strip() not in words_of_code:
                assert len(line.split()) == 1 or cell_len(line) <= width, (name, line)
                assert not MARKDOWN.search(line), (name, line)
        for linked in LINKED.findall(text):
            assert linked not in all_verbs()
            assert len(names_meant(linked, names)) == 1, (name, linked)


def test_a_link_says_the_command_of_its_page_and_a_table_keeps_its_words() -> None:
    text = """\
# Title of a page

**See** [how](../reference/policy.md#a) and [it](https://a.b/c), [below](#x),
[code](../../setup.cfg).

| option | meaning |
|---|---|
| `a b` | one bold thing that goes on for longer than the line has room |
"""
    names = {"howto/studies", "reference/policy"}
    assert page_lines(text, 60, name="howto/studies", names=names) == [
        "Title of a page",
        "===============",
        "",
        "See how [bftrainer help reference/policy] and it",
        "[https://a.b/c], below, code [in the source: setup.cfg].",
        "",
        "option  meaning",
        "`a b`   one bold thing that goes on for longer than the line",
        "        has room",
    ]


def test_colours_are_left_out_where_nobody_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "**Use** `a b` and\n`c`."
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert page_lines(text, 80, is_drawn=True) == [
        "\x1b[1mUse\x1b[0m \x1b[36ma b\x1b[0m and \x1b[36mc\x1b[0m."
    ]
    monkeypatch.setenv("NO_COLOR", "1")
    assert page_lines(text, 80, is_drawn=True) == ["\x1b[1mUse\x1b[0m `a b` and `c`."]
    assert page_lines(text, 80) == ["Use `a b` and `c`."]


def test_a_page_longer_than_the_terminal_goes_through_the_readers_pager(
    monkeypatch: pytest.MonkeyPatch, capfd: Output
) -> None:
    for name, value in {"TERM": "xterm", "PAGER": "sed s/^/p:/", "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)
    for lines, is_paged in (("24", True), ("5000", False)):
        screen = Terminal()
        with monkeypatch.context() as here:
            here.setattr(sys, "stdin", Terminal())
            here.setattr(sys, "stdout", screen)
            here.setenv("LINES", lines)
            assert main(["help", "slurm-site"]) == 0
        paged, shown = capfd.readouterr().out, screen.getvalue()
        assert paged.startswith("p:Install on a Slurm site\np:\n") == is_paged
        assert shown.startswith("\x1b[1mInstall on a Slurm site\x1b[0m\n\n") != is_paged


def test_policies_have_a_page_each_and_one_in_common(capsys: Output) -> None:
    assert main(["help", "policies"]) == 0
    assert capsys.readouterr().out.startswith("Policies\n========\n")
    assert command_of("policies/README") == "bftrainer help policies"
    for policy in policy_names():
        assert main(["help", policy]) == 0, policy
        assert capsys.readouterr().out.startswith(f"{policy}: ")


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
    assert told.startswith("Train a PyTorch script elastically\n====")
