"""The commands of a shell script, split as bash splits them. Nothing is run or expanded. Pure.

Quotes, substitutions, comments, continued lines, here-documents and compound commands are told
apart well enough to say what each line is for; whatever does not end is reported as a fault.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

MOST_NESTED: Final = 40  # quotes and substitutions within each other
WORD, OPERATOR, REDIRECTION, NEWLINE = "word", "operator", "redirection", "newline"
_BLANKS, _ENDS = " \t\f\v", " \t\f\v\n;&|()<>"
_REDIRECTION = re.compile(r"\d*(?:<<<|<<-|<<|<>|<&|>&|>>|>\||<(?!\()|>(?!\())|&>>|&>")
_OPERATOR = re.compile(r";;&|;;|;&|&&|\|\||\|&|[;&|()]")
_LIST = re.compile(r"[A-Za-z_]\w*(?:\[[^\]]*\])?\+?=\Z")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(?:\[[^\]]*\])?\+?=")
_CLOSERS: Final = {
    "if": "fi", "for": "done", "while": "done", "until": "done", "select": "done", "case": "esac",
    "{": "}",
}  # fmt: skip
_WITH_HEADERS: Final = frozenset({"for", "select", "case"})
_JOINTS: Final = frozenset({"&&", "||", "|", "|&"})
_BETWEEN: Final = frozenset({"then", "do", "else", "elif", "!", "coproc"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellCommand:
    """A simple command."""

    line: int  # on which it begins, from 1
    text: str  # as it is written
    words: tuple[str, ...]  # with their quotes, without assignments and redirections
    assignments: tuple[str, ...] = ()  # NAME=VALUE before its words
    redirections: tuple[str, ...] = ()
    joint: str = ""  # the operator before it: "&&", "||", "|"; "": a new line or ";"
    block: int = 0  # the number of the compound command that it is in, from 1; 0: in none
    is_background: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellBlock:
    """An outermost compound command: a loop, a condition, a function."""

    line: int
    text: str
    keyword: str  # "if", "for", ..., "(" or "function"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellScript:
    """All commands of a script, in their order."""

    commands: tuple[ShellCommand, ...]
    blocks: tuple[ShellBlock, ...]
    fault: str = ""  # what never ends, or ends without a beginning; "": nothing
    fault_line: int = 0


class _Token(NamedTuple):
    kind: str
    text: str
    start: int
    end: int


class _OpenBlock(NamedTuple):
    """A compound command that has not ended yet."""

    closer: str  # what ends it
    start: int


class UnclosedError(Exception):
    """A quote or substitution never ends; its argument is where it begins."""


def piece_end(text: str, start: int, depth: int = 0) -> int:
    """Return where the piece of a word ends that begins at ``start``.

    A piece is a quotation, a substitution, or one character with the backslash before it.
    """
    if depth > MOST_NESTED:
        raise UnclosedError(start)
    sign, after = text[start], text[start + 1 : start + 2]
    end = start + 1
    if sign == "\\":
        end = min(start + 2, len(text))
    elif sign == "'":
        end = _behind(text, "'", start + 1, start)
    elif sign in '"`':
        end = _quotation_end(text, start, depth)
    elif sign == "$" and after == "'":
        end = _quotation_end(text, start + 1, depth)
    elif (sign in "$<>" and after == "(") or (sign == "$" and after == "{"):
        end = _bracket_end(text, start + 1, depth)
    return end


def _behind(text: str, sign: str, begin: int, start: int) -> int:
    at = text.find(sign, begin)
    if at < 0:
        raise UnclosedError(start)
    return at + 1


def _quotation_end(text: str, start: int, depth: int) -> int:
    """Return the end of what begins with a quotation mark, in which a backslash counts."""
    mark, at = text[start], start + 1
    while at < len(text):
        if text[at] == mark:
            return at + 1
        if text[at] == "\\":
            at += 2
        elif mark == '"' and text[at] in "$`":
            at = _substitution_end(text, at, depth)
        else:
            at += 1
    raise UnclosedError(start)


def _substitution_end(text: str, at: int, depth: int) -> int:
    """Return the end of a substitution in double quotes, where ``$'`` is none."""
    if text[at] == "$" and text[at + 1 : at + 2] not in ("(", "{"):
        return at + 1
    return piece_end(text, at, depth + 1)


