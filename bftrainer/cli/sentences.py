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
_HAS_WORDS = re.compile(r"[a-z]{2}")  # there is more than capitals
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
        keywords = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        code = self._code(keywords.get("code"))
        arguments_after = list[ast.expr]()  # the code
        for i, argument in enumerate(call.args):
            if argument_code := self._code(argument):
                code, arguments_after = argument_code, call.args[i + 1 :]
                break
        if not code:
            return
        if _name(call.func) == "partial":
            for name in self._names_of(call):
                for later_call in self._calls[name]:
                    yield from self._sentences(code, later_call.args[:1], later_call.args[1:2])
            return
        if len(arguments_after) > 2:  # a line and a column, say
            arguments_after = list(filter(self.texts, arguments_after))
        causes = arguments_after[:1] or [keywords[name] for name in _CAUSES if name in keywords]
        steps = arguments_after[1:2] or [keywords[n] for n in _NEXT_STEPS if n in keywords]
        yield from self._sentences(code, causes, steps)

    def of_table(self, target: ast.expr, table: ast.Dict) -> Iterator[Sentence]:
        """Yield the causes of a table of causes by code, with the next steps of the other one."""
        if _name(target) != "_CAUSES":
            return
        steps_of = dict[str, list[ast.expr]]()
        for value in self._values("_NEXT_STEPS", None):
            if isinstance(value, ast.Dict):
                rows = zip(value.keys, value.values, strict=True)
                steps_of = {self._code(key): [step] for key, step in rows}
        for key, cause in zip(table.keys, table.values, strict=True):
            if code := self._code(key):
                yield from self._sentences(code, [cause], steps_of.get(code, []))

    def _sentences(
        self, code: str, causes: Sequence[ast.expr], steps: Sequence[ast.expr]
    ) -> Iterator[Sentence]:
        next_step = _plain(" Or: ".join(self._readable_texts(steps)))
        cause_texts = self._readable_texts(causes)
        if not cause_texts and next_step:
            cause_texts = [""]
        for cause in cause_texts:
            yield Sentence(code=code, cause=_plain(cause), next_step=next_step)

    def _readable_texts(self, nodes: Sequence[ast.expr]) -> list[str]:
        """Return each text once that the expressions may be, if it is more than capitals."""
        texts = itertools.chain.from_iterable(map(self.texts, nodes))
        return list(dict.fromkeys(filter(_HAS_WORDS.search, texts)))

    def texts(self, node: ast.expr, depth: int = DEPTH) -> list[str]:
        """Return the texts that an expression may be; none if it is not to be seen here."""
        match node:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.JoinedStr(values=parts):
                return _variants([self._options(part, depth - 1) for part in parts])
            case ast.IfExp(body=left, orelse=right) | ast.BoolOp(values=[left, right]):
                return [*self.texts(left, depth), *self.texts(right, depth)]
            case ast.BinOp(op=ast.Add(), left=left, right=right):
                heads, tails = self.texts(left, depth), self.texts(right, depth)
                if heads or tails:
                    return _variants([heads or [_slot(left)], tails or [_slot(right)]])
            case ast.Name(id=name) if depth > 0:
                values = self._values(name, self._around.get(node))
                texts_of_values = (self.texts(value, depth - 1) for value in values)
                return list(dict.fromkeys(itertools.chain.from_iterable(texts_of_values)))
        return []

    def _options(self, part: ast.expr, depth: int) -> list[str]:
        """Return the texts of a part of a text: a word in capitals if it is not to be seen."""
        match part:
            case ast.FormattedValue(value=value):
                return self._options(value, depth)
            case ast.IfExp(body=left, orelse=right):
                texts = [*self._options(left, depth), *self._options(right, depth)]
            case ast.BoolOp(values=[left, *_]):
                texts = list(filter(None, self._options(left, depth))) or [_slot(left)]
            case _:
                texts = self.texts(part, depth) or [_slot(part)]
        # What may be missing is left out: the sentence is whole without it.
        if "" in texts and not isinstance(part, ast.Constant):
            return [""]
        return texts

    def _values(self, name: str, function: _Function | None) -> list[ast.expr]:
        """Return what a name stands for: in the function around, else in the module."""
        values_of_name = list[ast.expr]()
        for node in self._tree.body if function is None else ast.walk(function):
            match node:
                case (
                    ast.Assign(targets=[ast.Name(id=target)], value=value)
                    | ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value)
                ) if target == name:
                    values_of_name.append(value)
                case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                    pairs = zip(names, values, strict=False)
                    values_of_name += [value for part, value in pairs if _name(part) == name]
        if function is None:
            return values_of_name
        return values_of_name or self._arguments(name, function) or self._values(name, None)

    def _arguments(self, name: str, function: _Function) -> list[ast.expr]:
        """Return what calls in this module give as the parameter of this name."""
        if function.name == "__init__":  # which is called by the name of its class
            return []
        names = [parameter.arg for parameter in (*function.args.posonlyargs, *function.args.args)]
        arguments = list[ast.expr]()
        for call in self._calls[function.name]:
            if name in names:
                place = names.index(name) - (names[0] == "self")
                arguments += call.args[place : place + 1]
            arguments += [keyword.value for keyword in call.keywords if keyword.arg == name]
        return arguments

    def _names_of(self, value: ast.expr) -> list[str]:
        """Return the names that the value is assigned to."""
        names = list[str]()
        for node in self.nodes:
            if isinstance(node, ast.Assign) and node.value is value:
                names += map(_name, node.targets)
        return names

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


def _variants(options_of_parts: Sequence[Sequence[str]]) -> list[str]:
    """Return the first texts that the options of the parts make."""
    variants = itertools.product(*options_of_parts)
    return list(map("".join, itertools.islice(variants, MOST)))


def _of_text(text: str) -> Iterator[Sentence]:
    """Yield the rows of a table of findings, or what a line says after a code."""
    rows = _ROW.findall(text)
    for code, setting, cost, remedy in rows:
        cause, next_step = _plain(f"{setting}: {cost}"), _plain(remedy)
        if not _HAS_WORDS.search(next_step):
            next_step = ""
        yield Sentence(code=code, cause=cause, next_step=next_step)
    line = _LINE.match(text)
    if line and not rows and _HAS_WORDS.search(line[2]):
        yield Sentence(code=line[1], cause=_plain(line[2]), next_step="", is_log=True)


def _plain(text: str) -> str:
    """Return a text in one line, and with capitals for its fields."""
    one_line = " ".join(text.split())
    with_slots = _FIELD.sub(lambda field: (field[1] or "...").upper(), one_line)
    return with_slots.replace("....", "...")


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
