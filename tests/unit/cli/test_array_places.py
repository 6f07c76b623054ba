"""``{index}`` and ``{name}`` in the arguments of an array."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bftrainer.cli.main import main
from bftrainer.cli.submission import placed


@pytest.mark.parametrize(
    ("argument", "becomes"),
    [
        ("{index}", "3"),
        ("--lr=0.{index}", "--lr=0.3"),
        ("{name}/{index}{index}", "run_3/33"),
        ("{{index}} {{name}}", "{index} {name}"),
        ('{"index": 1, "a": {}}', '{"index": 1, "a": {}}'),
        ("{lr} {indexes} { index } {index", "{lr} {indexes} { index } {index"),
        ("{{}} {{other}}", "{{}} {{other}}"),
    ],
)
def test_only_these_places_are_filled(argument: str, becomes: str) -> None:
    assert placed(["a", argument], {"index": "3", "name": "run_3"}) == ("a", becomes)


@pytest.fixture
def dry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch(mode=0o755)
    return ["submit", "--dry-run", "--runtime", "command"]


def test_a_dry_run_shows_the_arguments_of_all(
    dry: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--array", "0,7", "train.py", "--lr", "{index}", "--out={name}.pt"]
    assert main([*dry, "--json", *words]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["arguments"] == [
        ["--lr", "0", "--out=train_0.pt"],
        ["--lr", "7", "--out=train_7.pt"],
    ]
    assert main([*dry, *words]) == 0
    lines = [line.split(maxsplit=3) for line in capsys.readouterr().out.splitlines()]
    assert ["args", "of", "train_7", "--lr 7 --out=train_7.pt"] in lines


def test_without_an_array_braces_stay(dry: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*dry, "--json", "train.py", "{index}", "{{name}}"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["spec"]["args"] == ["{index}", "{{name}}"]
    assert "arguments" not in said
