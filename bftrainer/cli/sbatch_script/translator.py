"""Translates the text of a job script into a command line of ``bftrainer submit``. Pure.

Every directive and every command is accounted for: it becomes a part of the command line or of the
preamble, or is left out with a reason. A training that cannot be translated is an obstacle.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from bftrainer.cli.sbatch_script.command_table import AFTERWARDS, IN_SHELL, LOG, runs_a_program
from bftrainer.cli.sbatch_script.directive_options import DirectiveOptions, slurm_variables
from bftrainer.cli.sbatch_script.directives import (
    other_batch_system,
    read_directives,
    shell_of,
)
from bftrainer.cli.sbatch_script.job_body import (
    BodyReader,
    BodyStep,
    CommandPurpose,
    ExportedVariable,
    is_rank,
)
from bftrainer.cli.sbatch_script.launchers import LaunchLine, ProgramKind
from bftrainer.cli.sbatch_script.resources import size_choice
from bftrainer.cli.sbatch_script.shell_lines import ShellScript, read_shell
from bftrainer.cli.sbatch_script.shell_values import (
    INDEX,
    Value,
    as_written,
    names_in,
    unknown_parts,
)
from bftrainer.cli.sbatch_script.training_choice import (
    block_lines,
    chain_of,
    choose,
    launch_of,
)
from bftrainer.cli.sbatch_script.training_source import (
    foreign_framework,
    runtime_of,
    steps_left,
)
from bftrainer.cli.sbatch_script.translation import (
    NAME_OF_PREAMBLE,
    Obstacle,
    SbatchTranslation,
    ScriptLine,
    TranslationContext,
)
from bftrainer.cli.sbatch_script.worker_environment import (
    HOOK,
    PREAMBLE,
    WorkerEnvironment,
    is_said,
    pairs_of,
    why_not_exported,
    why_not_prepared,
    why_unused,
)

MOST_OBSTACLES: Final = 20  # that are told
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_PLACES = re.compile(r"\{(index|name)\}")
_SCRIPT: Final = "script"
_USING: Final = frozenset({CommandPurpose.LAUNCH, CommandPurpose.EXPORT, CommandPurpose.DIRECTORY})
_TRIVIAL: Final = frozenset({CommandPurpose.TEST, CommandPurpose.ASSIGNMENT})
_NOT_PREPARING: Final = "This part does not only prepare the environment: do it by hand before."
_OTHER_PROGRAM: Final = "It is another program: run it by hand before you submit, if it is needed."
_ONE_OF_SEVERAL: Final = "It is one of several programs that are started."
_FUNCTION: Final = "It is a function of the shell, which nothing that was translated calls."
_ON_INDEX: Final = (
    "Let the script choose by its index, {index} among its arguments, or search values in a study:"
    " 'bftrainer help studies'."
)
_ON_DIRECTORY: Final = "Write the path of the directory into the job script."
_ON_VARIABLE: Final = "Write its value into the job script."
# Variables of Slurm that the translation sets itself.
_OWN_NAMES: Final = frozenset({"SLURM_CPUS_PER_TASK", "SLURM_JOB_NAME"})
_INDEX_NAME: Final = "SLURM_ARRAY_TASK_ID"
_ON_VALUE: Final = "Write the value into the job script, or submit the script itself with it."


def translate(path: str, text: str, context: TranslationContext) -> SbatchTranslation:
    """Return the translation of a job script.

    Args:
        path: of its file, for people.
        text: what it holds.
        context: what else counts.
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    obstacle = _unreadable(text)
    if obstacle is not None:
        return SbatchTranslation(
            job_script=path,
            options=(),
            program=(),
            preamble="",
            lines=(),
            obstacles=(obstacle,),
            remarks=(),
        )
    return _Translator(path, text, context).translation()


