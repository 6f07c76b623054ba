"""The environment of a trainer's workers: what ``--export`` sets, and the preamble. Pure.

A variable whose value the text says is exported by ``--export``. One that is made of others of the
node's environment (``PATH=$HOME/bin:$PATH``) is set in the preamble, beside the lines that load
modules and activate environments, in the order of the job script.
"""

from __future__ import annotations

import itertools
import posixpath
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bftrainer.cli.sbatch_script.command_table import (
    COMPUTED,
    DEVICES,
    OF_DEVICES,
    OF_PILOT,
    OF_STEPS,
    OF_WORKERS,
    RENDEZVOUS,
    activates_conda,
    brings_conda,
    runs_a_program,
)
from bftrainer.cli.sbatch_script.job_body import BodyStep, ExportedVariable
from bftrainer.cli.sbatch_script.shell_values import INDEX, names_in, quoted, unknown_parts

HOOK: Final = 'eval "$(conda shell.bash hook)"'
PREAMBLE: Final = "preamble"
_ON_INDEX: Final = "Each trainer of an array has its number in BFT_ARRAY_INDEX."
_ON_RANK: Final = "Slurm's {} says nothing of a trainer, whose size changes."
_ON_THREADS: Final = (
    "Slurm's {} says nothing of a trainer; workers compute with one thread unless --export"
    " OMP_NUM_THREADS=N says more."
)
_OF_OTHERS: Final = {
    **dict.fromkeys(OF_WORKERS, RENDEZVOUS),
    **dict.fromkeys(OF_DEVICES, DEVICES),
}
_NEEDLESS: Final = "Nothing that was translated uses it."
_GOVERNS: Final = frozenset({"set", "shopt"})  # they direct the lines behind them


@dataclass(frozen=True, slots=True, kw_only=True)
class PreambleLine:
    """A line of the preamble, and the step of the job script that it is from."""

    step: int  # place among the steps
    text: str
    is_tested: bool = False  # it may fail where it has nothing to do


@dataclass(slots=True, kw_only=True)
class WorkerEnvironment:
    """What is set for workers, collected step by step."""

    variables: dict[str, str] = field(default_factory=dict)  # of --export
    lines: list[PreambleLine] = field(default_factory=list)
    # Variables of the shell by name, with the lines that set them.
    assignments: dict[str, list[PreambleLine]] = field(default_factory=dict)
    has_hook: bool = False  # conda's function had to be brought in

    def export(self, place: int, step: BodyStep, own_names: frozenset[str]) -> tuple[str, str]:
        """Take an export; return what it became, and why what was left out of it is.

        Args:
            place: of the step.
            step: the export.
            own_names: variables that the job script sets itself.
        """
        became: list[str] = []
        reasons: list[str] = []
        for variable in step.exports:
            reason = why_not_exported(variable)
            if reason:
                reasons.append(reason)
            elif is_said(variable, own_names):
                self.variables[variable.name] = variable.value
                became.append(f"--export {shlex.quote(f'{variable.name}={variable.value}')}")
            else:
                self.variables.pop(variable.name, None)
                text = f"export {variable.name}={variable.text}"
                self.lines.append(PreambleLine(step=place, text=text))
                became.append(PREAMBLE)
        return ", ".join(dict.fromkeys(became)), " ".join(dict.fromkeys(reasons))

    def prepare(self, place: int, step: BodyStep, text: str, *, is_tested: bool = False) -> None:
        """Take a line for the preamble, as it is."""
        if activates_conda(step.words):
            self._bring_conda(place)
        self.lines.append(PreambleLine(step=place, text=text, is_tested=is_tested))

    def activate(self, place: int, name: str) -> None:
        """Activate a conda environment."""
        self._bring_conda(place)
        text = f"conda activate {quoted(name)}"
        self.lines.append(PreambleLine(step=place, text=text))

    def _bring_conda(self, place: int) -> None:
        """Bring conda's function into the shell, unless a line before may have done so."""
        if not any(brings_conda(line.text) for line in self.lines):
            self.lines.append(PreambleLine(step=place, text=HOOK))
            self.has_hook = True

    def place_sources(self, steps: Sequence[BodyStep], directory: str) -> None:
        """Write out the relative paths of what is sourced: a later line changes the directory."""
        for number, line in enumerate(self.lines):
            words = steps[line.step].words
            path = "".join(words[1:2])
            is_source = words[:1] in (("source",), (".",)) and line.text.startswith(words[:1])
            if not is_source or path.startswith("/") or unknown_parts(path) or "/" not in path:
                continue
            placed = (*words[:1], posixpath.join(directory, path), *words[2:])
            text = " ".join(map(quoted, placed))
            self.lines[number] = PreambleLine(step=line.step, text=text)

    def assign(self, name: str, place: int, text: str) -> None:
        """Take an assignment, in case that the preamble needs the variable."""
        self.assignments.setdefault(name, []).append(PreambleLine(step=place, text=text))

    def needed_assignments(self) -> dict[str, list[PreambleLine]]:
        """Return the assignments that lines of the preamble use, those of assignments included."""
        assignments: dict[str, list[PreambleLine]] = {}
        names = sorted(_names_of(self.lines))
        while names:
            name = names.pop()
            if name in assignments or name in self.variables or name not in self.assignments:
                continue
            assignments[name] = self.assignments[name]
            names += sorted(_names_of(assignments[name]))
        return assignments

    def preamble(self, entrance: Sequence[str]) -> str:
        """Return the text of the preamble; ``entrance``: the words that enter a container."""
        assignments = itertools.chain.from_iterable(self.needed_assignments().values())
        lines = sorted([*set(assignments), *self.lines], key=lambda line: line.step)
        is_governed = entrance or any(line.text.split()[0] not in _GOVERNS for line in lines)
        if not is_governed:
            return ""
        texts = [line.text for line in lines]
        if entrance:
            texts.append(f'exec {" ".join(map(quoted, entrance))} "$@"')
        elif lines and lines[-1].is_tested:
            texts.append("true")
        return "\n".join([*texts, ""])


