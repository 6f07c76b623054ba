"""The commands of a job script in their order, each with what it is for. Pure.

Variables and the working directory are followed from command to command, as far as the text says
them. What a loop, a condition or a function sets is not known afterwards.
"""

from __future__ import annotations

import enum
import itertools
import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from bftrainer.cli.sbatch_script.command_table import (
    IN_SHELL,
    ONCE,
    PRINTS,
    REASON_OF,
    UTILITIES,
    is_hook,
    is_preparation,
    reason_of,
)
from bftrainer.cli.sbatch_script.launchers import LaunchLine, ProgramKind, read_launch
from bftrainer.cli.sbatch_script.shell_lines import ShellCommand, ShellScript, read_shell
from bftrainer.cli.sbatch_script.shell_values import (
    ASSIGNMENT,
    Value,
    all_expanded,
    as_written,
    assigned,
    names_in,
    unknown,
    unknown_parts,
)

MOST_INNER: Final = 3  # bash -c within bash -c
IN_TEXT: Final = -1  # the block of a loop or condition within bash -c
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*\Z")
_DECLARES: Final = frozenset({"declare", "typeset", "readonly", "local"})
_TESTS: Final = frozenset({"[", "[[", "test", "((", "command", "which", "type", "hash"})


class CommandPurpose(enum.Enum):
    """What a command of a job script is for."""

    ASSIGNMENT = enum.auto()
    EXPORT = enum.auto()
    PREPARATION = enum.auto()  # module, source, conda activate
    DIRECTORY = enum.auto()
    LAUNCH = enum.auto()
    TEST = enum.auto()
    OTHER = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedVariable:
    """NAME=VALUE of an export."""

    name: str
    text: str  # of the value, as the script writes it
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyStep:
    """One command."""

    command: ShellCommand
    kind: CommandPurpose
    words: tuple[str, ...] = ()  # with their values
    reason: str = ""  # why it is left out if nothing else needs it
    launch: LaunchLine | None = None
    exports: tuple[ExportedVariable, ...] = ()
    names: tuple[str, ...] = ()  # of the variables that it sets
    directory: str = ""  # in which it runs, absolute; with marks where it is not known

    @property
    def line(self) -> int:
        """Line of the job script, from 1."""
        return self.command.line