def _unreadable(text: str) -> Obstacle | None:
    """Return the obstacle of a text that is no job script of a shell for Slurm."""
    cause, advice = "", "Name a shell script with #SBATCH lines."
    control = _CONTROL.search(text)
    shell, system = shell_of(text), other_batch_system(text)
    if control is not None:
        cause = f"The job script has the character {control[0]!r}, so it is no text."
    elif not text.strip():
        cause = "The job script is empty."
    elif re.match(r"(python|pypy)", shell):
        cause = "The job script is a Python script itself."
        advice = "Submit it as it is: bftrainer submit SCRIPT; its #SBATCH lines are not read."
    elif shell:
        cause = f"The job script is for {shell}, and only scripts of sh and bash are translated."
        advice = "Submit the Python script that it starts: bftrainer submit SCRIPT."
    elif system:
        cause = f"The job script has directives of {system} and none of Slurm."
        advice = "Submit the Python script that it starts: bftrainer submit SCRIPT."
    if not cause:
        return None
    return Obstacle(line=1, text="", code="BFT-1071", cause=cause, next_step=advice)


class _Translator:
    """Translates one job script."""

    def __init__(self, path: str, text: str, context: TranslationContext) -> None:
        self.path = path
        self.context = context
        self.directives = read_directives(text)
        self.options = DirectiveOptions(self.directives, context)
        self.script: ShellScript = read_shell(text)
        self.workers = WorkerEnvironment()
        self.lines: list[ScriptLine] = []
        self.obstacles: list[Obstacle] = []
        self.remarks: list[str] = []
        self.deferred: list[tuple[int, int, str]] = []  # blocks that set variables
        self.own_names: frozenset[str] = frozenset()
        self.preamble = ""

    def translation(self) -> SbatchTranslation:
        """Translate it."""
        has_array = self.options.has_array or self.context.has_array
        variables: dict[str, Value] = dict(self.context.environment)
        variables |= slurm_variables(self.options, self.context, has_array=has_array)
        for number, argument in enumerate(self.context.arguments, start=1):
            variables[str(number)] = argument
        start = self.options.directory or self.context.directory
        steps = BodyReader(variables, start).read(self.script)
        self.own_names = _OWN_NAMES.union(*(step.names for step in steps))
        if self.script.fault:
            cause = f"The script cannot be read on: {self.script.fault}."
            self._hinder(self.script.fault_line, "", "BFT-1072", cause, "Correct the job script.")
        places, obstacle = choose(steps, self.script)
        if obstacle is not None:
            self.obstacles.append(obstacle)
        for place in places[1:]:
            self._leave_out(steps[place], _ONE_OF_SEVERAL)
        options: tuple[str, ...] = ()
        program: tuple[str, ...] = ()
        self._account(steps, places)
        if places:
            training = steps[places[0]]
            options, program = self._command(training, launch_of(training))
        else:
            self.lines += self.options.lines(None)
        preamble = self.preamble
        if self.obstacles:
            options, program, preamble, self.remarks = (), (), "", []
        return SbatchTranslation(
            job_script=self.path,
            options=options,
            program=program,
            preamble=preamble,
            lines=tuple(sorted(map(self._hindered, self.lines), key=lambda line: line.line)),
            obstacles=tuple(self.obstacles),
            remarks=tuple(self.remarks),
        )

    def _hindered(self, line: ScriptLine) -> ScriptLine:
        """Return the account of a line, with the obstacle in place of another reason."""
        for obstacle in self.obstacles:
            if (obstacle.line, obstacle.text) == (line.line, line.text):
                return replace(line, became="", reason=obstacle.cause)
        return line

    def _hinder(self, line: int, text: str, code: str, cause: str, next_step: str) -> None:
        self.obstacles.append(
            Obstacle(line=line, text=text, code=code, cause=cause, next_step=next_step)
        )

    # What stands around the training.

    def _account(self, steps: Sequence[BodyStep], trainings: Sequence[int]) -> None:
        """Say of every command but the training, and those like it, what becomes of it.

        ``trainings``: the place of the training, and of those like it; empty: there is none.
        """
        end = trainings[0] if trainings else len(steps)
        chained: set[int] = set()
        for block, places in block_lines(steps):
            place = places[0]
            if end in places:
                self._lines_beside(steps, [p for p in places if p not in trainings])
            elif block:
                self._block(steps, places, is_before=place < end)
            elif place in trainings or place in chained:
                continue
            elif place < end and (chain := chain_of(steps, place, end)):
                self._chain(steps, chain)
                chained.update(chain)
            elif place < end:
                self._before(steps, place)
            else:
                self._after(steps, place, end)
        self._assigned(steps)

    def _lines_beside(self, steps: Sequence[BodyStep], places: Sequence[int]) -> None:
        for place in places:
            step = steps[place]
            reason = step.reason
            if not reason or reason == IN_SHELL:
                reason = "It is a part of what stands around the training."
            self._leave_out(step, reason)

    def _leave_out(self, step: BodyStep, reason: str) -> None:
        self.lines.append(ScriptLine(line=step.line, text=step.command.text, reason=reason))

    def _block(self, steps: Sequence[BodyStep], places: Sequence[int], *, is_before: bool) -> None:
        """Take a loop, condition or function whole into the preamble, or leave it out."""
        number = steps[places[0]].command.block
        members = [steps[place] for place in places]
        line, text = members[0].line, members[0].command.text
        if number <= len(self.script.blocks):
            block = self.script.blocks[number - 1]
            line, text = block.line, block.text
        kinds = {step.kind for step in members}
        prepares = kinds & {CommandPurpose.PREPARATION, CommandPurpose.EXPORT}
        is_harmless = all(
            step.kind is not CommandPurpose.OTHER or step.reason.startswith("It only")
            for step in members
        )
        hindrance = why_not_prepared(text)
        is_taken = is_before and is_harmless and not {CommandPurpose.LAUNCH} & kinds
        is_taken = is_taken and not hindrance
        names = list(itertools.chain.from_iterable(step.names for step in members))
        if is_before:
            for name in names:  # without a text it is known only as the job runs
                self.workers.assign(name, places[0], text if is_taken else "")
        if is_taken and names and not prepares:
            self.deferred.append((places[0], line, text))
            return
        if is_taken and prepares:
            self.workers.prepare(places[0], members[0], text, is_tested=True)
            self.lines.append(ScriptLine(line=line, text=text, became=PREAMBLE))
            return
        reason = AFTERWARDS
        if is_before:
            reason = _NOT_PREPARING
        if text.lstrip().startswith("function ") or re.match(r"[\w-]+\s*\(\s*\)", text):
            reason = _FUNCTION
        elif is_before and prepares and hindrance:
            reason = hindrance
        reasons = {step.reason for step in members if step.kind is not CommandPurpose.TEST}
        if len(reasons) == 1 and "" not in reasons and reason not in (_FUNCTION, hindrance):
            (reason,) = reasons
        self.lines.append(ScriptLine(line=line, text=text, reason=reason))

    def _before(self, steps: Sequence[BodyStep], place: int) -> None:
        """Say what becomes of a command before the training."""
        step = steps[place]
        text = step.command.text
        if step.kind is CommandPurpose.EXPORT:
            became, reason = self.workers.export(place, step, self.own_names)
            if not became and not reason:
                reason = "It sets no variable of the workers."
            self.lines.append(ScriptLine(line=step.line, text=text, became=became, reason=reason))
        elif step.kind is CommandPurpose.PREPARATION:
            self.workers.prepare(place, step, text)
            self.lines.append(ScriptLine(line=step.line, text=text, became=PREAMBLE))
        elif step.kind is CommandPurpose.DIRECTORY:
            self._directory(steps, place)
        elif step.kind is CommandPurpose.LAUNCH:
            self._leave_out(step, step.reason or _OTHER_PROGRAM)
        elif step.words[:1] == ("set",):
            self.workers.prepare(place, step, text)
            self.lines.append(ScriptLine(line=step.line, text=text, became=PREAMBLE))
        elif step.kind is CommandPurpose.ASSIGNMENT:
            for name in step.names:
                self.workers.assign(name, place, text)
        elif step.command.joint.startswith("|"):
            self._leave_out(step, LOG)
        else:
            self._leave_out(step, step.reason)

    def _chain(self, steps: Sequence[BodyStep], places: Sequence[int]) -> None:
        """Take commands that decide about each other into the preamble, as they stand."""
        members = [steps[place] for place in places]
        first, *followers = members
        text = first.command.text
        for step in followers:
            text = f"{text} {step.command.joint} {step.command.text}"
        preparing = [step for step in members if step.kind is CommandPurpose.PREPARATION]
        is_tested = first.kind is CommandPurpose.TEST
        self.workers.prepare(places[0], preparing[0], text, is_tested=is_tested)
        self.lines.append(ScriptLine(line=first.line, text=text, became=PREAMBLE))

    def _directory(self, steps: Sequence[BodyStep], place: int) -> None:
        step = steps[place]
        text = step.command.text
        if unknown_parts(step.directory):
            cause = f"The working directory {as_written(step.directory)} is known on a node only."
            self._hinder(step.line, text, "BFT-1072", cause, _ON_DIRECTORY)
        directory_before = self.context.directory
        if place and steps[place - 1].directory:
            directory_before = steps[place - 1].directory
        self.workers.place_sources(steps, directory_before)
        became = "--chdir"
        if step.directory == self.context.directory:
            became = "the working directory"
        self.lines.append(ScriptLine(line=step.line, text=text, became=became))

    def _after(self, steps: Sequence[BodyStep], place: int, training: int) -> None:
        """Say what becomes of a command behind the training."""
        step = steps[place]
        reason = AFTERWARDS
        if step.command.joint.startswith("|") and place == training + 1:
            reason = LOG
        elif step.kind is CommandPurpose.OTHER and step.reason.startswith("It only"):
            reason = step.reason
        elif step.kind is CommandPurpose.LAUNCH:
            reason = _OTHER_PROGRAM.replace("before you submit", "afterwards")
        elif step.kind in _TRIVIAL:
            reason = step.reason or AFTERWARDS
        self._leave_out(step, reason)

    def _assigned(self, steps: Sequence[BodyStep]) -> None:
        """Say what has become of the assignments before the training."""
        assignments = self.workers.needed_assignments()
        needed_places = set[int]()
        for name, lines in assignments.items():
            for line in lines:
                needed_places.add(line.step)
                if not line.text or runs_a_program(line.text):
                    cause = f"The environment needs {name}, which is set as the job runs."
                    self._hinder(steps[line.step].line, "", "BFT-1072", cause, _ON_VARIABLE)
        for place, first_line, text in self.deferred:
            became, reason = PREAMBLE, ""
            if place not in needed_places:
                became, reason = "", why_unused(steps[place])
            self.lines.append(ScriptLine(line=first_line, text=text, became=became, reason=reason))
        accounts = {(line.line, line.text) for line in self.lines}
        last_uses = _last_uses(steps)
        for place, step in enumerate(steps):
            if step.kind is not CommandPurpose.ASSIGNMENT or step.command.block:
                continue
            if (step.line, step.command.text) in accounts:
                continue
            became, reason = "", ""
            if place in needed_places:
                became = PREAMBLE
            elif any(last_uses.get(name, -1) > place for name in step.names):
                became = "its value"
            else:
                reason = why_unused(step)
            self.lines.append(
                ScriptLine(line=step.line, text=step.command.text, became=became, reason=reason)
            )

    # The training.

    def _command(
        self, step: BodyStep, launch: LaunchLine
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return options and program of the command line, and account for the training's line."""
        if launch.fault:
            self._hinder(
                step.line, step.command.text, launch.fault_code, launch.fault, launch.next_step
            )
        # Without an image of its own the training runs in that of the whole job script.
        launch.image = launch.image or self.options.image
        directory = posixpath.normpath(posixpath.join(step.directory, launch.chdir))
        is_module = launch.kind is ProgramKind.MODULE
        script = launch.program
        if not is_module:
            script = self._near(posixpath.join(directory, script))
        source = self._source(launch, directory, is_module=is_module)
        runtime = runtime_of(source, tuple(launch.launchers))
        if framework := foreign_framework(source):
            self._hinder(
                step.line,
                step.command.text,
                "BFT-1075",
                f"{script} trains with {framework}, which bftrainer cannot make elastic.",
                "If it can checkpoint when asked, submit it with --runtime command: 'bftrainer help"
                " train-command'.",
            )
        self._judge_program(step, script)
        arguments = tuple(self._arguments(step, launch.args, is_told=not self.obstacles))
        environment = self._launch_environment(step, launch)
        if launch.activation:
            self.workers.activate(0, launch.activation)
        self.preamble = preamble = self.workers.preamble(launch.container)
        where = self._where(directory, launch)
        sizes = self.options.sizes(size_choice(self.options.size, launch, runtime))
        words = [*self.options.words(), *sizes]
        if runtime != "torch":
            words += ("--runtime", runtime)
        words += where
        if launch.image is not None:
            words += launch.image.options
        if self.options.exports_all:
            words += ("--export", "ALL")
        words += pairs_of(self.workers.variables | environment)
        if preamble:
            words += ("--preamble", NAME_OF_PREAMBLE)
        if is_module:
            words.append("-m")
        self.lines += self.options.lines(sizes)
        self._training_line(step, launch)
        self._remark(
            script,
            source,
            runtime,
            launch,
            has_preamble=bool(preamble),
        )
        program = (as_written(script), *arguments)
        if script.startswith("-"):
            program = ("--", *program)
        return tuple(words), program

    def _source(self, launch: LaunchLine, directory: str, *, is_module: bool) -> str | None:
        path = launch.program
        if is_module:
            path = f"{path.replace('.', '/')}.py"
        path = posixpath.join(directory, path)
        if unknown_parts(path):
            return None
        return self.context.source_of(path)

    def _near(self, path: str) -> str:
        """Return a path from the directory of the submission on, if it is below that."""
        base = f"{self.context.directory.rstrip('/')}/"
        return posixpath.normpath(path).removeprefix(base)

    def _judge_program(self, step: BodyStep, script: str) -> None:
        if (unknown_parts(script) or INDEX in script) and not self.obstacles:
            cause = f"Which program {as_written(script)} is shows on a node only."
            self._hinder(step.line, step.command.text, "BFT-1072", cause, _ON_VALUE)

    def _where(self, directory: str, launch: LaunchLine) -> list[str]:
        """Return the options for the working directory and the Python."""
        words: list[str] = []
        if directory != self.context.directory:
            words += ("--chdir", as_written(self._near(directory)))
        if launch.container:
            return words
        if launch.interpreter:
            path = posixpath.join(directory, launch.interpreter)
            words += ("--interpreter", as_written(self._near(path)))
        elif launch.venv:
            path = posixpath.join(directory, launch.venv)
            words += ("--venv", as_written(self._near(path)))
        return words

    def _arguments(self, step: BodyStep, words: Sequence[str], *, is_told: bool) -> Iterator[str]:
        """Yield the script's arguments; one that only a run would say is an obstacle to be told."""
        has_array = self.options.has_array or self.context.has_array
        for word in words:
            parts = unknown_parts(word)
            if parts and is_told and len(self.obstacles) < MOST_OBSTACLES:
                self._hinder_argument(step, word, parts)
            if has_array:
                yield _PLACES.sub(r"{{\1}}", word).replace(INDEX, "{index}")
            else:
                yield as_written(word)

    def _hinder_argument(self, step: BodyStep, word: str, parts: Sequence[str]) -> None:
        argument, advice = f"The argument {as_written(word)}", _ON_VALUE
        variable = _VARIABLE.fullmatch(parts[0])
        if any(_INDEX_NAME in names_in(part) for part in parts):
            cause, advice = f"{argument} is looked up by the index.", _ON_INDEX
        elif any(map(is_rank, parts)):
            cause = (
                f"{argument} is a variable of Slurm, which says nothing of a trainer, whose size"
                " changes."
            )
        elif variable is not None and variable[1].isdigit():
            cause = f"{argument} is one of the job script, and is not given."
            advice = "Write the arguments of the job script behind it, as for sbatch."
        elif variable is not None and not self.own_names.intersection(variable.groups()):
            cause = (
                f"The variable of the argument {as_written(word)} is set neither in the job script"
                " nor here."
            )
        else:
            cause = f"{argument} is computed when the job runs."
        self._hinder(step.line, step.command.text, "BFT-1072", cause, advice)

    def _launch_environment(self, step: BodyStep, launch: LaunchLine) -> dict[str, str]:
        """Return the variables that stand before the launched program."""
        variables: dict[str, str] = {}
        for name, value in launch.environment:
            variable = ExportedVariable(name=name, text="", value=value)
            reason = why_not_exported(variable)
            if not reason and not unknown_parts(value) and is_said(variable, frozenset()):
                variables[name] = value
            else:
                reason = reason or "Its value is computed when the job runs."
                text = f"{name}={as_written(value)}"
                self.lines.append(ScriptLine(line=step.line, text=text, reason=reason))
        return variables

    def _training_line(self, step: BodyStep, launch: LaunchLine) -> None:
        self.lines.append(ScriptLine(line=step.line, text=step.command.text, became=_SCRIPT))
        words_of: dict[str, list[str]] = {name: [name] for name in launch.launchers}
        for text in launch.omissions:
            name, _, option = text.partition(" ")
            words_of.setdefault(name, [name]).append(option)
        if words_of:
            self.lines.append(
                ScriptLine(
                    line=step.line,
                    text=", ".join(" ".join(words).strip() for words in words_of.values()),
                    reason="The daemon has the workers started, one for each GPU or node.",
                )
            )
        for redirection in step.command.redirections:
            self.lines.append(ScriptLine(line=step.line, text=redirection, reason=LOG))

    def _remark(
        self,
        script: str,
        source: str | None,
        runtime: str,
        launch: LaunchLine,
        *,
        has_preamble: bool,
    ) -> None:
        """Say what was chosen, and what is still to be done."""
        self.remarks += self.options.remarks
        if self.workers.has_hook:
            self.remarks.append(f"{HOOK} is added; for it conda must be in PATH.")
        if launch.image is not None and launch.image.is_fetched:
            self.remarks.append(
                "Each node fetches this image by itself; a file is there sooner: 'bftrainer help"
                " containers'."
            )
        if launch.container:
            self.remarks.append(
                "The container must see bftrainer, the script and the checkpoint directory at the"
                " same paths as the host: 'bftrainer help cli'."
            )
        has_python = launch.interpreter or launch.venv or launch.image is not None
        if not (has_preamble or has_python):
            self.remarks.append(
                "The job script activates no environment: the trainer has the Python of the one"
                " that is active now, else bftrainer's own. --venv DIR names another."
            )
        if self.options.has_array and "SLURM_ARRAY" in (source or ""):
            self.remarks.append(
                f"{as_written(script)} reads SLURM_ARRAY_TASK_ID: BFT_ARRAY_INDEX takes its place."
            )
        if next_step := steps_left(as_written(script), source, runtime):
            self.remarks.append(next_step)


def _last_uses(steps: Sequence[BodyStep]) -> dict[str, int]:
    """Return the last place at which each variable is used by a launch, an export or ``cd``."""
    uses: dict[str, int] = {}
    for place, step in enumerate(steps):
        if step.kind in _USING:
            uses |= dict.fromkeys(names_in(step.command.text), place)
    return uses
