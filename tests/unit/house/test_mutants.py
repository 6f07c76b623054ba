"""The changes that ``tests.support.mutants`` draws and applies."""

from __future__ import annotations

import ast
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.mutants.__main__ import Covering, kept
from tests.support.mutants.draw import AREAS, Mutant, changes, draw, modules
from tests.support.mutants.tree import Tree

ROOT = Path(__file__).resolve().parents[3]
MODULE = '''
"""A docstring with 1."""
LIMIT = 3

def f(a: int = 1) -> int:
    """Not 2."""
    LOG.info("%d", 4)
    if a not in (b := g(a)) and not b:
        raise ValueError(f"{a + 5}")
    for x in b:
        break
    c: dict[int, str] = {}
    c.clear()
    return (
        min(a,  # <
            6)
    )
'''


def test_what_runs_in_a_function_is_changed_and_nothing_that_is_only_said() -> None:
    found = list(changes("m.py", MODULE))
    assert {(c["line"], c["before"], c["after"]) for c in found} == {
        (8, "not in", "in"),
        (8, "and", "or"),
        (8, "not b", "(b)"),
        (9, 'raise ValueError(f"{a + 5}")', "pass"),
        (11, "break", "continue"),
        (13, "c.clear()", "pass"),
        (14, "return (\n        min(a,  # <\n            6)\n    )", "return None"),
        (15, "min", "max"),
        (16, "6", "7"),
        (16, "6", "5"),
    }
    six = next(Mutant(id="", area="", **c) for c in found if c["after"] == "7")
    assert six.lines == range(14, 17)


def test_a_draw_is_the_same_again_and_is_python(tmp_path: Path) -> None:
    for files in modules(ROOT).values():
        file = max(files, key=lambda name: (ROOT / name).stat().st_size)
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    drawn = draw(tmp_path, 5, 2 * len(AREAS))
    assert drawn == draw(tmp_path, 5, 2 * len(AREAS)) != draw(tmp_path, 6, 2 * len(AREAS))
    assert Counter(m.area for m in drawn) == dict.fromkeys(AREAS, 2)
    for mutant in drawn:
        source = (ROOT / mutant.file).read_text("utf-8")
        changed = mutant.apply(source)
        assert changed is not None
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))


def test_a_change_finds_its_line_when_others_come_before_it_and_only_if_it_is_one() -> None:
    mutant = next(Mutant(id="", area="", **c) for c in changes("m.py", MODULE))
    changed = mutant.apply(MODULE)
    assert changed is not None
    assert mutant.apply(f"import os\n{MODULE}") == f"import os\n{changed}"
    assert replace(mutant, line=1).apply(MODULE + MODULE) is None
    assert mutant.apply(MODULE.replace("not in", "in")) is None


def test_those_that_are_kept_are_as_many_of_each_area() -> None:
    assert Counter(m.area for m in kept()) == dict.fromkeys(AREAS, 46)


def test_tests_of_files_that_run_little_else_come_first_and_then_the_cheapest_files() -> None:
    seconds = {f"tests/{n}.py::1": float(n) for n in range(1, 6)} | {"tests/5.py::2": 1.0}
    run = {f"m.py:{n}": [f"tests/{n}.py::1"] for n in range(1, 5)} | {"m.py:5": ["tests/5.py"]}
    others = {f"other.py:{n}": [f"tests/{k}.py::1" for k in range(1, n)] for n in range(2, 6)}
    (mutant,) = (
        Mutant(id="", area="", **found)
        for found in changes("m.py", "def f():\n    return (\n\n\n    a)")
    )
    mutant = replace(mutant, statement=1)
    expected = ["tests/5.py::2", "tests/5.py::1", *(f"tests/{n}.py::1" for n in (4, 3, 1, 2))]
    assert Covering({"seconds": seconds, "lines": run | others}).of(mutant) == expected


ISOLATED = """
import hypothesis, subprocess, sys
hypothesis.settings.register_profile("same")
def test_f():
    code = "import sys; from milp.thing import f; sys.exit(f())"
    assert subprocess.run([sys.executable, "-I", "-c", code]).returncode == 1
"""


@pytest.mark.long  # four interpreters start
def test_a_copy_runs_its_own_code_also_in_isolated_interpreters(tmp_path: Path) -> None:
    source = "import signal\ndef f():\n    return 1\n"
    for name, text in {"milp/thing.py": source, "conftest.py": ISOLATED}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "test_it.py").write_text("from conftest import test_f\n")
    parts = Path("tests", "support", "mutants")
    shutil.copytree(ROOT / parts, tmp_path / parts)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)  # noqa: S607
    with Tree(tmp_path) as tree:
        assert tree.test(["test_it.py::test_f"], "-x").noticed == ""
        with tree.changed("milp/thing.py", source.replace("1", "2")):
            assert tree.test(["test_it.py::test_f"], "-x").noticed == "test_it.py::test_f"
        with tree.changed("milp/thing.py", source.replace("return 1", "signal.pause()")):
            assert tree.test(["test_it.py::test_f"], limit_s=15).noticed == "test_it.py::test_f"
        told = tree.test(["test_it.py"])
        assert (told.noticed, [*told.seconds]) == ("", ["test_it.py::test_f"])
