"""``--yaml``: the document of ``--json`` as YAML, on every verb that has one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click
import pytest
from ruamel.yaml import YAML

from bftrainer.cli.main import all_verbs, cli, main
from bftrainer.cli.yaml_text import yaml_text
from bftrainer.model.errors import ExitCode

DOCUMENT = {
    "schema": "bftrainer/x/1",
    "yes": "no",
    "1:30": "1:30:00",
    "numbers": [0, -3, 1.5, 1e300, 1e-9, 10**17],
    "empty": {"list": [], "mapping": {}, "text": ""},
    "words": ["null", "~", "- a", "# b", "a: b", '"', "\\", "two\nlines", "tab\t", "123"],
    "odd": "\x1b[2J \x7f \x85 \u2028 é 漢 \U0001f600",
    "nothing": None,
    "truth": [True, False],
    "rows": [{"a": 1, "b": {"c": [2, [3, []]]}}, [], [[1, 2], {"d": None}]],
}


def read(text: str, version: tuple[int, int]) -> Any:
    reader = YAML(typ="safe", pure=True)
    reader.version = version
    return reader.load(text)


def below(parent: click.Context, name: str) -> Iterator[click.Context]:
    """Yield the contexts of a verb and, if it is a group, of its verbs."""
    assert isinstance(parent.command, click.Group)
    command = parent.command.get_command(parent, name)
    assert command is not None
    context = click.Context(command, info_name=name, parent=parent)
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            yield from below(context, inner)
    yield context


@pytest.mark.parametrize("version", [(1, 1), (1, 2)])
def test_the_document_is_the_same_in_every_release_of_yaml(version: tuple[int, int]) -> None:
    text = yaml_text(DOCUMENT)
    assert text.isascii()
    assert all(character.isprintable() or character == "\n" for character in text)
    assert json.dumps(read(text, version)) == json.dumps(DOCUMENT)
    scalars: tuple[object, ...] = (1, "a", None, [], {})
    for scalar in scalars:
        assert read(yaml_text(scalar), version) == scalar
    with pytest.raises(ValueError, match="JSON compliant"):
        yaml_text({"x": float("nan")})


def test_every_verb_that_has_json_has_yaml() -> None:
    root, with_json = click.Context(cli, info_name="bftrainer"), 0
    for verb in all_verbs():
        for context in below(root, verb):
            options = {flag for each in context.command.params for flag in each.opts}
            names = {each.name for each in context.command.params}
            assert ("as_json" in names) == ("--yaml" in options), context.command_path
            with_json += "as_json" in names
    assert with_json > 40


def test_a_verb_prints_one_document_in_either_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "list", "--json"]) == ExitCode.OK
    document = json.loads(capsys.readouterr().out)
    for options in (["--yaml"], ["--json", "--yaml"]):
        assert main(["policy", "list", *options]) == ExitCode.OK
        assert read(capsys.readouterr().out, (1, 2)) == document
    assert main(["policy", "list", "--json"]) == ExitCode.OK  # nothing is left of it
    assert json.loads(capsys.readouterr().out) == document
