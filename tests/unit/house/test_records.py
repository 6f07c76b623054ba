"""Records have names: nobody reads one by the number of a part.

A tuple with parts of different meanings is a record, and ``plan[2]`` tells nobody what it is. The
rule reads the source. It sees an index into what is annotated as a tuple of fixed length, or comes
from a function that returns one, and one variable that is indexed by two different constants within
a function. Matches of regular expressions have numbered groups by nature; sequences, vectors of
numbers and what the wire has as a list are named below. Unpacking is always allowed.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TOPS = ("bftrainer", "slurm_plugins", "lsf_adapters", "milp", "trainers")
MATCHERS = frozenset({"match", "fullmatch", "search"})
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# No records: matches of regular expressions that a caller hands on, sequences of one kind of thing,
# curves by size, the words of a line that another program wrote, and the arguments of a process. By
# module and function.
SEQUENCES = frozenset(
    {
        "bftrainer/api/privacy.py:_failure",
        "bftrainer/batch/traces/text.py:iso_instants",
        "bftrainer/study/verbs/run.py:check_trial",
        "bftrainer/decide/throughput/fit.py:fitted_parts",
        "bftrainer/lab/papers/bftrainer/diverse.py:fig14",
        "bftrainer/lab/papers/rubberband/profiles.py:steady",
        "bftrainer/lab/papers/rubberband/profiles.py:table1",
        "bftrainer/lab/papers/rubberband/residual.py:contradictions",
        "bftrainer/lab/teach/course.py:returns",
        "bftrainer/lab/try_comparison.py:parameter_difference",
        "bftrainer/lab/whatif/document.py:averaged",
        "bftrainer/study/actions.py:value",
        "lsf_adapters/hosts.py:gpus",
        "lsf_adapters/notifications/records.py:_bare",
        "lsf_adapters/planned_starts.py:_block",
        "lsf_adapters/testcluster/job_processes.py:start_ticks",
        "slurm_plugins/hook/lines.py:announcement",
        "slurm_plugins/parse.py:_node_row",
        "trainers/profiler/steps.py:main",
    }
)


def is_record(annotation: ast.expr | None) -> bool:
    """Return whether an annotation is a tuple of two or more parts, or that or None."""
    match annotation:
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=parts)):
            has_any_length = any(isinstance(p, ast.Constant) and p.value is ... for p in parts)
            return len(parts) > 1 and not has_any_length
        case ast.BinOp(op=ast.BitOr(), left=left, right=ast.Constant(value=None)):
            return is_record(left)
    return False


def holds_records(annotation: ast.expr | None) -> bool:
    """Return whether an annotation is a container of such tuples."""
    match annotation:
        case ast.Subscript(value=ast.Name(id="dict" | "Mapping"), slice=ast.Tuple(elts=[_, part])):
            return is_record(part)
        case ast.Subscript(value=ast.Name(id="list" | "deque" | "Sequence"), slice=part):
            return is_record(part)
    return False


def annotations_of(tree: ast.Module) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield what the parameters and variables of a module are annotated as."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign):
            yield ast.unparse(node.target), node.annotation
        elif isinstance(node, ast.arg):
            yield node.arg, node.annotation


def named_in_all(pairs: Iterable[tuple[str, bool]]) -> frozenset[str]:
    """Return the names for which it holds wherever they stand."""
    answers = defaultdict(set)
    for name, answer in pairs:
        answers[name].add(answer)
    return frozenset(name for name, seen in answers.items() if seen == {True})


def records_returned(trees: Iterable[ast.Module]) -> frozenset[str]:
    """Return the names of functions that all return such tuples."""
    functions = (n for tree in trees for n in ast.walk(tree) if isinstance(n, FUNCTIONS))
    return named_in_all((function.name, is_record(function.returns)) for function in functions)


def called(node: ast.expr) -> str:
    """Return the name of a function that is called; empty: it is no call."""
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name
    return ""


def bindings(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that are bound, and to what."""
    for node in nodes:
        match node:
            case ast.Assign(targets=[target], value=value):
                yield ast.unparse(target), value
            case ast.NamedExpr(target=target, value=value):
                yield ast.unparse(target), value


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield what stands in a function and in no other one within."""
    for child in ast.iter_child_nodes(function):
        yield child
        if not isinstance(child, FUNCTIONS):
            yield from own_nodes(child)


def indexed(tree: ast.Module, returning: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Yield the line of each record that is read by a number, and the function there."""
    records = named_in_all((name, is_record(what)) for name, what in annotations_of(tree))
    containers = named_in_all((name, holds_records(what)) for name, what in annotations_of(tree))
    for function in ast.walk(tree):
        if not isinstance(function, FUNCTIONS):
            continue
        nodes = list(own_nodes(function))
        bound = {
            ast.unparse(
                node.targets[0] if isinstance(node, ast.Assign) else node.target
            ): node.value
            for node in nodes
            if isinstance(node, ast.Assign | ast.NamedExpr)
        }
        places: dict[str, dict[int, int]] = defaultdict(dict)
        for node in nodes:
            match node:
                case ast.Subscript(
                    value=value, slice=ast.Constant(value=int(number)), ctx=ast.Load()
                ):
                    places[ast.unparse(value)][number] = node.lineno
                    name = ast.unparse(value)
                    source = bound.get(name, value)
                    is_element = (
                        isinstance(value, ast.Subscript) and ast.unparse(value.value) in containers
                    )
                    if called(source) in returning or name in records or is_element:
                        yield node.lineno, function.name
        for name, lines in places.items():
            is_match = name in bound and called(bound[name]) in MATCHERS
            if len(lines) > 1 and not is_match:
                yield min(lines.values()), function.name


