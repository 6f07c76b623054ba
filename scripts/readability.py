#!/usr/bin/env python3
"""Gauges what slows a reader, per 1,000 lines of code, beside limits.

    scripts/readability.py [--worst N] [PATH ...]

* names: variables bound to a bare participle, pronoun or filler, such as ``found`` or ``given``
* comprehensions, and those inside another one
* conditional expressions, ``a if b else c``
* comments on a line of their own; they have no limit
* scattered: modules, in percent, with upper-case constants after the first class or function

Without a path the product is held against its limits, in all and room by room, and scripts against
theirs; tests are shown beside them. Docstrings, comments and blank lines are no lines of code.
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGES: Final = ("trainers", "slurm_plugins", "lsf_adapters", "milp")
BESIDE: Final = ("scripts", "tests")
# Words that say nothing of what a variable holds.
_FILLERS: Final = """\
found known given said told asked taken kept seen made done left held wanted needed used meant
built drawn sent got own one ones other others all some any both each it this that these those
such same more most less least rest so far new old there here what which who whose away back
once allowed refused announced expected counted measured planned ready open_ chosen shown written
read_ named ordered sorted_ changed added removed lost gone dropped parsed joined split_ of by
"""
FILLERS: Final = frozenset(_FILLERS.split())
# Per 1,000 lines of code; scattered: per cent of the modules. What the house has reached.
MOST_IN_ALL: Final = {
    "names": 2.0,
    "comprehensions": 25.0,
    "nested": 0.1,
    "conditionals": 7.2,
    "scattered": 8.0,
}
# Of one room: sums over nodes and curves are comprehensions, and a policy's POLICY stands last.
MOST_IN_A_ROOM: Final = {
    "names": 7.0,
    "comprehensions": 36.0,
    "nested": 0.3,
    "conditionals": 14.0,
    "scattered": 26.0,
}
# Of scripts: their comprehensions and conditional expressions are not unfolded yet.
MOST_IN_SCRIPTS: Final = {"names": 3.0, "scattered": 8.0}
_COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_WITH_DOCSTRING: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS: Final = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(slots=True, kw_only=True)
class Count:
    """Sums over modules."""

    modules: int = 0
    lines: int = 0  # of code
    fillers: Counter[str] = field(default_factory=Counter)
    comprehensions: int = 0
    nested: int = 0
    conditionals: int = 0
    comments: int = 0
    scattered: int = 0

    def add(self, text: str) -> None:
        """Count a module."""
        tree = ast.parse(text)
        comments = set(_comment_lines(text))
        self.modules += 1
        self.comments += len(comments)
        self.lines += len(set(_filled_lines(text)) - comments - set(_docstring_lines(tree)))
        self.scattered += _has_late_constants(tree)
        for node in ast.walk(tree):
            if isinstance(node, _COMPREHENSIONS):
                self.comprehensions += 1
                inner = (child for child in ast.walk(node) if child is not node)
                self.nested += any(isinstance(child, _COMPREHENSIONS) for child in inner)
            elif isinstance(node, ast.IfExp):
                self.conditionals += 1
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self.fillers[node.id] += node.id in FILLERS

    def rates(self) -> dict[str, float]:
        """Return the figures that may have limits."""
        per_line = 1000.0 / max(1, self.lines)
        return {
            "names": self.fillers.total() * per_line,
            "comprehensions": self.comprehensions * per_line,
            "nested": self.nested * per_line,
            "conditionals": self.conditionals * per_line,
            "comments": self.comments * per_line,
            "scattered": 100.0 * self.scattered / max(1, self.modules),
        }


def _comment_lines(text: str) -> Iterator[int]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip():
            yield token.start[0]


def _filled_lines(text: str) -> Iterator[int]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield number


def _docstring_lines(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            yield from range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1)


def _has_late_constants(tree: ast.Module) -> bool:
    has_definition = False
    for node in tree.body:
        has_definition = has_definition or isinstance(node, _DEFINITIONS)
        if has_definition and any(name.isupper() for name in _assigned_names(node)):
            return True
    return False


def _assigned_names(node: ast.stmt) -> Iterator[str]:
    targets: Sequence[ast.expr] = ()
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign | ast.AugAssign):
        targets = (node.target,)
    for target in targets:
        if isinstance(target, ast.Name):
            yield target.id


def count(paths: Iterable[Path]) -> Count:
    """Count all modules in files and directories."""
    total = Count()
    for path in paths:
        for module in _modules(path):
            total.add(module.read_text(encoding="utf-8"))
    return total


def _modules(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def rooms(tree: Path) -> dict[str, Path]:
    """Return the directory of each room of the product."""
    packages = {name: tree / name for name in PACKAGES}
    inside = sorted(path.parent for path in (tree / "bftrainer").glob("*/__init__.py"))
    return {path.name: path for path in inside} | packages


def excesses(tree: Path) -> list[str]:
    """Return what is above its limit, in words."""
    paths = rooms(tree)
    limits: dict[str, Mapping[str, float]] = dict.fromkeys(paths, MOST_IN_A_ROOM)
    limits |= {"product": MOST_IN_ALL, "scripts": MOST_IN_SCRIPTS}
    counts = {name: count([path]) for name, path in paths.items()}
    counts["product"] = count(paths.values())
    counts["scripts"] = count([tree / "scripts"])
    lines = []
    for name, of_room in counts.items():
        rates = of_room.rates()
        for figure, limit in limits[name].items():
            if rates[figure] > limit:
                lines.append(f"{name}: {figure} {rates[figure]:.1f}, the limit is {limit:g}")
    return lines


def _print_row(name: str, total: Count) -> None:
    figures = "".join(f"  {figure} {rate:5.1f}" for figure, rate in total.rates().items())
    print(f"{name:16}{total.modules:6} modules {total.lines:7} lines of code{figures}")


def _print_worst(paths: Iterable[Path], most: int) -> None:
    modules = [module for path in paths for module in _modules(path)]
    by_fillers = sorted(modules, key=lambda module: -count([module]).fillers.total())
    for module in by_fillers[:most]:
        fillers = count([module]).fillers
        words = ", ".join(f"{times} {word}" for word, times in fillers.most_common(8) if times)
        print(f"{fillers.total():5} {module}: {words}")


def main() -> int:
    """Gauge; return 1 when a limit is exceeded."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH")
    parser.add_argument("--worst", type=int, default=0, help="list the N modules with most names")
    options = parser.parse_args()
    if options.paths:
        for path in options.paths:
            _print_row(path.name, count([path]))
        _print_worst(options.paths, options.worst)
        return 0
    every_room = rooms(ROOT)
    for name, path in every_room.items():
        _print_row(name, count([path]))
    _print_row("product", count(every_room.values()))
    for name in BESIDE:
        _print_row(name, count([ROOT / name]))
    _print_worst(every_room.values(), options.worst)
    problems = excesses(ROOT)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
