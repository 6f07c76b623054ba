"""Small changes of the product's code that tests should notice, and a draw of some. Pure but files.

Changed is only what runs in functions: no docstring, annotation, default, error text or log line.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Final

_GIVEBACK: Final = "giveback feasible victims skipped_jobs limit reserve"
_STEP: Final = (
    "data/loader gradients/buckets gradients/loss_rule gradients/rates loop/membership"
    " loop/run_info loop/state_transfer network/collective network/group process/generations"
    " run script/batch script/models state/state state/transfer"
)
# Area → patterns of its modules; the first area that has a module keeps it.
AREAS: Final = {
    "give-back": [
        *(f"bftrainer/decide/{name}.py" for name in _GIVEBACK.split()),
        *("bftrainer/fleet/release.py", "milp/victims.py"),
    ],
    "decide": ["bftrainer/decide/*.py", "bftrainer/decide/policies/*.py"],
    "milp": ["milp/*.py", "milp/exact/*.py", "milp/placement/*.py", "milp/reference/*.py"],
    "generation": ["bftrainer/fleet/generations/*.py"],
    "journal": ["bftrainer/journal/*.py"],
    "elastic": [
        "bftrainer/ground/backend_choice.py",
        "bftrainer/ground/node_cover.py",
        *(f"bftrainer/elastic/{name}.py" for name in _STEP.split()),
    ],
    "wire": ["bftrainer/fleet/wire/*.py"],
}

_PAIRS: Final = (
    *(("<", "<="), (">", ">="), ("==", "!="), ("is", "is not"), ("in", "not in"), ("+", "-")),
    *(("*", "/"), ("and", "or"), ("|", "&"), ("min", "max"), ("any", "all")),
)
_SWAPS: Final = {
    **{one: other for pair in _PAIRS for one, other in (pair, pair[::-1])},
    "//": "*",
    "%": "*",
    "**": "*",
}
_OPERATOR: Final = re.compile(
    r"(?<!\w)(not\s+in|is\s+not|is|in|and|or)(?!\w)|//|\*\*|[<>=!]=|[<>+\-*/%|&]"
)
_TALK: Final = re.compile(r"(LOG|log|logging|warnings|_\w*log)\.|\w*(Error|Warning)\(|Trouble\(")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change. ``before`` begins in a line at a column, counted in characters from 0."""

    id: str
    area: str
    file: str
    statement: int  # line where its statement begins
    line: int
    column: int
    before: str
    after: str
    code: str  # the line: finds it again when lines above have changed

    @property
    def lines(self) -> range:
        """Lines that run when the changed code does."""
        return range(self.statement, self.line + self.before.count("\n") + 1)

    def apply(self, source: str) -> str | None:
        """Return the file's text with the change; nothing if its line is gone, or there twice."""
        lines = source.splitlines(keepends=True)
        same = [n for n, line in enumerate(lines, 1) if line.strip() == self.code.strip()]
        line = self.line if self.line in same else same[0] if len(same) == 1 else None
        if line is None:
            return None
        shift = _indent(lines[line - 1]) - _indent(self.code)
        start = sum(len(above) for above in lines[: line - 1]) + self.column + shift
        if not source[start:].startswith(self.before):
            return None
        return source[:start] + self.after + source[start + len(self.before) :]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def modules(root: Path) -> dict[str, list[str]]:
    """Return the modules of each area."""
    found: dict[str, list[str]] = {area: [] for area in AREAS}
    seen: set[Path] = set()
    for area, patterns in AREAS.items():
        paths = sorted({p for pattern in patterns for p in root.glob(pattern)} - seen)
        seen |= set(paths)
        found[area] = [p.relative_to(root).as_posix() for p in paths]
    return found


def draw(root: Path, seed: int, count: int) -> list[Mutant]:
    """Draw as many of each area, each change of one as likely as any other."""
    out = []
    for number, (area, files) in enumerate(modules(root).items()):
        every = [c for file in files for c in changes(file, (root / file).read_text("utf-8"))]
        of_area = count // len(AREAS) + (number < count % len(AREAS))
        random.Random(f"{seed} {area}").shuffle(every)  # noqa: S311 - no secret
        found = (Mutant(id="", area=area, **change) for change in every)
        drawn = sorted(islice(filter(partial(_is_python, root), found), of_area), key=_place)
        out += [replace(mutant, id=f"{area}-{n:02d}") for n, mutant in enumerate(drawn, 1)]
    return out