class BodyReader:
    """Follows the commands of a job script."""

    def __init__(self, variables: dict[str, Value], directory: str) -> None:
        self.variables = variables
        self.directory = directory
        self._pushed: list[str] = []  # directories to which popd goes back

    def read(self, script: ShellScript) -> list[BodyStep]:
        """Return the commands with what they are for."""
        steps: list[BodyStep] = []
        for command in script.commands:
            steps += self._steps(command, None, 0)
        return steps

    def _steps(
        self, command: ShellCommand, outer: LaunchLine | None, depth: int
    ) -> Iterator[BodyStep]:
        words = all_expanded(command.words, self.variables)
        if not words:
            yield self._assignments(command, command.assignments)
            return
        name = words[0]
        if name in _DECLARES and not any(word.startswith("-") and "x" in word for word in words):
            yield self._assignments(command, command.words[1:])
        elif name == "export" or name in _DECLARES:
            yield self._exports(command, words)
        elif name in ("cd", "pushd", "popd"):
            yield self._change(command, words)
        elif name in _TESTS and words[1:2] != () and not _is_command_run(words):
            yield self._plain(command, words, CommandPurpose.TEST, IN_SHELL)
        elif is_preparation(words) or (name == "eval" and is_hook(command.text)):
            yield self._plain(command, words, CommandPurpose.PREPARATION, "")
        else:
            self._forget(words)
            yield from self._launches(command, words, outer, depth)

    def _plain(
        self, command: ShellCommand, words: tuple[str, ...], kind: CommandPurpose, reason: str
    ) -> BodyStep:
        return BodyStep(
            command=command, kind=kind, words=words, reason=reason, directory=self.directory
        )

    def _forget(self, words: Sequence[str]) -> None:
        """Forget the values of variables that a command sets: a loop's, or those read."""
        if words[0] in ("for", "select", "read", "mapfile", "readarray", "getopts"):
            for word in words[1:]:
                if _IDENTIFIER.match(word):
                    self.variables[word] = unknown(f"${word}")

    def _assignments(self, command: ShellCommand, texts: Sequence[str]) -> BodyStep:
        names: list[str] = []
        for text in texts:
            name = text.partition("[")[0].partition("=")[0]
            value: Value = unknown(f"${name}")  # of a list, one element of which is set
            if pair := assigned(text, self.variables):
                name, value = pair
            if not _IDENTIFIER.match(name):
                continue
            if command.block:
                value = unknown(f"${name}")
            self.variables[name] = value
            names.append(name)
        step = self._plain(command, (), CommandPurpose.ASSIGNMENT, "")
        return replace(step, names=tuple(names))

    def _exports(self, command: ShellCommand, words: tuple[str, ...]) -> BodyStep:
        exports: list[ExportedVariable] = []
        for text in command.words[1:]:
            name, value = text, self.variables.get(text, unknown(f"${text}"))
            if pair := assigned(text, self.variables):
                name, value = pair
            if not _IDENTIFIER.match(name):
                continue
            if command.block:
                value = unknown(f"${name}")
            self.variables[name] = value
            value_text = f'"${name}"'
            match = ASSIGNMENT.match(text)
            if match is not None and not match["more"]:
                value_text = match["value"]
            if isinstance(value, str):
                exports.append(ExportedVariable(name=name, text=value_text, value=value))
        step = self._plain(command, words, CommandPurpose.EXPORT, IN_SHELL)
        names = tuple([variable.name for variable in exports])
        return replace(step, exports=tuple(exports), names=names)

    def _change(self, command: ShellCommand, words: tuple[str, ...]) -> BodyStep:
        targets = [word for word in words[1:] if not word.startswith("-")]
        target = self.variables.get("HOME")
        if targets:
            target = targets[0]
        elif words[1:] == ("-",):
            target = unknown("-")
        elif not isinstance(target, str):
            target = unknown("~")
        if words[:1] == ("pushd",):
            self._pushed.append(self.directory)
        elif words[:1] == ("popd",):
            target = self._pushed.pop() if self._pushed else unknown("popd")
        if command.block:
            target = unknown(as_written(target))
        self.directory = posixpath.normpath(posixpath.join(self.directory, target))
        self.variables["PWD"] = self.directory
        return self._plain(command, words, CommandPurpose.DIRECTORY, "")

    def _launches(
        self,
        command: ShellCommand,
        words: tuple[str, ...],
        outer: LaunchLine | None,
        depth: int,
    ) -> Iterator[BodyStep]:
        """Yield a command that may start a program, or the commands of ``bash -c``."""
        launch = read_launch(words)
        if words[0] == "eval":
            launch = LaunchLine(inner_text=" ".join(words[1:]))
        if outer is not None:
            launch.enter(outer)
        if launch.inner_text and depth < MOST_INNER:
            inner = read_shell(as_written(launch.inner_text))
            if not inner.fault:
                for member in inner.commands:
                    block = command.block
                    if member.block and not block:
                        block = IN_TEXT
                    placed = replace(member, line=command.line, text=command.text, block=block)
                    yield from self._steps(placed, launch, depth + 1)
                return
        for text in reversed(command.assignments):
            pair = assigned(text, self.variables)
            if pair is not None and isinstance(pair.value, str):
                launch.environment.insert(0, (pair.name, pair.value))
        yield self._program(command, words, launch)

    def _program(
        self, command: ShellCommand, words: tuple[str, ...], launch: LaunchLine
    ) -> BodyStep:
        program = launch.program.rpartition("/")[2]
        if launch.kind is ProgramKind.MODULE and launch.program in UTILITIES:
            return self._plain(command, words, CommandPurpose.OTHER, ONCE)
        if launch.kind is ProgramKind.SCRIPT and program == "setup.py":
            return self._plain(command, words, CommandPurpose.OTHER, ONCE)
        is_plain = launch.kind is ProgramKind.PROGRAM and (
            not launch.is_distributed or not program or program in REASON_OF
        )
        if is_plain:
            reason = reason_of(program or words[0])
            if any(text.startswith(">") for text in command.redirections):
                reason = ONCE
            if words[0] in ("for", "select", "case"):
                reason = IN_SHELL
            step = self._plain(command, words, CommandPurpose.OTHER, reason)
        else:
            reason = PRINTS if launch.kind is ProgramKind.CODE else ""
            step = self._plain(command, words, CommandPurpose.LAUNCH, reason)
        return replace(step, launch=launch)


def _is_command_run(words: Sequence[str]) -> bool:
    """Return whether ``command`` runs its words, and does not look for one."""
    name, first, *_ = words
    return name == "command" and not first.startswith("-")


def is_rank(text: str) -> bool:
    """Return whether a part of a value is a variable of Slurm, which differs among workers."""
    return any(name.startswith("SLURM_") for name in names_in(text))


def unknown_in(words: Sequence[str]) -> tuple[str, ...]:
    """Return the parts of values that only a run would say."""
    return tuple(itertools.chain.from_iterable(map(unknown_parts, words)))
