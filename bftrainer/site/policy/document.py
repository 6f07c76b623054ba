"""Reads the YAML of a policy, within bounds, into nodes with line and column; all problems at once.

Text comes in from ``load``, a list of keys with values goes out, and every problem
found on the way. ``PolicyErrors`` carries the problems to the user. Only what a policy needs is
accepted: one mapping of scalars and lists; no anchors, no tags. Works on parser events, so that
nothing is ever expanded. Within the bounds a policy or study is read in less than 0.1 s, whatever
the text is.

Codes: BFT-2101 unreadable · 2102 not a regular file · 2103 writable by everyone ·
2104 too large · 2105 not text · 2106 not YAML · 2107 tab · 2108 anchor, alias or tag ·
2109 key twice · 2110 unknown key · 2111 wrong type · 2112 out of bounds ·
2113 contradiction · 2114 unknown plug-in · 2115 not one mapping.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.scanner import Scanner

from bftrainer.model.errors import BftError, ExitCode

MAX_PROBLEMS = 100
MAX_BYTES = 64 * 1024  # the parser's time grows with the square of a long tag
MAX_TOKENS = 3_500  # of 16 to 24 us, by machine; a policy has some 60 settings of three
MAX_DEPTH = 4
_TAB_BEFORE_CONTENT = re.compile(r"[^#'\"]*?\t")
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_CONSTANTS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyProblem:
    """One thing wrong with one place of the file."""

    code: str
    line: int  # from 1; 0: the file as a whole
    column: int
    cause: str
    next_step: str
    path: Path | None = None  # of its file; None: whoever has the problem knows

    def render(self, path: Path) -> str:
        """Return ``file:line:col: code: cause next step``; ``path``: if it has none."""
        return f"{self.place(path)}: {self.code}: {self.cause} {self.next_step}"

    def place(self, path: Path) -> str:
        """Return ``file:line:col``, or the file alone; ``path``: if it has none."""
        path = self.path or path
        if not self.line:
            return str(path)
        return f"{path}:{self.line}:{self.column}"


class PolicyErrors(BftError):  # noqa: N818 - it carries several
    """A policy file that cannot be used; ``problems`` says where and why."""

    WHAT: ClassVar = "policy"
    SEVERAL: ClassVar = "BFT-2100"  # the code if there are several
    CHECK: ClassVar = "bftrainer policy check {path}"  # looks at the file again

    def __init__(self, path: Path, problems: Sequence[PolicyProblem]) -> None:
        in_files = [replace(problem, path=problem.path or path) for problem in problems]
        in_files.sort(key=lambda problem: (str(problem.path or ""), problem.line, problem.column))
        self.path = path
        self.problems = tuple(in_files[:MAX_PROBLEMS])
        first = self.problems[0]
        if len(self.problems) == 1:
            code, next_step = first.code, first.next_step
            cause = f"{first.place(path)}: {first.cause}"
        else:
            lines = "".join(f"\n  {problem.render(path)}" for problem in self.problems)
            code = self.SEVERAL
            count = str(len(in_files))
            if len(in_files) > MAX_PROBLEMS:
                count = f"more than {MAX_PROBLEMS}"
            cause = f"The {self.WHAT} {path} has {count} problems.{lines}\n"
            next_step = f"Correct them, then: {self.CHECK.format(path=path)}"
        super().__init__(code, cause, next_step, exit_code=ExitCode.VALIDATION_FAILED)

    def cause_lines(self) -> Sequence[str]:
        """Return a line for each problem, if there are several."""
        return self.cause.rstrip().split("\n")


def nearest(name: str, known: Sequence[str], otherwise: str) -> str:
    """Return a question for the known name that may be meant, ``otherwise`` if none is near."""
    spelling = name[:80].lower()
    if "_" in "".join(known):
        spelling = spelling.replace("-", "_")
    matches = difflib.get_close_matches(spelling, known, n=1, cutoff=0.6)
    return f"Did you mean {matches[0]}?" if matches else otherwise


class ExcessError(MarkedYAMLError):
    """There is more in the text than settings need; ``problem_mark`` says from where on."""

    def __init__(self, code: str, problem: str, next_step: str, mark: Any) -> None:
        super().__init__(problem=problem, problem_mark=mark)
        self.code, self.next_step = code, next_step


class _BoundedScanner(Scanner):
    """Counts tokens and looks at brackets before the parser does.

    In case one of them begins a key, the parser waits for all tokens of the next 1,024 characters;
    that many open brackets took it 0.15 s.
    """

    _count = 0

    def fetch_more_tokens(self) -> Any:
        self._count += 1
        if self._count > MAX_TOKENS:
            raise ExcessError(
                "BFT-2104", "The file has too many entries.", "Shorten it.", self.reader.get_mark()
            )
        return super().fetch_more_tokens()

    def fetch_flow_collection_start(self, TokenClass: Any, to_push: str) -> None:  # noqa: N803
        if len(self.indents) + self.flow_level >= MAX_DEPTH:
            raise too_deep(self.reader.get_mark())
        super().fetch_flow_collection_start(TokenClass, to_push)

    def scan_yaml_directive_number(self, start_mark: Any) -> Any:
        # The parser asserts it (ruamel.yaml 0.19), and cannot read one of 4,300 digits.
        if self.reader.peek() not in "12" or self.reader.peek(1).isdigit():
            problem = "its version is neither 1.1 nor 1.2"
            raise MarkedYAMLError(problem=problem, problem_mark=start_mark)
        return super().scan_yaml_directive_number(start_mark)


def too_deep(mark: Any) -> ExcessError:
    """Return that lists and mappings are in each other too often."""
    return ExcessError("BFT-2106", "Too many brackets.", "Use plain values.", mark)


def events_of(text: str) -> Iterator[Event]:
    """Yield the parser's events; nothing is expanded or built.

    Raises:
        YAMLError: it is not YAML; ``ExcessError``: or too much of it.
    """
    reader = YAML(typ="safe", pure=True)
    reader.Scanner = _BoundedScanner
    yield from reader.parse(text)


@dataclass(slots=True, kw_only=True)
class YamlNode:
    """A value and where it stands; ``value`` of a list holds plain values."""

    value: Any
    line: int
    column: int
    items: list[YamlNode] = field(default_factory=list)
    keys: list[YamlNode] = field(default_factory=list)
    is_mapping: bool = False

    def at(self, path: Sequence[str | int]) -> YamlNode:
        """Return what is there, or the last on the way there that is."""
        node = self
        for step in path:
            if node.is_mapping:
                # A key that comes twice: the last one counts, as in ``value``.
                node = dict(zip(_names(node), node.items, strict=True)).get(str(step), node)
            elif isinstance(step, int) and step < len(node.items):
                node = node.items[step]
        return node


@dataclass(slots=True, kw_only=True)
class Document:
    """The keys of a policy file in order, and what is wrong with its form."""

    entries: list[tuple[YamlNode, YamlNode]] = field(default_factory=list)
    what: str = "A policy"  # in what is said of it
    problems: list[PolicyProblem] = field(default_factory=list)
    indents: dict[int, int] = field(default_factory=dict)  # line -> characters taken off it

    @property
    def is_told(self) -> bool:
        """True if more problems are known than are reported: the search for others can end."""
        return len(self.problems) > MAX_PROBLEMS

    def complain(self, code: str, line: int, column: int, cause: str, next_step: str) -> None:
        """Add a problem at a place, counted from 1, of the text as it was parsed."""
        if self.is_told:
            return
        self.problems.append(
            PolicyProblem(
                code=code,
                line=line,
                column=column + self.indents.get(line, 0),
                cause=cause,
                next_step=next_step,
            )
        )


def read_document(text: str, what: str = "A policy") -> Document:
    """Return the keys and values of a policy and every problem of its form."""
    document = Document(what=what)
    text = _without_tabs(text, document)
    try:
        root = _build(events_of(text), document)
    except ExcessError as excess:
        mark = excess.problem_mark
        document.complain(
            excess.code, mark.line + 1, mark.column + 1, str(excess.problem), excess.next_step
        )
        return document
    except MarkedYAMLError as problem:
        if document.problems:
            return document  # a consequence of the tabs, perhaps: those first
        mark = problem.problem_mark or problem.context_mark
        line, column = 1, 1
        if mark:
            line, column = mark.line + 1, mark.column + 1
        reason = " ".join(str(problem.problem or problem.context).split())
        document.complain(
            "BFT-2106",
            line,
            column,
            f"This is not YAML: {reason}.",
            "Write one 'name: value' per line.",
        )
        return document
    except YAMLError as problem:
        reason = " ".join(str(problem).split())
        document.complain("BFT-2106", 1, 1, f"This is not YAML: {reason}.", "Correct it.")
        return document
    if root is not None:
        _take_entries(root, document)
    return document


def _without_tabs(text: str, document: Document) -> str:
    """Report tabs and take them out of the way, so that the rest is checked too."""
    lines = text.split("\n")
    for index, line in enumerate(lines):
        match = _TAB_BEFORE_CONTENT.match(line)
        if match is None:
            continue
        document.complain(
            "BFT-2107", index + 1, match.end(), "YAML does not allow a tab here.", "Use spaces."
        )
        stripped = line.lstrip()
        if "\t" in line[: len(line) - len(stripped)]:  # settings are not indented
            document.indents[index + 1] = len(line) - len(stripped)
            line = stripped  # noqa: PLW2901 - the rest of it is treated alike
        lines[index] = line.replace("\t", " ")
    return "\n".join(lines)


def _build(events: Iterator[Event], document: Document) -> YamlNode | None:
    """Return the root of the only document, None when there is nothing in the file."""
    root: YamlNode | None = None
    open_nodes: list[YamlNode] = []
    for event in events:
        if isinstance(event, DocumentStartEvent) and root is not None:
            begins = "A second document begins here."
            raise ExcessError("BFT-2115", begins, "Keep one only.", event.start_mark)
        if isinstance(event, (SequenceEndEvent, MappingEndEvent)):
            closed = open_nodes.pop()
            _close(closed)
            if open_nodes and closed.is_mapping:
                _entries(closed, document)
            continue
        node = _node(event, document)
        if node is None:
            continue
        if open_nodes:
            open_nodes[-1].items.append(node)
        else:
            root = node
        if isinstance(event, (SequenceStartEvent, MappingStartEvent)):
            open_nodes.append(node)
            if len(open_nodes) > MAX_DEPTH:
                raise too_deep(event.start_mark)
    return root


def _node(event: Event, document: Document) -> YamlNode | None:
    line, column = _place(event)
    if isinstance(event, AliasEvent):
        document.complain(
            "BFT-2108", line, column, "Aliases (*name) are not accepted.", "Write the value."
        )
        return YamlNode(value=None, line=line, column=column)
    if not isinstance(event, (ScalarEvent, SequenceStartEvent, MappingStartEvent)):
        return None
    for mark, name in ((event.anchor, "Anchors (&name)"), (event.tag, "Tags (!name)")):
        if mark:
            document.complain(
                "BFT-2108", line, column, f"{name} are not accepted.", "Write the value alone."
            )
    if isinstance(event, ScalarEvent):
        value = event.value
        if event.style is None:  # it has no quotes
            value = _scalar(value)
        return YamlNode(value=value, line=line, column=column)
    return YamlNode(
        value=None, line=line, column=column, is_mapping=isinstance(event, MappingStartEvent)
    )


def _close(node: YamlNode) -> None:
    if node.is_mapping:  # keys and values arrive in turn
        node.keys, node.items = node.items[0::2], node.items[1::2]
        for key, item in zip(node.keys, node.items, strict=True):
            if item.value is None and not item.is_mapping:
                item.line, item.column = key.line, key.column  # nothing has no place
        node.value = dict(zip(_names(node), _values(node), strict=True))
    else:
        node.value = _values(node)


def _names(node: YamlNode) -> list[str]:
    return [str(key.value) for key in node.keys]


def _values(node: YamlNode) -> list[Any]:
    return [item.value for item in node.items]


def _scalar(text: str) -> Any:
    """Return the value of an unquoted scalar by the core schema of YAML 1.2."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INT.fullmatch(text) and len(text) < 400:
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def _take_entries(root: YamlNode, document: Document) -> None:
    if not root.is_mapping:
        if root.value is not None:
            document.complain(
                "BFT-2115",
                root.line,
                root.column,
                f"{document.what} is a mapping of settings.",
                "Write one 'name: value' per line.",
            )
        return
    document.entries += _entries(root, document)


def _entries(node: YamlNode, document: Document) -> list[tuple[YamlNode, YamlNode]]:
    """Return the keys of a mapping with their values; complain of those that come again."""
    first: dict[str, tuple[YamlNode, YamlNode]] = {}
    for key, value in zip(node.keys, node.items, strict=True):
        first_key, _ = first.setdefault(str(key.value), (key, value))
        if first_key is not key:
            document.complain(
                "BFT-2109",
                key.line,
                key.column,
                f"{key.value} is set twice, first in line {first_key.line}.",
                "Keep one of them.",
            )
    return list(first.values())


def _place(event: Event) -> tuple[int, int]:
    return event.start_mark.line + 1, event.start_mark.column + 1
