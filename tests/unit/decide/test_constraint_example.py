"""docs/design/constraints.md is followed to the letter, in a copy of the source."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from bftrainer.batch import process

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "design" / "constraints.md").read_text(encoding="utf-8")
MODULE, ITS_TEST = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
EDITS = re.findall(r"```diff\n(.*?)```", PAGE, re.DOTALL)
LIST = "decide/policy_answer.py"
IMPORTS = """\
from collections import Counter

from bftrainer.daemon.explain.constraints import constraint_sentences, effects_on, what_if
from bftrainer.daemon.explain.sizes import Circumstances
from bftrainer.decide.decision import decide
from bftrainer.decide.policies.base import load_policy
from bftrainer.model.decision import DecisionInput, Memory, Settings
from tests.support.snapshots import T0, held, node, node_names, record, snapshot

"""


def _edited(text: str, edit: str) -> str:
    """Put the lines with a plus where the others are, which must be there once."""
    lines = edit.splitlines()
    before = "\n".join([line[1:] for line in lines if not line.startswith("+")])
    after = "\n".join([line[1:] for line in lines])
    assert text.count(before + "\n") == 1, before
    return text.replace(before + "\n", after + "\n")


def _run(tree: Path, script: str) -> process.Completed:
    environment = {"PYTHONPATH": f"{tree}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    return process.run([sys.executable, "-c", script], timeout_s=60.0, env=environment, cwd=tree)


def test_two_files_add_a_constraint_that_every_policy_keeps_and_explain_tells(
    tmp_path: Path,
) -> None:
    package = tmp_path / "bftrainer"
    shutil.copytree(ROOT / "bftrainer", package, ignore=shutil.ignore_patterns("__pycache__"))
    name = re.findall(r"def (test_\w+)", ITS_TEST)[0]
    script = f"{IMPORTS}\n{ITS_TEST}\n{name}()\n"
    without = _run(tmp_path, script)
    assert "AssertionError" in without.stderr, "the first trainer has all four nodes"
    (package / "decide" / "constraints" / "few_of_type.py").write_text(MODULE)
    text = (package / LIST).read_text()
    for edit in EDITS:
        text = _edited(text, edit)
    (package / LIST).write_text(text)
    done = _run(tmp_path, script)
    assert done.is_ok, done.stderr[-2000:]


def test_the_page_names_all_constraints_and_their_modules() -> None:
    listed = re.findall(r"^\| `([a-z-]+)` \|.*`([a-z_/]+\.py)` \|$", PAGE, re.MULTILINE)
    in_source = dict[str, str]()
    for path in sorted((ROOT / "bftrainer" / "decide").rglob("*.py")):
        place = path.relative_to(ROOT / "bftrainer" / "decide").as_posix()
        for constraint in re.findall(r'name: ClassVar\[str\] = "(.*)"', path.read_text()):
            in_source[constraint] = place
    assert {name: place.removeprefix("decide/") for name, place in listed} == in_source
