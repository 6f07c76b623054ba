"""Reads from the source of a module what the codes of errors in it mean. Pure.

Code, cause and next step of an error stand where it is raised: as arguments of a call, as rows of a
table of findings, or in a line of a log. What differs each time is written in capitals.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

CODE = re.compile(r"BFT-\d{4}")
MOST = 6  # variants of one sentence
DEPTH = 4  # names that stand for names
_IS_SAID = re.compile(r"[a-z]{2}")  # there is more than capitals
_FIELD = re.compile(r"%[sdr]|\{(\w*)[^{} ]*\}")
_ROW = re.compile(r"(BFT-\d{4}) \w+ \w+\n(.+)\n((?:.+\n)+?)-> (.+)")  # of batch.findings
_LINE = re.compile(r"(?:error )?(BFT-\d{4}):? (.+)", re.DOTALL)
_CAUSES, _NEXT_STEPS = ("cause", "cost"), ("next_step", "remedy")
_ODD = {"STRERROR": "REASON", "STDERR": "REASON", "DONE": "REASON", "LAST": "REASON"}
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """One cause of an error, and what to do then; "": it cannot be read here."""

    code: str
    cause: str
    next_step: str
    is_log: bool = False  # from a line of a log


def sentences(source: str) -> Iterator[Sentence]:
    """Yield what a module says about the codes that it names, some of it several times."""
    module = _Module(ast.parse(source))
    for node in module.nodes:
        if isinstance(node, ast.Call):
            yield from module.of_call(node)
        elif isinstance(node, ast.expr) and CODE.search(_head(node)) and node not in module.parts:
            for text in module.texts(node):
                yield from _of_text(text)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            yield from module.of_table(node.targets[0], node.value)


class _Module:
    """A syntax tree, and what the names in it stand for."""

    def __init__(self, tree: ast.Module) -> None:
        self.nodes = list(ast.walk(tree))  # outer ones first
        self.parts: set[ast.AST] = set()  # of texts, and docstrings
        self._tree = tree
        self._around: dict[ast.AST, _Function] = {}  # the innermost function
        self._calls: dict[str, list[ast.Call]] = defaultdict(list)  # by the function's name
        for node in self.nodes:
            if isinstance(node, _Function):
                self._around |= dict.fromkeys(ast.walk(node), node)
            elif isinstance(node, ast.Call):
                self._calls[_name(node.func)].append(node)
            elif isinstance(node, ast.JoinedStr):
                self.parts |= set(ast.walk(node)) - {node}
            elif isinstance(node, ast.Expr):
                self.parts.add(node.value)

    def of_call(self, call: ast.Call) -> Iterator[Sentence]:
        """Yield what the arguments say, if the code is one of them."""
        named = {one.arg: one.value for one in call.keywords if one.arg}
        at = next((i for i, one in enumerate(call.args) if self._code(one)), -1)
        code = self._code(call.args[at]) if at >= 0 else self._code(named.get("code"))
        if not code:
            return
        if _name(call.func) == "partial":
            others = [one for name in self._names_of(call) for one in self._calls[name]]
            for other in others:
                yield from self._said(code, other.args[:1], other.args[1:2])
            return
        rest = call.args[at + 1 :] if at >= 0 else []
        if len(rest) > 2:  # a line and a column, say
            rest = [one for one in rest if self.texts(one)]
        causes = rest[:1] or [named[name] for name in _CAUSES if name in named]
        steps = rest[1:2] or [named[name] for name in _NEXT_STEPS if name in named]
        yield from self._said(code, causes, steps)

    def of_table(self, target: ast.expr, table: ast.Dict) -> Iterator[Sentence]:
        """Yield the causes of a table of causes by code, with the next steps of the other one."""
        if _name(target) != "_CAUSES":
            return
        steps = self._values("_NEXT_STEPS", None)
        step_of = dict[str, ast.expr]()
        for other in steps:
            if isinstance(other, ast.Dict):
                step_of = {self._code(k): v for k, v in zip(other.keys, other.values, strict=True)}
        for key, cause in zip(table.keys, table.values, strict=True):
            if code := self._code(key):
                yield from self._said(code, [cause], [step_of[code]] if code in step_of else [])

    def _said(
        self, code: str, causes: Sequence[ast.expr], steps: Sequence[ast.expr]
    ) -> Iterator[Sentence]:
        said, found = ([t for one in some for t in self.texts(one)] for some in (causes, steps))
        next_step = _plain(" Or: ".join(dict.fromkeys(filter(_IS_SAID.search, found))))
        readable = dict.fromkeys(filter(_IS_SAID.search, said))
        for cause in readable or ([""] if next_step else []):
            yield Sentence(code=code, cause=_plain(cause), next_step=next_step)

    def texts(self, node: ast.expr, depth: int = DEPTH) -> list[str]:
        """Return the texts that an expression may be; none if it is not to be seen here."""
        match node:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.JoinedStr(values=parts):
                options = itertools.product(*(self._options(one, depth - 1) for one in parts))
                return ["".join(chosen) for chosen in itertools.islice(options, MOST)]
            case ast.IfExp(body=one, orelse=other) | ast.BoolOp(values=[one, other]):
                return [*self.texts(one, depth), *self.texts(other, depth)]
            case ast.BinOp(op=ast.Add(), left=left, right=right):
                heads, tails = self.texts(left, depth), self.texts(right, depth)
                if heads or tails:
                    pairs = itertools.product(heads or [_slot(left)], tails or [_slot(right)])
                    return ["".join(pair) for pair in itertools.islice(pairs, MOST)]
            case ast.Name(id=name) if depth > 0:
                values = self._values(name, self._around.get(node))
                found = (text for value in values for text in self.texts(value, depth - 1))
                return list(dict.fromkeys(found))
        return []

    def _options(self, part: ast.expr, depth: int) -> list[str]:
        """Return the texts of a part of a text: a word in capitals if it is not to be seen."""
        match part:
            case ast.FormattedValue(value=value):
                return self._options(value, depth)
            case ast.IfExp(body=one, orelse=other):
                found = [*self._options(one, depth), *self._options(other, depth)]
            case ast.BoolOp(values=[one, *_]):
                found = [text for text in self._options(one, depth) if text] or [_slot(one)]
            case _:
                found = self.texts(part, depth) or [_slot(part)]
        return [""] if "" in found and not isinstance(part, ast.Constant) else found

    def _values(self, name: str, function: _Function | None) -> list[ast.expr]:
        """Return what a name stands for: in the function around, else in the module."""
        found = list[ast.expr]()
        for node in ast.walk(function) if function else self._tree.body:
            match node:
                case (
                    ast.Assign(targets=[ast.Name(id=target)], value=value)
                    | ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value)
                ) if target == name:
                    found.append(value)
                case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                    pairs = zip(names, values, strict=False)
                    found += [value for one, value in pairs if _name(one) == name]
        if function is None:
            return found
        return found or self._given(name, function) or self._values(name, None)

    def _given(self, name: str, function: _Function) -> list[ast.expr]:
        """Return what calls in this module give as the parameter of this name."""
        names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
        at = names.index(name) - (names[0] == "self") if name in names else None
        found = list[ast.expr]()
        for call in self._calls[function.name] if function.name != "__init__" else ():
            found += call.args[at : at + 1] if at is not None else ()
            found += [one.value for one in call.keywords if one.arg == name]
        return found

    def _names_of(self, value: ast.expr) -> list[str]:
        assigns = (node for node in self.nodes if isinstance(node, ast.Assign))
        return [_name(target) for one in assigns if one.value is value for target in one.targets]

    def _code(self, node: ast.expr | None) -> str:
        """Return the code that an expression is; "": it is none."""
        if isinstance(node, ast.Name):
            node = next(iter(self._values(node.id, None)), None)
        if isinstance(node, ast.Constant) and CODE.fullmatch(str(node.value)):
            return str(node.value)
        return ""


def _head(node: ast.AST) -> str:
    """Return the text that an expression begins with; "": none."""
    if isinstance(node, ast.JoinedStr) and node.values:
        node = node.values[0]
    return str(node.value) if isinstance(node, ast.Constant) else ""


def _of_text(text: str) -> Iterator[Sentence]:
    """Yield the rows of a table of findings, or what a line says after a code."""
    rows = _ROW.findall(text)
    for code, setting, cost, remedy in rows:
        cause, next_step = _plain(f"{setting}: {cost}"), _plain(remedy)
        is_said = _IS_SAID.search(next_step)
        yield Sentence(code=code, cause=cause, next_step=next_step if is_said else "")
    said = None if rows else _LINE.match(text)
    if said and _IS_SAID.search(said[2]):
        yield Sentence(code=said[1], cause=_plain(said[2]), next_step="", is_log=True)


def _plain(text: str) -> str:
    """Return a text in one line, and with capitals for its fields."""
    shown = _FIELD.sub(lambda field: (field[1] or "...").upper(), " ".join(text.split()))
    return shown.replace("....", "...")


def _name(node: ast.expr) -> str:
    """Return the last name of a function or a target."""
    return getattr(node, "id", getattr(node, "attr", ""))


def _slot(node: ast.expr) -> str:
    """Return a word in capitals for a value that differs each time."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            word = name.strip("_").upper()
            return _ODD.get(word, word)
        case ast.Call(func=ast.Name(id="len")):
            return "N"
        case ast.Call(func=ast.Name(id="counted"), args=[number, *nouns]):
            words = [str(noun.value) for noun in nouns if isinstance(noun, ast.Constant)]
            singular, *plurals = words
            (plural,) = plurals or [f"{singular}s"]
            return f"{_slot(number)} {plural}"
        case (
            ast.Call(args=[*_, value])
            | ast.Call(func=ast.Attribute(value=value))
            | ast.Subscript(value=value)
            | ast.IfExp(body=value)
            | ast.BinOp(left=value)
            | ast.BoolOp(values=[value, *_])
            | ast.GeneratorExp(elt=value)
            | ast.Starred(value=value)
        ):
            return _slot(value)
    return "..."
