"""The values that words of a shell script have, where its text alone says them. Pure.

A part that only bash, the nodes or the file system could say (a command's output, a pattern, a
variable that is set nowhere) stays in the value as it is written, between two marks. The index of
an array's job is a mark of its own: every trainer of an array has another one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from bftrainer.cli.sbatch_script.shell_lines import UnclosedError, piece_end

OPEN, CLOSE = "\x00", "\x01"  # around what is not known; no script has these characters
INDEX: Final = "\x02"
MOST_OF_VALUE: Final = 16 * 1024  # characters of a variable's value that is followed
MOST_CHARACTERS: Final = 128 * 1024  # of the words of one command
Value = str | tuple[str, ...]  # a list: NAME=(A B)
Variables = Mapping[str, Value]
_UNKNOWN = re.compile(f"{OPEN}([^{OPEN}{CLOSE}]*){CLOSE}")
MOST_IN_BRACES: Final = 1024  # characters
_HOME = re.compile(r"~(?:(?=/|\Z)|[^/\s'\"\\$`]+)")  # of a user, "~": one's own
_NAMED_HOME = re.compile(r"[A-Za-z_]\w*=(?=~)")
_ALL_ARGUMENTS: Final = frozenset({"$@", "$*", "${@}", "${*}"})
_PARTS = re.compile(f"(?:[^\\s{OPEN}]|{OPEN}[^{CLOSE}]*{CLOSE})+")  # between blanks that divide
_PLAIN = re.compile(r"\$(\w+|[@*#?$!-])")
_BRACED = re.compile(
    r"\$\{(?P<name>[A-Za-z_]\w*|\d+)(?P<all>\[[@*]\])?(?::?(?P<sign>[-=])(?P<usual>[^{}$`\"'\\]*))?\}\Z"
)
_NAMES = re.compile(r"\$\{?[#!]?([A-Za-z_]\w*)")
_IN_QUOTES = '$`"\\'  # what a backslash may protect there
ASSIGNMENT: Final = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<more>\+?)=(?P<value>.*)\Z", re.DOTALL)


def words_of(text: str) -> frozenset[str]:
    """Return the words of a text: a table of many names is read better without their quotes."""
    return frozenset(text.split())


def unknown(text: str) -> str:
    """Return the value of a part that is not known."""
    return f"{OPEN}{re.sub(f'[{OPEN}{CLOSE}]', '', text)}{CLOSE}"


def unknown_parts(text: str) -> tuple[str, ...]:
    """Return the parts of a value that are not known, as the script writes them."""
    return tuple(_UNKNOWN.findall(text))


def as_written(text: str) -> str:
    """Return a value for people, with the index of an array as a variable."""
    return text.replace(OPEN, "").replace(CLOSE, "").replace(INDEX, "$SLURM_ARRAY_TASK_ID")


def quoted(word: str) -> str:
    """Return a word as bash is to read it; what is not known it finds out itself."""
    if unknown_parts(word):
        return f'"{as_written(word)}"'
    return shlex.quote(as_written(word))


def names_in(text: str) -> frozenset[str]:
    """Return the names of the variables that a text of the shell uses."""
    return frozenset(_NAMES.findall(text))


def expanded(word: str, variables: Variables) -> tuple[str, ...]:
    """Return the words that bash would make of one."""
    everything = variables.get("@")
    if word.strip('"') in _ALL_ARGUMENTS and isinstance(everything, tuple):
        return everything
    reader = _Expansion(variables)
    try:
        reader.read(word)
    except UnclosedError:  # a word of a command that never ends
        return (unknown(word),)
    return tuple(reader.words())


def all_expanded(words: Sequence[str], variables: Variables) -> tuple[str, ...]:
    """Return the words that bash would make of several; what is too long is not known."""
    parts: list[str] = []
    room = MOST_CHARACTERS
    for word in words:
        for part in expanded(word, variables):
            room -= len(part) + 1
            if room < 0:
                return (*parts, unknown("..."))
            parts.append(part)
    return tuple(parts)


def value_of(text: str, variables: Variables) -> Value:
    """Return the value that an assignment gives: a text, which is not split, or a list."""
    if text.startswith("(") and text.endswith(")"):
        return all_expanded(list(_list_words(text[1:-1])), variables)
    reader = _Expansion(variables, splits=False)
    try:
        reader.read(text)
    except UnclosedError:
        return unknown(text)
    return "".join(reader.words())


class ShellVariable(NamedTuple):
    """A variable of the shell."""

    name: str
    value: Value


def assigned(text: str, variables: Variables) -> ShellVariable | None:
    """Return the name and the value of NAME=VALUE; None: it sets one element of a list."""
    match = ASSIGNMENT.match(text)
    if match is None:
        return None
    name, value = match["name"], value_of(match["value"], variables)
    if match["more"]:
        value = _sum(variables.get(name, ""), value)
    if sum(map(len, value)) > MOST_OF_VALUE:
        value = unknown(f"${name}")
    return ShellVariable(name, value)


def _sum(value: Value, addition: Value) -> Value:
    if isinstance(value, str) and isinstance(addition, str):
        return value + addition
    return (*_as_list(value), *_as_list(addition))


def _as_list(value: Value) -> tuple[str, ...]:
    """Return a value as a list; an empty text is no part of one."""
    if isinstance(value, tuple):
        return value
    return (value,) if value else ()


def _list_words(text: str) -> Iterator[str]:
    """Yield the words of a list, with their quotes."""
    at, start = 0, -1
    while at < len(text):
        if text[at].isspace():
            if start >= 0:
                yield text[start:at]
            at, start = at + 1, -1
            continue
        if start < 0:
            start = at
        at = piece_end(text, at)
    if start >= 0:
        yield text[start:]


def _braces(word: str, at: int) -> str:
    """Return the braces that begin here if bash makes several words of them; ""."""
    if word[at] != "{":
        return ""
    depth = 0
    for end, sign in enumerate(word[at : at + MOST_IN_BRACES], start=at):
        depth += (sign == "{") - (sign == "}")
        if depth == 0:
            text = word[at : end + 1]
            is_several = "," in text or ".." in text
            return text if is_several else ""
    return ""


class _Expansion:
    """Reads the pieces of one word."""

    def __init__(self, variables: Variables, *, splits: bool = True) -> None:
        self._variables = variables
        self._splits = splits
        self._room = MOST_CHARACTERS
        self._words: list[str] = []
        self._text: str | None = None  # of the word that is not complete yet

    def words(self) -> list[str]:
        """Return the words read."""
        if self._text is not None:
            return [*self._words, self._text]
        return self._words

    def read(self, word: str) -> None:
        """Read a word; UnclosedError: it never ends."""
        at = 0
        if assignment := _NAMED_HOME.match(word):
            self._add(assignment[0])
            at = assignment.end()
        if home := _HOME.match(word, at):
            at = home.end()
            if home[0] == "~":
                self._add(self._variable("HOME", "~"))
            else:
                self._add(unknown(home[0]))
        while at < len(word):
            braces, plain = _braces(word, at), _PLAIN.match(word, at)
            if braces and self._splits:
                end = at + len(braces)
                self._add(unknown(braces))
            elif plain is not None:
                end = plain.end()
                self._value(plain[0], is_quoted=False)
            else:
                end = piece_end(word, at)
                is_pattern = word[at] in "*?" or (word[at] == "[" and "]" in word[at + 2 :])
                self._piece(word[at:end], is_pattern=is_pattern and self._splits)
            at = end

    def _piece(self, piece: str, *, is_pattern: bool) -> None:
        if is_pattern:
            self._add(unknown(piece))
        elif piece.startswith("'"):
            self._add(piece[1:-1])
        elif piece.startswith('"'):
            self._quotation(piece[1:-1])
        elif piece.startswith("\\"):
            self._add(piece[1:])
        elif piece.startswith("${"):
            self._value(piece, is_quoted=False)
        elif piece.startswith(("`", "$(", "$'", "<(", ">(")):
            self._add(self._output(piece))
        else:
            self._add(piece)

    def _quotation(self, text: str) -> None:
        """Read what stands in double quotes."""
        self._add("")
        at = 0
        while at < len(text):
            if text[at] == "\\":
                escaped = text[at + 1 : at + 2]
                if escaped not in _IN_QUOTES:
                    self._add("\\")
                self._add(escaped)
                at += 2
            elif text[at] == "$" and (plain := _PLAIN.match(text, at)):
                self._value(plain[0], is_quoted=True)
                at = plain.end()
            elif text[at] in "$`" and text[at : at + 2] != "$'":
                end = piece_end(text, at)
                self._substitution(text[at:end])
                at = end
            else:
                self._add(text[at])
                at += 1

    def _substitution(self, piece: str) -> None:
        """Add what a substitution in double quotes stands for."""
        if piece.startswith("${"):
            self._value(piece, is_quoted=True)
        elif piece == "$":
            self._add(piece)
        else:
            self._add(self._output(piece))

    def _output(self, piece: str) -> str:
        if piece in ("$(pwd)", "`pwd`"):
            return self._variable("PWD", piece)
        return unknown(piece)

    def _variable(self, name: str, piece: str) -> str:
        value = self._variables.get(name)
        return value if isinstance(value, str) else unknown(piece)

    def _value(self, piece: str, *, is_quoted: bool) -> None:
        """Add the value of ``$NAME`` or ``${NAME}``."""
        match = _BRACED.match(piece)
        name = match["name"] if match else piece[1:]
        value = self._variables.get(name)
        if match and match["sign"] and (value is None or (value == "" and ":" in piece)):
            value = match["usual"]
        if isinstance(value, tuple) and match is not None and match["all"]:
            self._add_words(value, is_quoted=is_quoted)
            return
        if isinstance(value, tuple) and value and match is None:
            value, *_ = value
        if not isinstance(value, str) or (piece.startswith("${") and match is None):
            self._add(unknown(piece))
        elif is_quoted or not self._splits:
            self._add(value)
        else:
            self._add_split(value)

    def _add_split(self, value: str) -> None:
        """Add an unquoted value, whose blanks divide words."""
        parts = _PARTS.findall(value)
        if not parts:
            return
        if value[:1].isspace():
            self._end()
        self._add_words(parts, is_quoted=True)
        if value[-1:].isspace():
            self._end()

    def _add_words(self, parts: Sequence[str], *, is_quoted: bool) -> None:
        for number, part in enumerate(parts):
            if number:
                self._end()
            if is_quoted:
                self._add(part)
            else:
                self._add_split(part)

    def _end(self) -> None:
        if self._text is not None:
            self._words.append(self._text)
            self._text = None

    def _add(self, text: str) -> None:
        self._room -= len(text)
        if self._room < 0:
            raise UnclosedError(0)  # likewise nothing that can be followed
        self._text = (self._text or "") + text
