"""What runs in a user's interpreter is readable by the oldest Python that is supported.

The type checker looks for everything that is newer (``make lint``); here are the forms and names
that are most easily written by habit, in every run of the tests.
"""

from __future__ import annotations

import ast
import json
from functools import cache
from pathlib import Path

import pytest

from bftrainer.batch import process
from bftrainer.ground import versions

ROOT = Path(__file__).resolve().parents[3]
IN_USERS_PYTHON = (
    *("bftrainer/elastic", "bftrainer/ground", "trainers/profiler", "trainers/examples"),
)
NEWER = {
    "asyncio": {"timeout", "timeout_at", "TaskGroup", "Runner", "Barrier"},
    "builtins": {"ExceptionGroup", "BaseExceptionGroup", "EncodingWarning"},
    "contextlib": {"chdir"},
    "datetime": {"UTC"},
    "enum": {"StrEnum", "verify", "nonmember", "member", "EnumCheck", "ReprEnum"},
    "hashlib": {"file_digest"},
    "inspect": {"getmembers_static", "markcoroutinefunction"},
    "itertools": {"batched"},
    "logging": {"getLevelNamesMapping", "getHandlerByName"},
    "math": {"exp2", "cbrt", "sumprod"},
    "operator": {"call"},
    "pathlib": {"UnsupportedOperation"},
    "sys": {"exception", "monitoring"},
    "typing": {
        *("Self", "Never", "LiteralString", "assert_never", "assert_type", "reveal_type"),
        *("Required", "NotRequired", "Unpack", "TypeVarTuple", "override", "ReadOnly", "TypeIs"),
        *("dataclass_transform", "clear_overloads", "get_overloads"),
    },
}  # fmt: skip
MODULES = {"tomllib"}
METHODS = {"add_note"}  # of exceptions
# Arguments that have a default since 3.11 only.
NEEDS = {"from_bytes": 2, "to_bytes": 2}
# Modules that need no torch: they show that the rest of them is fine.
IMPORT = """\
import importlib, json, sys
sys.path.insert(0, sys.argv[1])
missing = {}
for name in json.loads(sys.argv[2]):
    try:
        importlib.import_module(name)
    except ImportError as problem:
        if problem.name is None or problem.name.partition(".")[0] == "bftrainer":
            missing[name] = str(problem)
    except Exception as problem:
        missing[name] = repr(problem)
print(json.dumps(missing))
"""


def modules() -> list[Path]:
    return sorted(path for top in IN_USERS_PYTHON for path in (ROOT / top).rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    """Return a module as the oldest Python reads it, as far as this one knows."""
    text = path.read_text("utf-8")
    return ast.parse(text, str(path), feature_version=versions.LEAST_PYTHON)


def newer(tree: ast.AST) -> list[str]:
    """Names and forms that are newer than the oldest Python."""
    found = list[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            if node.attr in NEWER.get(owner, ()) or node.attr in METHODS:
                found.append(node.attr)
        elif isinstance(node, ast.ImportFrom):
            names = NEWER.get(node.module or "", set()) | MODULES
            found += [alias.name for alias in node.names if alias.name in names]
            found += [node.module] if node.module in MODULES else []
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name in MODULES]
        elif isinstance(node, ast.Name) and node.id in NEWER["builtins"]:
            found.append(node.id)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            count = len(node.args) + len([k for k in node.keywords if k.arg != "signed"])
            if count < NEEDS.get(node.func.attr, 0):
                found.append(node.func.attr)
        elif isinstance(node, ast.TryStar) or (
            isinstance(node, ast.Subscript)
            and any(isinstance(part, ast.Starred) for part in getattr(node.slice, "elts", ()))
        ):
            found.append(ast.unparse(node)[:40])
    return found


def test_nothing_is_newer_than_the_oldest_python() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): names
        for path in modules()
        if (names := newer(tree_of(path)))
    }
    assert found == {}


@pytest.mark.parametrize(
    "text",
    [
        "async def f():\n    async with asyncio.timeout(1):\n        pass",
        "class A(enum.StrEnum):\n    A = 'a'",
        "from typing import Self",
        "import tomllib",
        "int.from_bytes(data)",
        "n.to_bytes(2)",
        "try:\n    pass\nexcept* OSError:\n    pass",
        "x: tuple[*Ts]",
        "problem.add_note('more')",
        "raise ExceptionGroup('several', [])",
    ],
)
def test_what_is_newer_would_be_seen(text: str) -> None:
    assert newer(ast.parse(text))


@pytest.mark.parametrize("text", ["int.from_bytes(data, 'big')", "n.to_bytes(2, 'little')"])
def test_what_is_old_enough_is_not_seen(text: str) -> None:
    assert newer(ast.parse(text)) == []


@pytest.mark.parametrize("release", ["3.10", "3.12", "3.13", "3.14"])
def test_another_python_imports_what_needs_no_torch(release: str) -> None:
    found = sorted((Path.home() / ".pyenv" / "versions").glob(f"{release}.*/bin/python"))
    if not found:
        pytest.skip(f"there is no Python {release} here")
    paths = sorted((ROOT / "bftrainer" / "elastic").rglob("*.py"))
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in paths
        if path.stem != "__main__"
    ]
    argv = (str(found[-1]), "-I", "-W", "error", "-c", IMPORT, str(ROOT), json.dumps(names))
    done = process.run(argv, timeout_s=120)
    assert done.is_ok, done.stderr
    assert json.loads(done.stdout) == {}
