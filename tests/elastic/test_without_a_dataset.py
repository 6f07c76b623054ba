"""The scripts of docs/howto/train-without-a-dataset.md equal one process, whoever joins or dies."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.elastic.controller import ROOT, SCRIPTS, Controller, TemplateProcess

PAGE = (ROOT / "docs/howto/train-without-a-dataset.md").read_text()
NAMES = ("layers", "actor", "dqn")
TEXTS = dict(zip(NAMES, re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL), strict=True))
UPDATES = {"layers": 60, "actor": 60, "dqn": 80}
# A second worker joins after update 10, the first is killed after update 20, and another joins.
HOLDS = [[12, 2], [22, 3], [32, 4]]
HELD = f"import sys; sys.path.insert(0, {str(SCRIPTS)!r}); import holding\n"


def flat(tree: Any) -> list[float]:
    if isinstance(tree, torch.Tensor):
        return [float(x) for x in tree.flatten().tolist()]
    if isinstance(tree, dict | list):
        parts = tree.values() if isinstance(tree, dict) else tree
        return [x for part in parts for x in flat(part)]
    return [float(tree)]


def result(directory: Path, name: str) -> list[float]:
    return flat(torch.load(directory / f"{name}.pt", weights_only=True))


@pytest.mark.parametrize(
    "name", ["dqn", *(pytest.param(n, marks=pytest.mark.long) for n in ("layers", "actor"))]
)
def test_a_recipe_is_that_of_one_process(
    tmp_path: Path, template: TemplateProcess, name: str
) -> None:
    text = TEXTS[name]
    loop = re.search(r"^( +)for .* in run\.batches\(\):\n", text, re.MULTILINE)
    assert loop is not None
    indent = loop.group(1) + "    "
    held = HELD + text[: loop.end()] + f"{indent}if not run.rehearsing:\n"
    held += f"{indent}    holding.hold(run, {HOLDS})\n" + text[loop.end() :]
    elastic, alone = tmp_path / "elastic", tmp_path / "alone"
    for directory, script in ((elastic, held), (alone, text)):
        directory.mkdir()
        (directory / "train.py").write_text(script)
    with Controller(alone, template) as c:
        c.begin(alone / "train.py")
        c.finished()
    with Controller(elastic, template) as c:
        (first,) = c.begin(elastic / "train.py")
        (second,) = c.start(elastic / "train.py")
        c.form([first, second], new=[second])
        c.kill(first)
        c.until(lambda: c.workers[first].returncode is not None, "it died")
        c.form([second], abandon=True)
        (third,) = c.start(elastic / "train.py")
        c.form([second, third], new=[third])
        [done, *_] = c.finished()
    assert done.step == UPDATES[name]
    assert result(elastic, name) == pytest.approx(result(alone, name), rel=1e-3, abs=1e-5)
