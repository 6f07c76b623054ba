"""The ``#SBATCH`` lines of a job script, read as sbatch reads them. Pure.

sbatch looks at lines that begin with ``#SBATCH``, up to the first that is neither blank nor a
comment; quotes protect blanks, an unprotected ``#`` begins a comment, and a long option may be
shortened as long as only one has that beginning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bftrainer.cli.sbatch_options import BY_SHORT, OPTIONS, OptionValue, SbatchOption

PREFIX: Final = "#SBATCH"
_OTHERS: Final = {"#BSUB": "LSF", "#PBS": "PBS", "#COBALT": "Cobalt", "#$ -": "Grid Engine"}
_UNENDED: Final = "A quotation in it never ends, and sbatch refuses it."
_SHELLS = re.compile(r"#!\s*(?:/usr/bin/env\s+(?:-\S+\s+)*)?(?:\S*/)?(?:ba|da|k|z|)sh(?:\s|\Z)")
_SHEBANG = re.compile(r"#!\s*(?:/usr/bin/env\s+(?:-\S+\s+)*)?(?:\S*/)?([^\s/]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SbatchDirective:
    """One option of a ``#SBATCH`` line."""

    line: int  # from 1
    text: str  # the option as the line has it
    option: SbatchOption | None  # None: sbatch has no such option
    value: str = ""
    fault: str = ""  # why it cannot be read; "": it can


def shell_of(text: str) -> str:
    """Return the program that the first line names if it is no shell that bash understands; ""."""
    first = text.partition("\n")[0]
    if not first.startswith("#!") or _SHELLS.match(first):
        return ""
    match = _SHEBANG.match(first)
    return "no program" if match is None else match[1]


def other_batch_system(text: str) -> str:
    """Return the batch system whose directives the head has instead of Slurm's; ""."""
    lines = [line for _, line in _head(text)]
    if any(line.startswith(PREFIX) for line in lines):
        return ""
    for prefix, name in _OTHERS.items():
        if any(line.startswith(prefix) for line in lines):
            return name
    return ""


def read_directives(text: str) -> tuple[SbatchDirective, ...]:
    """Return the options of all ``#SBATCH`` lines, in their order."""
    directives: list[SbatchDirective] = []
    for number, line in _head(text):
        if not line.startswith(PREFIX):
            continue
        arguments = line.removeprefix(PREFIX)
        words = _arguments(arguments)
        if words is None:
            text = arguments.strip()
            directives.append(SbatchDirective(line=number, text=text, option=None, fault=_UNENDED))
        else:
            directives += directives_of(words, number)
    return tuple(directives)


def _head(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            return
        yield number, line.rstrip("\r")


def _arguments(line: str) -> list[str] | None:
    """Split the rest of a line into arguments; None: a quotation in it never ends.

    A backslash protects a quotation mark or ``#``, but no blank.
    """
    words: list[str] = []
    word, quote, at, is_open = "", "", 0, False
    while at < len(line):
        sign, at = line[at], at + 1
        if sign == "\\" and at < len(line) and (quote or not line[at].isspace()):
            word, at, is_open = word + line[at], at + 1, True
        elif sign == "\\":
            is_open = True
        elif quote and sign == quote:
            quote = ""
        elif quote:
            word += sign
        elif sign in "\"'":
            quote, is_open = sign, True
        elif sign == "#":
            break
        elif not sign.isspace():
            word, is_open = word + sign, True
        elif is_open:
            words.append(word)
            word, is_open = "", False
    if is_open:
        words.append(word)
    return None if quote else words


def directives_of(words: Sequence[str], line: int) -> Iterator[SbatchDirective]:
    """Yield the options of a command line of sbatch, or of the rest of one ``#SBATCH`` line."""
    at = 0
    while at < len(words):
        word, at = words[at], at + 1
        following = words[at] if at < len(words) else None
        if word.startswith("--") and word != "--":
            directive, takes_next = _long(word, following, line)
            yield directive
            at += takes_next
        elif word.startswith("-") and word not in ("-", "--"):
            for directive, takes_next in _short(word, following, line):
                yield directive
                at += takes_next
        else:
            yield SbatchDirective(
                line=line, text=word, option=None, fault="It is no option, and sbatch refuses it."
            )


def _long(word: str, following: str | None, line: int) -> tuple[SbatchDirective, bool]:
    name, has_value, value = word.removeprefix("--").partition("=")
    names = [full_name for full_name in OPTIONS if full_name.startswith(name)]
    if name in OPTIONS:  # though others may begin with it
        names = [name]
    if len(names) != 1:
        cause = f"sbatch has no option --{name}."
        if names:
            cause = f"--{name} may be --{', --'.join(names[:4])}."
        return SbatchDirective(line=line, text=word, option=None, fault=cause), False
    option = OPTIONS[names[0]]
    if has_value or option.value is not OptionValue.REQUIRED:
        return SbatchDirective(line=line, text=word, option=option, value=value), False
    return _with_next(word, following, option, line)


def _short(word: str, following: str | None, line: int) -> list[tuple[SbatchDirective, bool]]:
    """Return the options of ``-N2``, ``-N 2`` or ``-HQ``, and whether each takes the next word."""
    options: list[tuple[SbatchDirective, bool]] = []
    letters = word[1:]
    while letters:
        letter, letters = letters[0], letters[1:]
        option = BY_SHORT.get(letter)
        if option is None:
            fault = f"sbatch has no option -{letter}."
            options.append((SbatchDirective(line=line, text=word, option=None, fault=fault), False))
            return options
        if option.value is OptionValue.NONE:
            options.append((SbatchDirective(line=line, text=word, option=option), False))
            continue
        if letters or option.value is OptionValue.OPTIONAL:
            value = letters.removeprefix("=")
            options.append(
                (SbatchDirective(line=line, text=word, option=option, value=value), False)
            )
            return options
        options.append(_with_next(word, following, option, line))
    return options


def _with_next(
    word: str, following: str | None, option: SbatchOption, line: int
) -> tuple[SbatchDirective, bool]:
    if following is None:
        fault = f"{word} has no value."
        return SbatchDirective(line=line, text=word, option=option, fault=fault), False
    text = f"{word} {following}"
    return SbatchDirective(line=line, text=text, option=option, value=following), True
