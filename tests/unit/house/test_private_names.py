"""What torch and frameworks do not promise to keep is used in the modules for it alone."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from bftrainer.ground import versions

PACKAGE = Path(versions.__file__).parents[1]
COMPAT = "_compat.py"
# Of the standard library, as it documents them or itself calls them.
OF_PYTHON = {"_exit", "_getframe", "_current_frames", "_shutdown", "_run_exitfuncs", "_replace"}
OF_PYTHON |= {"_fields", "_inheriting", "_make_filename", "_config"}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def modules() -> list[Path]:
    paths = [*(PACKAGE / "elastic").rglob("*.py"), *(PACKAGE / "ground").rglob("*.py")]
    return sorted(paths)


def own_names() -> set[str]:
    """Names that modules of ours define, or set on themselves."""
    names = set[str]()
    for path in modules():
        if path.name.endswith(COMPAT):
            continue
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                names.update({node.attr} if node.value.id in ("self", "cls") else ())
    return names


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_names(tree: ast.AST) -> set[str]:
    """Private names of others: attributes, parts of imports, and what ``getattr`` asks for."""
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            names.add(node.attr)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            parts = [] if isinstance(node, ast.Import) else (node.module or "").split(".")
            parts += [part for alias in node.names for part in alias.name.split(".")]
            names.update(filter(is_private, parts))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            asks = node.func.id in ("getattr", "hasattr")
            words = [word for word in node.args[1:2] if asks and isinstance(word, ast.Constant)]
            names.update(str(word.value) for word in words if is_private(str(word.value)))
    return names


def test_only_the_modules_for_it_use_what_is_private() -> None:
    own = own_names() | OF_PYTHON
    used = {
        path.relative_to(PACKAGE).as_posix(): names
        for path in modules()
        if not path.name.endswith(COMPAT)
        if (names := private_names(tree_of(path)) - own)
    }
    assert used == {}


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("torch._C.x()", "_C"),
        ("scaler._scale", "_scale"),
        ("from torch._C import x", "_C"),
        ("from torch.optim import _x as y", "_x"),
        ("import torch._dynamo", "_dynamo"),
        ("getattr(node, '_saved_dim', None)", "_saved_dim"),
    ],
)
def test_a_private_name_would_be_seen(line: str, name: str) -> None:
    assert private_names(ast.parse(line)) == {name}
