"""The command of a job script that starts its training, among all that start something. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from bftrainer.cli.sbatch_script.job_body import IN_TEXT, BodyStep, CommandPurpose
from bftrainer.cli.sbatch_script.launchers import LaunchLine, ProgramKind
from bftrainer.cli.sbatch_script.shell_lines import ShellScript
from bftrainer.cli.sbatch_script.shell_values import as_written
from bftrainer.cli.sbatch_script.translation import Obstacle

_IS_TRAINING = re.compile(r"train|fit|finetune|fine_tune|sft|pretrain", re.IGNORECASE)
# Keyword of a compound command that is no loop -> where its commands stand.
_PLACES: Final = {"function": "in a function", "(": "in a shell of its own", "{": "in braces"}
_LOOPS: Final = frozenset({"for", "while", "until", "select"})
_ON_LOOP: Final = (
    "Submit one trainer for each value: --array 0-N with {index} among the script's arguments, or a"
    " study ('bftrainer help studies')."
)
_ON_SEVERAL: Final = (
    "Write a job script for each of them, or submit each by 'bftrainer submit SCRIPT'."
)
_ON_PROGRAM: Final = (
    "If it writes a checkpoint when asked and goes on from it, submit it with --runtime command:"
    " 'bftrainer help train-command'."
)
_CHAINED: Final = frozenset({CommandPurpose.PREPARATION, CommandPurpose.TEST})
_SUBMITTERS: Final = ("sbatch", "qsub", "bsub")
_SHELLS: Final = ("bash", "sh", "dash", "zsh")
_ON_NOTHING: Final = "Name a job script that starts a Python script, or submit that script itself."


def launch_of(step: BodyStep) -> LaunchLine:
    """Return what a step launches."""
    if step.launch is None:
        raise ValueError("this step launches nothing")
    return step.launch


def choose(steps: Sequence[BodyStep], script: ShellScript) -> tuple[list[int], Obstacle | None]:
    """Return the places of the steps that may start the training, most often one.

    The obstacle says why none can be translated; None: it can.
    """
    places = [place for place, step in enumerate(steps) if step.kind is CommandPurpose.LAUNCH]
    trainings = [place for place in places if _is_script(launch_of(steps[place]))]
    if not trainings:
        return [], _no_training(steps, places)
    trainings = _most_likely(steps, trainings)
    first = steps[trainings[0]]
    blocks = {steps[place].command.block for place in trainings}
    if len(trainings) == 1 or (first.command.block and len(blocks) == 1):
        return trainings, in_block(first, script)
    lines = " and ".join(str(steps[place].line) for place in trainings[:4])
    return trainings, _obstacle(
        first, "BFT-1072", f"Lines {lines} each start a program.", _ON_SEVERAL
    )


def _is_script(launch: LaunchLine) -> bool:
    return launch.kind in (ProgramKind.SCRIPT, ProgramKind.MODULE) and bool(launch.program)


def _most_likely(steps: Sequence[BodyStep], places: Sequence[int]) -> list[int]:
    """Return the programs that a launcher starts, else those that are named like a training."""
    for is_likely in (_is_distributed, _is_named_for_training):
        likely_places = [place for place in places if is_likely(launch_of(steps[place]))]
        if likely_places:
            places = likely_places
    return list(places)


def _is_distributed(launch: LaunchLine) -> bool:
    return launch.is_distributed


def _is_named_for_training(launch: LaunchLine) -> bool:
    return _IS_TRAINING.search(launch.program) is not None


def in_block(step: BodyStep, script: ShellScript) -> Obstacle | None:
    """Return the obstacle of a training in a loop or under a condition; None: it is in none."""
    if step.command.joint == "||":
        return _obstacle(
            step, "BFT-1072", "This starts only if the command before it fails.", _ON_SEVERAL
        )
    block = step.command.block
    if not block:
        return None
    keyword = "if"
    if block != IN_TEXT and block <= len(script.blocks):
        keyword = script.blocks[block - 1].keyword
    if keyword in _LOOPS:
        return _obstacle(step, "BFT-1072", "The training is started in a loop.", _ON_LOOP)
    where = _PLACES.get(keyword, "under a condition")
    return _obstacle(
        step,
        "BFT-1072",
        f"The training is started {where}.",
        "Write its command line on a line by itself in the job script.",
    )


def _no_training(steps: Sequence[BodyStep], places: Sequence[int]) -> Obstacle:
    """Return the obstacle of a job script that starts no Python script."""
    for step in steps:
        words = step.words
        if words and words[0].rpartition("/")[2] in _SUBMITTERS:
            return _obstacle(
                step,
                "BFT-1073",
                "The script submits other jobs and trains nothing itself.",
                "Give --from-sbatch the job script that it submits; options go into its lines.",
            )
        if launches_shell_script(step):
            shell_script = as_written(_program_of(step))
            return _obstacle(
                step,
                "BFT-1073",
                f"The training is started in the shell script {shell_script}.",
                "Write its command line into the job script, or submit the Python script.",
            )
    for place in places:
        step, launch = steps[place], launch_of(steps[place])
        if launch.kind is ProgramKind.CODE:
            return _obstacle(
                step,
                "BFT-1073",
                "The Python program stands in the job script, and is in no file of its own.",
                "Put it into a file, and submit that.",
            )
        program = as_written(launch.program)
        return _obstacle(
            step, "BFT-1073", f"The job starts {program}, which is no Python script.", _ON_PROGRAM
        )
    return Obstacle(
        line=0,
        text="",
        code="BFT-1073",
        cause="The job script starts no Python script.",
        next_step=_ON_NOTHING,
    )


def _program_of(step: BodyStep) -> str:
    launch = step.launch
    if launch is None:
        return ""
    if launch.program.rpartition("/")[2] not in _SHELLS:
        return launch.program
    return next((word for word in launch.args if not word.startswith("-")), "")


def launches_shell_script(step: BodyStep) -> bool:
    """Return whether a command runs a shell script."""
    return _program_of(step).endswith((".sh", ".bash"))


def _obstacle(step: BodyStep, code: str, cause: str, next_step: str) -> Obstacle:
    return Obstacle(
        line=step.line, text=step.command.text, code=code, cause=cause, next_step=next_step
    )


def block_lines(steps: Sequence[BodyStep]) -> Iterator[tuple[int, list[int]]]:
    """Yield the numbers of blocks with the places of their steps, and each other step alone."""
    places: list[int] = []
    for place, step in enumerate(steps):
        if places and step.command.block != steps[places[0]].command.block:
            yield steps[places[0]].command.block, places
            places = []
        if step.command.block > 0:
            places.append(place)
        else:
            yield 0, [place]
    if places:
        yield steps[places[0]].command.block, places


def chain_of(steps: Sequence[BodyStep], place: int, end: int) -> list[int]:
    """Return the places of commands that decide about each other and prepare the environment.

    As in ``[ -f x ] && source x`` and ``module load x || exit 1``; empty: this begins none.
    """
    places = [place]
    for following in range(place + 1, end):
        step = steps[following]
        if step.command.block or step.command.joint not in ("&&", "||"):
            break
        places.append(following)
    members = [steps[member] for member in places]
    prepares = any(step.kind is CommandPurpose.PREPARATION for step in members)
    is_whole = all(step.kind in _CHAINED or step.reason.startswith("It only") for step in members)
    is_chain = len(places) > 1 and prepares and is_whole
    return places if is_chain else []