def _place(mutant: Mutant) -> tuple[str, int, int, str]:
    return mutant.file, mutant.line, mutant.column, mutant.after


def _is_python(root: Path, mutant: Mutant) -> bool:
    try:
        ast.parse(mutant.apply((root / mutant.file).read_text("utf-8")) or "(")
    except SyntaxError:
        return False
    return True


def changes(file: str, source: str) -> Iterator[dict[str, Any]]:
    """Every change of a module; a few are no Python."""
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    def offset(number: int, column: int) -> int:
        return starts[number - 1] + len(lines[number - 1].encode()[:column].decode())

    for statement, first, last, after in _spots(ast.parse(source), source, offset):
        number = source.count("\n", 0, first) + 1
        yield {
            "file": file,
            "statement": statement,
            "line": number,
            "column": first - starts[number - 1],
            "before": source[first:last],
            "after": after,
            "code": lines[number - 1].rstrip("\n"),
        }


def _spots(tree: ast.Module, source: str, offset: Any) -> Iterator[tuple[int, int, int, str]]:
    """Statement's line, first and last character, new text."""

    def span(node: Any) -> tuple[int, int]:
        return offset(node.lineno, node.col_offset), offset(node.end_lineno, node.end_col_offset)

    for statement, node in _running(tree):
        for replaced, new in _replaced(node):
            first, last = span(replaced)
            yield statement, first, last, new.replace("{}", source[first:last])
        for left, right in _gaps(node):
            begin, end = span(left)[1], span(right)[0]
            found = _OPERATOR.search(source, begin, end)
            if found and "#" not in source[begin:end]:
                word = " ".join(found.group().split())
                yield statement, found.start(), found.end(), _SWAPS[word]


def _running(tree: ast.Module) -> Iterator[tuple[int, ast.AST]]:
    """What runs when a function does, with the line of the statement it is part of."""
    todo: list[tuple[int, ast.AST]] = []
    for found in ast.walk(tree):
        if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef):
            todo += [(s.lineno, s) for s in reversed(found.body)]
    while todo:
        statement, node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue  # its body is another one
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.Call) and _TALK.match(ast.unparse(node)):
            continue
        if isinstance(node, ast.Expr) and _TALK.match(ast.unparse(node)):
            continue
        if hasattr(node, "lineno"):
            yield statement, node
        if isinstance(node, ast.Raise | ast.JoinedStr):
            continue
        inner = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
            inner = [node.args[0]]  # types are written as ``A | B``
        if isinstance(node, ast.AnnAssign):
            inner = [node.value] if node.value else []
        todo += [(n.lineno if isinstance(n, ast.stmt) else statement, n) for n in reversed(inner)]


def _gaps(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Pairs of operands with an operator between them that can be swapped."""
    match node:
        case ast.Compare(left=left, comparators=[*others]):
            yield from pairwise([left, *others])
        case ast.BoolOp(values=[*values]):
            yield from pairwise(values)
        case ast.BinOp(left=left, right=right) if not _is_text(left) and not _is_text(right):
            yield left, right
        case ast.AugAssign(target=target, value=value) if not _is_text(value):
            yield target, value


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _replaced(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """What is replaced, and by what; ``{}`` stands for what was there."""
    match node:
        case ast.Constant(value=bool(value)):
            yield node, str(not value)
        case ast.Constant(value=int() | float() as number):
            yield from ((node, repr(number + 1)), (node, repr(number - 1)))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, f"({ast.unparse(operand)})"
        case ast.Name(id=name) if name in _SWAPS:
            yield node, _SWAPS[name]
        case ast.If(test=ast.Name() | ast.Attribute() | ast.Call() as test):
            yield test, "not {}"
        case ast.Return(value=ast.expr() as value) if not _is_none(value):
            yield node, "return None"
        case ast.Expr(value=ast.Call()) | ast.Raise():
            yield node, "pass"
        case ast.Break():
            yield node, "continue"
        case ast.Continue():
            yield node, "break"


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
