"""The translation of a job script: a command line of ``submit``, and an account of every line.

Plain data; ``translator`` makes it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

NAME_OF_PREAMBLE = "preamble.sh"  # where the command line has the preamble


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptLine:
    """What has become of one directive or command of a job script."""

    line: int  # of the job script, from 1
    text: str  # as it is written there
    became: str = ""  # options of submit, "preamble" or "script"; "": it is left out
    reason: str = ""  # why it, or a part of it, is left out, one sentence; "": nothing is


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """What keeps a job script from being translated."""

    line: int  # of the job script, from 1; 0: the whole script
    text: str  # as it is written there
    code: str  # BFT-NNNN
    cause: str  # one sentence
    next_step: str  # what to do about it


@dataclass(frozen=True, slots=True, kw_only=True)
class SbatchTranslation:
    """A job script for sbatch, as a command line of submit."""

    job_script: str  # path of the file
    options: tuple[str, ...]  # of submit, with their values
    # What follows the options: the script or module and its arguments; empty: it cannot be
    # translated.
    program: tuple[str, ...]
    preamble: str  # text of the shell file that --preamble names in the command; "": none is needed
    lines: tuple[ScriptLine, ...]  # in the order of the job script
    obstacles: tuple[Obstacle, ...]  # empty: it is translated
    remarks: tuple[str, ...]  # what was chosen, and what is still to be done, a sentence each

    @property
    def command(self) -> tuple[str, ...]:
        """The command line; empty: the job script cannot be translated."""
        if not self.program:
            return ()
        return ("bftrainer", "submit", *self.options, *self.program)


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationContext:
    """What a translation is told besides the text of the job script."""

    name: str  # of the job script, as Slurm would call its job
    directory: str  # absolute; of the submission
    environment: Mapping[str, str]
    # Of an option of submit and a value: None, there is no such option; why it does not take the
    # value, or "" if it does. Without a value the option is a flag.
    judge: Callable[[str, str | None], str | None]
    source_of: Callable[[str], str | None]  # text of a training script; None: not to be read
    arguments: Sequence[str] = ()  # of the job script
    has_array: bool = False  # --array is given on the command line


def report_lines(translation: SbatchTranslation) -> Iterator[tuple[str, bool]]:
    """Yield the lines that tell a translation, and whether each is to be copied as it is."""
    if translation.command:
        yield f"{translation.job_script} becomes:", False
        yield f"  {shlex.join(translation.command)}", True
    else:
        yield f"{translation.job_script} cannot be translated.", False
    if translation.preamble and translation.command:
        yield f"with these lines in {NAME_OF_PREAMBLE}, which every node reads first:", False
        for line in translation.preamble.splitlines():
            yield f"  {line}", True
    for remark in translation.remarks:
        yield f"* {remark}", False
    causes = {obstacle.cause for obstacle in translation.obstacles}
    left_out = [line for line in translation.lines if line.reason and line.reason not in causes]
    if left_out:
        yield "Left out, by the line of the job script:", False
    for omission in left_out:
        yield f"  {omission.line:>3}  {_first_line(omission.text)}", True
        yield f"       {omission.reason}", False


def _first_line(text: str) -> str:
    first, has_more, _ = text.partition("\n")
    if not has_more:
        return first
    return f"{first.rstrip().removesuffix(chr(92)).rstrip()} ..."
