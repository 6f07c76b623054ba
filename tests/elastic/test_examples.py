"""The example scripts: ordinary but for five lines, and they learn while rescaled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.elastic.controller import ROOT, SCRIPTS, Controller, TemplateProcess
from tests.elastic.frameworks import template

__all__ = ["template"]

EXAMPLES = sorted((ROOT / "trainers" / "examples").glob("digits_*.py"))


HOOKED = {"hf_trainer": "transformers", "lightning_fit": "lightning"}
HELD = SCRIPTS / "held.py"


def grown(c: Controller, ids: list[str]) -> None:
    """Train eight steps on the first worker, then on both to the end."""
    c.form(ids[:1], new=ids)
    entered = c.form(ids)
    assert [(one.step, one.size) for one in entered] == [(8, 2)] * 2
    c.finished()


def test_there_are_three_examples_of_five_changed_lines() -> None:
    assert len(EXAMPLES) == 3
    for path in EXAMPLES:
        text = path.read_text()
        assert sum("# elastic:" in line for line in text.splitlines()) <= 5
        marked = [line for line in text.splitlines() if "elastic." in line or "run." in line]
        code = [line for line in marked if not line.lstrip().startswith(("#", '"', "Run"))]
        assert all("# elastic:" in line for line in code), code


@pytest.mark.long
@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=[pytest.mark.long] * ("mlp" not in p.stem)) for p in EXAMPLES],
    ids=lambda p: p.stem,
)
def test_an_example_learns_while_it_is_rescaled(
    tmp_path: Path, template: TemplateProcess, path: Path
) -> None:
    with Controller(tmp_path, template) as c:
        ids = c.start(HELD, ["8", "2", str(path), "--batch-size", "32"], count=2, epochs=6)
        grown(c, ids)
        assert "test accuracy" in c.workers[ids[0]].log.read_text()
        assert c.workers[ids[1]].log.read_text() == ""
    result = json.loads((tmp_path / "checkpoints" / "result.json").read_text())
    assert result["accuracy"] > 0.85


@pytest.mark.long
@pytest.mark.parametrize(("name", "library"), HOOKED.items())
def test_an_example_with_a_framework_learns_while_it_is_rescaled(
    tmp_path: Path, template: TemplateProcess, name: str, library: str
) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed")
    path = EXAMPLES[0].with_name(f"{name}.py")
    assert path.read_text().count("# elastic:") == 2
    with Controller(tmp_path, template) as c:
        options = ["--epochs", "6", "--accumulate", "2"]
        ids = c.start(HELD, ["8", "2", str(path), *options], count=2)
        grown(c, ids)
        assert "test accuracy" in c.workers[ids[0]].log.read_text()
        assert "test accuracy" not in c.workers[ids[1]].log.read_text()
    result = json.loads((tmp_path / "checkpoints" / "result.json").read_text())
    assert result["accuracy"] > 0.85