def product() -> dict[str, ast.Module]:
    """Return the trees of all modules, by path."""
    paths = sorted(path for top in TOPS for path in (ROOT / top).rglob("*.py"))
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in paths}


@pytest.fixture(scope="module")
def places() -> list[str]:
    """Each place at which a record seems to be read by a number: module, function and line."""
    trees = product()
    returning = records_returned(trees.values())
    return [
        f"{path}:{function}:{line}"
        for path, tree in trees.items()
        for line, function in sorted(set(indexed(tree, returning)))
    ]


def test_records_are_read_by_name(places: list[str]) -> None:
    records = [place for place in places if place.rpartition(":")[0] not in SEQUENCES]
    assert records == []


def test_what_is_no_record_is_still_there(places: list[str]) -> None:
    assert {place.rpartition(":")[0] for place in places} >= SEQUENCES


RECORD = """
def place(n: int) -> tuple[int, str]:
    return n, ""
def counts(n: int) -> tuple[int, ...]:
    return (n,)
def use(pair: tuple[int, str] | None, rows: list[tuple[int, str]], numbers: list[int]) -> None:
    {}
"""


@pytest.mark.parametrize(
    "line",
    [
        "place(1)[0]",
        "where = place(1); where[1]",
        "self.place(1)[0]",
        "pair[1]",
        "rows[-1][0]",
        "numbers[0] + numbers[2]",
        "if (where := place(1)): where[1]",
    ],
)
def test_a_record_read_by_number_would_be_seen(line: str) -> None:
    tree = ast.parse(RECORD.format(line))
    assert {function for _, function in indexed(tree, records_returned([tree]))} == {"use"}


@pytest.mark.parametrize(
    "line",
    [
        "number, name = place(1)",
        "counts(1)[0]",
        "numbers[0]",
        "match = re.fullmatch(numbers); match[1] + match[2]",
        "rows[-1]",
        "numbers[0] = numbers[1]",
    ],
)
def test_sequences_and_what_is_unpacked_are_none(line: str) -> None:
    tree = ast.parse(RECORD.format(line))
    assert set(indexed(tree, records_returned([tree]))) == set()
