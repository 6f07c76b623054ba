"""Command lines that texts name can be typed: our verbs have the options, and so have Slurm's.

Texts are all strings in the source of the packages, but docstrings, and ``codes.ini``. Of Slurm the
manual pages judge that are installed (22.05 here); without them that half is skipped.
"""

from __future__ import annotations

import ast
import functools
import gzip
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from bftrainer.cli.main import cli

ROOT = Path(__file__).parents[3]
PACKAGES = ("bftrainer", "lsf_adapters", "milp", "slurm_plugins", "trainers")
MANUALS = Path("/usr/share/man/man1")
SLURM = ("sacct", "sacctmgr", "sbatch", "scancel", "scontrol", "sinfo", "squeue")
# To the end of the quotation or of the sentence.
QUOTED = re.compile(r"'(bftrainer(?: [^']*)?)'")
TYPED = re.compile(r"(?:: |^|; |, (?:and |or |then )?)(bftrainer (?:[^.;,:()'\n]|\.(?=\w))+)")
_OPTION = r" --?[A-Za-z][\w-]*(?:[= ]?[^\s'();]*)?"
OF_SLURM = re.compile(rf"(?<![\w/-])(?<!--format )({'|'.join(SLURM)})((?:{_OPTION})+)")
# What follows in prose, not in a command.
PROSE = re.compile(r"\s(lets|starts|says|shows|keeps|goes|does|ends|needs|would|has|is|to)\b.*")


# "bftrainer backs off": sentences of which it is the subject.
_SENTENCES = frozenset(
    ("on", "backs", "no", "resumes", "splits", "trains", "failed", "knows", "itself")
)
_ANY = {"profile": "SCRIPT", "reproduce": "bftrainer"}


def _texts() -> Iterator[tuple[str, str]]:
    """Yield (place, text); what differs each time is X."""
    for path in (p for package in PACKAGES for p in sorted((ROOT / package).rglob("*.py"))):
        tree = ast.parse(path.read_text("utf-8"))
        skipped: set[ast.AST] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr):  # a docstring
                skipped.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                skipped |= set(ast.walk(node)) - {node}
                if node not in skipped:
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", _joined(node)
            elif (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and node not in skipped
            ):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node.value
    for line in (ROOT / "bftrainer" / "cli" / "codes.ini").read_text("utf-8").splitlines():
        yield "codes.ini", line.partition(" = ")[2]


def _joined(text: ast.JoinedStr) -> str:
    return "".join(
        str(part.value) if isinstance(part, ast.Constant) else "X" for part in text.values
    )


@functools.cache
def texts() -> tuple[tuple[str, str], ...]:
    return tuple(_texts())


def _commands() -> Iterator[tuple[str, str]]:
    for place, text in texts():
        for pattern in (QUOTED, TYPED):
            for match in pattern.finditer(text):
                line = PROSE.sub("", f"{match[1]} ").strip()
                if not _SENTENCES.intersection(line.split()[1:2]):
                    yield place, line


def wrong_in(line: str) -> str:
    """Say what cannot be typed of a command line of ours; "": all can."""
    command: click.Command = cli
    words = line.split()[1:]
    while isinstance(command, click.Group) and words:
        # ``profile SCRIPT`` and ``reproduce NAME``: a group may take any word.
        found = command.get_command(click.Context(command), words[0])
        if found is None and not re.fullmatch(r"[a-z][a-z0-9-]*", words[0]):
            found = command.get_command(click.Context(command), _ANY.get(command.name or "", ""))
            if found is None:
                break
        if found is None:
            return f"no verb {words[0]}"
        command, words = found, words[1:]
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    for word in words:
        name = word.strip("[]").partition("=")[0].partition("[")[0]
        if re.match(r"--?[a-z]", name) and name not in known | {"-h", "--help", "--version"}:
            return f"no option {name}"
    return ""


def test_our_own_commands_can_be_typed() -> None:
    commands = set(_commands())
    assert len(commands) > 120
    assert {(place, line): why for place, line in commands if (why := wrong_in(line))} == {}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("bftrainer submti train.py", "no verb submti"),
        ("bftrainer policy chek FILE", "no verb chek"),
        ("bftrainer down --nwo", "no option --nwo"),
        ("bftrainer study run [--resume] X", "no option --resume"),
        ("bftrainer up --partition X", ""),
        ("bftrainer status ID", ""),
        ("bftrainer", ""),
    ],
)
def test_the_judge_knows_right_from_wrong(line: str, why: str) -> None:
    assert wrong_in(line) == why


@functools.cache
def _manual(name: str) -> str:
    page = MANUALS / f"{name}.1.gz"
    text = gzip.decompress(page.read_bytes()).decode("utf-8", "replace")
    return re.sub(r"\\f[BIRP]", "", text).replace("\\-", "-").replace("\\", "")


def _unknown(name: str, words: str) -> list[str]:
    """Return the options of a command line of Slurm that its manual page does not have."""
    page = _manual(name)
    options = re.findall(r"(?<=\s)--?[A-Za-z][\w-]*", words)
    names = [one if one.startswith("--") else one[:2] for one in options]
    return sorted({one for one in names if not re.search(rf"(?<![\w-]){one}\b", page)})


@pytest.mark.skipif(not (MANUALS / "sacct.1.gz").exists(), reason="Slurm's manual is not here")
def test_commands_of_slurm_have_the_options_of_its_manual() -> None:
    lines = [(place, m[1], m[2]) for place, text in texts() for m in OF_SLURM.finditer(text)]
    assert len(lines) >= 8
    wrong = {(p, name, words): bad for p, name, words in lines if (bad := _unknown(name, words))}
    assert wrong == {}


@pytest.mark.skipif(not (MANUALS / "sacct.1.gz").exists(), reason="Slurm's manual is not here")
def test_fields_of_exports_are_those_of_the_manual() -> None:
    from bftrainer.batch.traces import closed, sacct

    fields = sacct.COMMAND.partition("--format ")[2].split(",")
    assert len(fields) == 13
    listed = _manual("sacct").partition("Fields available")[2].partition("NOTE")[0].split()
    assert set(fields) <= set(listed)
    events = _manual("sacctmgr").partition("LIST/SHOW EVENT FORMAT")[2].partition(".SH")[0]
    wanted = closed.COMMAND.partition("format=")[2].split(",")
    assert wanted == ["NodeName", "Start", "End", "State"]
    assert all(re.search(rf"(?m)^{name}$", events) for name in wanted)