def why_not_exported(variable: ExportedVariable) -> str:
    """Return why a variable is not handed on; "": it is."""
    if variable.name in _OF_OTHERS:
        return _OF_OTHERS[variable.name]
    if variable.name.startswith(OF_STEPS):
        return "It is for srun, which does not start the workers."
    if INDEX in variable.value:
        return _ON_INDEX
    parts = " ".join(unknown_parts(variable.value))
    if name := _changing_variable(parts):
        reason = _ON_THREADS if variable.name.endswith("_NUM_THREADS") else _ON_RANK
        return reason.format(name)
    return _why_computed(f"{variable.text} {parts}")


def why_not_prepared(text: str) -> str:
    """Return why a loop or condition that prepares the environment is left out; "": it is not."""
    if name := _changing_variable(text):
        return _ON_RANK.format(name)
    return _why_computed(text)


def _changing_variable(text: str) -> str:
    """Return a variable of Slurm that has another value for each job or worker; "": none."""
    for name in sorted(names_in(text) - OF_PILOT):
        if name.startswith("SLURM_"):
            return name
    return ""


def _why_computed(text: str) -> str:
    return COMPUTED if runs_a_program(text) else ""


def _names_of(lines: Sequence[PreambleLine]) -> set[str]:
    """Return the variables that lines of a preamble use."""
    return set().union(*(names_in(line.text) for line in lines))


def is_said(variable: ExportedVariable, own_names: frozenset[str]) -> bool:
    """Return whether the text of the script says the whole value."""
    if unknown_parts(variable.value) or any(sign < " " for sign in variable.value):
        return False
    is_own = names_in(variable.text) <= own_names
    return is_own and "~" not in variable.text and "pwd" not in variable.text


def pairs_of(variables: Mapping[str, str]) -> Iterator[str]:
    """Yield the options that export variables."""
    for name, value in variables.items():
        yield from ("--export", f"{name}={value}")


def why_unused(step: BodyStep) -> str:
    """Return why an assignment is left out."""
    if OF_WORKERS & set(step.names) or "scontrol show" in step.command.text:
        return RENDEZVOUS
    return _NEEDLESS