def _bracket_end(text: str, start: int, depth: int) -> int:
    """Return the end of what begins with a bracket, brackets in it and quotations included."""
    opener = text[start]
    closer = {"(": ")", "{": "}"}[opener]
    level, at = 0, start
    while at < len(text):
        if text[at] == opener:
            level, at = level + 1, at + 1
        elif text[at] == closer:
            level, at = level - 1, at + 1
            if level == 0:
                return at
        else:
            at = piece_end(text, at, depth + 1)
    raise UnclosedError(start)


class _Tokens:
    """Splits a text into words, operators, redirections and line ends."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self._documents: list[tuple[str, bool]] = []  # delimiter, whether tabs before it go

    def __iter__(self) -> Iterator[_Token]:
        while (token := self._next()) is not None:
            yield token

    def _next(self) -> _Token | None:
        self._skip()
        if self.at >= len(self.text):
            return None
        start = self.at
        if self.text[start] == "\n":
            self.at += 1
            self._skip_documents()
            return _Token(NEWLINE, "\n", start, start + 1)
        if redirection := _REDIRECTION.match(self.text, start):
            return self._redirection(redirection[0])
        if operator := _OPERATOR.match(self.text, start):
            self.at = operator.end()
            return _Token(OPERATOR, operator[0], start, self.at)
        return _Token(WORD, self._word(), start, self.at)

    def _skip(self) -> None:
        """Go past blanks, continued lines and a comment."""
        text = self.text
        while self.at < len(text):
            if text[self.at] in _BLANKS:
                self.at += 1
            elif text.startswith("\\\n", self.at):
                self.at += 2
            else:
                break
        if text.startswith("#", self.at):
            self.at = self._line_end()

    def _line_end(self) -> int:
        """Return where the line that is read ends."""
        end = self.text.find("\n", self.at)
        return end if end >= 0 else len(self.text)

    def _word(self) -> str:
        """Return a word as it is written, without the ends of lines that a backslash continues."""
        text, start = self.text, self.at
        pieces: list[str] = []
        while self.at < len(text):
            sign, at = text[self.at], self.at
            if sign == "(" and _LIST.match(text[start:at]):
                self.at = _bracket_end(text, at, 0)
            elif sign in _ENDS and not (sign in "<>" and text.startswith("(", at + 1)):
                break
            else:
                self.at = piece_end(text, at)
            piece = text[at : self.at]
            if sign != "'":
                piece = piece.replace("\\\n", "")
            pieces.append(piece)
        return "".join(pieces)

    def _redirection(self, operator: str) -> _Token:
        start = self.at
        self.at += len(operator)
        while self.at < len(self.text) and self.text[self.at] in _BLANKS:
            self.at += 1
        target = self._word()
        kind = operator.lstrip("0123456789")
        if kind in ("<<", "<<-"):
            self._documents.append((re.sub(r"[\"'\\]", "", target), kind == "<<-"))
        return _Token(REDIRECTION, f"{operator}{target}", start, self.at)

    def _skip_documents(self) -> None:
        for delimiter, has_tabs in self._documents:
            while self.at < len(self.text):
                end = self._line_end()
                line = self.text[self.at : end]
                self.at = min(end + 1, len(self.text))
                if has_tabs:
                    line = line.lstrip("\t")
                if line == delimiter:
                    break
        self._documents = []


class _Parser:
    """Puts tokens together to commands, and says in which compound command they are."""

    def __init__(self, text: str) -> None:
        self.commands: list[ShellCommand] = []
        self.blocks: list[ShellBlock] = []
        self.fault, self.fault_line = "", 0
        self._text = text
        self._line_ends = [at for at, sign in enumerate(text) if sign == "\n"]
        self._open: list[_OpenBlock] = []
        self._keyword = ""  # of the outermost
        self._joint = ""
        self._begin()

    def _begin(self) -> None:
        self._words: list[str] = []
        self._assignments: list[str] = []
        self._redirections: list[str] = []
        self._start, self._end = -1, -1
        self._is_test = False  # within [[ ]]
        self._function_at = -1

    def line_of(self, at: int) -> int:
        return bisect_right(self._line_ends, at - 1) + 1

    def read(self) -> None:
        """Read the whole text."""
        try:
            for token in _Tokens(self._text):
                self._take(token)
        except UnclosedError as problem:
            (at,) = problem.args
            self._fail("something in quotes or brackets that never ends begins here", at)
        self._end_command()
        if self._open and not self.fault:
            _, at = self._open[0]
            self._fail("what begins here never ends", at)

    def _fail(self, cause: str, at: int) -> None:
        if not self.fault:
            self.fault, self.fault_line = cause, self.line_of(at)

    def _take(self, token: _Token) -> None:
        if token.kind == NEWLINE:
            self._end_command()
            self._joint = ""
        elif token.kind == REDIRECTION:
            self._note(token)
            self._redirections.append(token.text)
        elif token.kind == WORD or self._is_test:
            self._word(token)
        else:
            self._operator(token)

    def _note(self, token: _Token) -> None:
        if self._start < 0:
            self._start = token.start
        self._end = token.end

    def _word(self, token: _Token) -> None:
        text = token.text
        is_first = not (self._words or self._assignments or self._redirections)
        if is_first and text in _CLOSERS:
            self._open_block(_CLOSERS[text], text, token.start)
            if text in _WITH_HEADERS:
                self._note(token)
                self._words.append(text)
            return
        if is_first and text in _BETWEEN:
            return
        if is_first and text in _CLOSERS.values():
            self._close_block(text, token)
            return
        self._note(token)
        if not self._words and _ASSIGNMENT.match(text):
            self._assignments.append(text)
            return
        self._words.append(text)
        if text in ("[[", "]]"):
            self._is_test = text == "[["
        if self._words[:1] == ["function"] and len(self._words) == 2:
            at = self._start
            self._begin()
            self._function_at = at

    def _operator(self, token: _Token) -> None:
        text = token.text
        if text == "(":
            self._open_bracket(token)
        elif text == ")" and self._open and self._open[-1].closer == "esac":
            self._begin()  # the pattern of a case
        elif text == ")":
            self._end_command()
            self._close_block(text, token)
        else:
            self._end_command(is_background=text == "&")
            self._joint = text if text in _JOINTS else ""

    def _open_bracket(self, token: _Token) -> None:
        if len(self._words) == 1 and not self._assignments:  # name ()
            at = self._start
            self._begin()
            self._function_at = at
        elif self._words:
            self._end_command()
        self._open_block(")", "(", token.start)

    def _open_block(self, closer: str, keyword: str, at: int) -> None:
        if not self._open:
            self._keyword = keyword
            if self._function_at >= 0:
                at, self._keyword = self._function_at, "function"
        if self._function_at < 0 or keyword != "(":
            self._function_at = -1
        self._open.append(_OpenBlock(closer, at))

    def _close_block(self, closer: str, token: _Token) -> None:
        if not self._open or self._open[-1].closer != closer:
            self._fail(f"{closer!r} ends here what has not begun", token.start)
            return
        _, at = self._open.pop()
        is_name = self._function_at >= 0 and closer == ")"  # the brackets behind a function's name
        if not self._open and not is_name:
            block = ShellBlock(
                line=self.line_of(at), text=self._text[at : token.end], keyword=self._keyword
            )
            self.blocks.append(block)

    def _end_command(self, *, is_background: bool = False) -> None:
        if self._start >= 0:
            block = len(self.blocks) + 1 if self._open else 0
            command = ShellCommand(
                line=self.line_of(self._start),
                text=self._text[self._start : self._end],
                words=tuple(self._words),
                assignments=tuple(self._assignments),
                redirections=tuple(self._redirections),
                joint=self._joint,
                block=block,
                is_background=is_background,
            )
            self.commands.append(command)
        function_at = self._function_at
        self._begin()
        self._function_at = function_at  # its body may begin on the next line


def read_shell(text: str) -> ShellScript:
    """Return the commands of a shell script."""
    parser = _Parser(text)
    parser.read()
    return ShellScript(
        commands=tuple(parser.commands),
        blocks=tuple(parser.blocks),
        fault=parser.fault,
        fault_line=parser.fault_line,
    )
