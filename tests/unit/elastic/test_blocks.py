"""The blocks of all pages, also of those that no test runs: what they name exists."""

from __future__ import annotations

import ast
import json
import re
import shlex
import textwrap
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import click
import pytest
from ruamel.yaml import YAML

from bftrainer import elastic
from bftrainer.cli.main import cli
from bftrainer.elastic import mpi

ROOT = Path(__file__).parents[3]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "packaging" / "README.md"]
_FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^ *(?:\$ )?(?:\w+=\S+ )*bftrainer (?=[a-z])(?P<words>.*)$", re.MULTILINE)


def blocks(*kinds: str) -> Iterator[tuple[str, str]]:
    """Page and text of each block of these kinds."""
    for page in PAGES:
        for kind, text in _FENCED.findall(page.read_text(encoding="utf-8")):
            if kind in kinds:
                yield str(page.relative_to(ROOT)), text


def problem(words: list[str]) -> str:
    """What the command line does not know of these words."""
    command: click.Command = cli
    with click.Context(command, **command.context_settings) as context:  # else click loses -h
        try:
            while isinstance(command, click.Group):
                _, found, words = command.resolve_command(context, words)
                assert found is not None
                command = found
            command.make_parser(context).parse_args(args=words)
        except click.UsageError as error:
            return error.format_message()
    return ""


def parsed(text: str) -> ast.Module:
    dedented = textwrap.dedent(text)  # a field of a class stands as it does there
    try:
        return ast.parse(dedented)
    except SyntaxError:  # a signature
        return ast.parse(f"def {dedented.strip()}: ...")


def test_commands_name_verbs_and_options_that_exist() -> None:
    wrong, n = [], 0
    for page, text in blocks("", "sh"):
        for line in _COMMAND.finditer(text.replace("\\\n", " ")):
            words = shlex.split(line["words"], comments=True)
            ends = [at for at, word in enumerate(words) if word in ("&", ">", "|", "&&")]
            n += 1
            if said := problem(words[: min(ends, default=len(words))]):
                wrong.append(f"{page}: {line[0].strip()}: {said}")
    assert wrong == []
    assert n > 50


@pytest.mark.parametrize("words", ["summon t1", "submit --knots 1:2 a.py", "trace paint x"])
def test_an_unknown_word_would_be_seen(words: str) -> None:
    assert problem(words.split())


def test_scripts_compile_and_use_what_there_is() -> None:
    wrong = []
    for page, text in blocks("python"):
        for node in ast.walk(parsed(text)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                run = mpi.Run if "mpi.Run" in text else elastic.Run
                of = {"elastic": elastic, "run": run}.get(node.value.id)
                if of is not None and not hasattr(of, node.attr):
                    wrong.append(f"{page}: {node.value.id}.{node.attr}")
    assert wrong == []


def test_documents_parse() -> None:
    for _, text in blocks("json"):
        json.loads(text)
    for _, text in blocks("yaml"):
        YAML(typ="safe").load(StringIO(text))
