"""``bftrainer submit --from-sbatch JOB.SH``: a job script for sbatch, translated and submitted.

``sbatch_script`` translates the text; here it is read, told and, after a question, submitted by
the command line that it has become.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from bftrainer.api.admission import check_account
from bftrainer.api.documents import document
from bftrainer.cli.going_on import ContinuingCommand
from bftrainer.cli.options import option
from bftrainer.cli.output import print_as_it_is, print_json, print_lines
from bftrainer.ground.regular_file import read_file
from bftrainer.model.errors import BftError, ExitCode, UsageError

if TYPE_CHECKING:
    from bftrainer.cli.sbatch_script.translation import Obstacle, SbatchTranslation

_JOB_SCRIPT: Final = "job_script"  # the parameter
FROM_SBATCH: Final = (
    option(
        "--from-sbatch FILE",
        "Submit what this job script for sbatch trains, in place of SCRIPT: say what becomes of"
        " its lines, and ask.",
        name=_JOB_SCRIPT,
        is_eager=True,  # whether SCRIPT may be missing depends on it
    ),
    option("--yes", "With --from-sbatch: submit without asking.", name="is_agreed"),
)
DOCUMENT: Final = "from-sbatch"
MAX_BYTES: Final = 256 * 1024  # of a job script
MAX_SOURCE_BYTES: Final = 16 << 20  # of a training script
_WORDS = "bftrainer.cli.job_script.words"  # in the context: what was typed
_TOLD = "bftrainer.cli.job_script.told"  # likewise: the document of the translation
_OWN = ("--from-sbatch", "--yes")
_SIZES: Final = frozenset({"-N", "--nodes", "-G", "--gpus", "--gpus-per-node"})


class ScriptArgument(click.Argument):
    """The argument SCRIPT, which is not needed where a job script is given."""

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Return the script; None: there is a job script in its place."""
        if isinstance(ctx.params.get(_JOB_SCRIPT), str) and self.value_is_missing(value):
            return None
        return super().process_value(ctx, value)


class JobScriptCommand(ContinuingCommand):
    """A command that takes a job script in place of a training script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep what was typed: it is handed on to the command line of the translation."""
        ctx.meta[_WORDS] = tuple(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run it: with the command line of a translation, or as it is typed."""
        path, script = ctx.params[_JOB_SCRIPT], ctx.params["script"]
        if path is not None:
            arguments = ctx.params["args"]
            if script is not None:  # in place of SCRIPT is the job script's first argument
                arguments = (script, *arguments)
            return submit_job_script(ctx, path, arguments)
        if ctx.params["is_agreed"]:
            raise click.UsageError("--yes belongs to --from-sbatch: nothing else is asked.", ctx)
        return super().invoke(ctx)


class UntranslatableError(UsageError):
    """A job script cannot be translated, for one or several reasons; the first has the code."""

    def __init__(self, path: str, translation: SbatchTranslation) -> None:
        first = translation.obstacles[0]
        self._lines = [_placed(path, obstacle) for obstacle in translation.obstacles]
        super().__init__(first.code, self._lines[0], first.next_step)

    def cause_lines(self) -> Sequence[str]:
        """Return a line for each reason."""
        return tuple(self._lines)


def _placed(path: str, obstacle: Obstacle) -> str:
    place = path
    if obstacle.line:
        place += f":{obstacle.line}"
    return f"{place}: {obstacle.cause}"


def typed_options(ctx: click.Context) -> tuple[str, ...]:
    """Return the options typed beside --from-sbatch; what follows them is the job script's."""
    words = list(ctx.meta.get(_WORDS, ()))
    script, args = ctx.params.get("script"), ctx.params.get("args") or ()
    n_arguments = len(args) + (script is not None)
    if n_arguments:
        words = words[:-n_arguments]
    options: list[str] = []
    while words:
        word = words.pop(0)
        if word == "--":
            break
        if word == "--from-sbatch":
            words = words[1:]
        elif not word.startswith(_OWN):
            options.append(word)
    return tuple(options)


def submit_job_script(ctx: click.Context, path: str, arguments: Sequence[str]) -> int:
    """Translate a job script, say what it becomes, and submit that.

    Args:
        ctx: of ``submit``.
        path: of the job script.
        arguments: of the job script.

    Raises:
        UsageError: BFT-1071 to BFT-1073 and BFT-1075, it cannot be translated; BFT-1074, nobody
            agreed to submit it.
    """
    from bftrainer.cli.sbatch_script.translator import translate  # noqa: PLC0415 - for this alone

    params = ctx.params
    typed = typed_options(ctx)
    text = read_job_script(path)
    translation = translate(path, text, context_of(ctx, path, arguments, typed))
    report = document(DOCUMENT, translation)
    is_json, is_dry = bool(params["as_json"]), bool(params["dry_run"])
    may_submit = is_dry or bool(params["is_agreed"])
    if not is_json:
        tell(translation, is_aside=bool(params["parsable"]))
    elif translation.obstacles or not may_submit:
        print_json(report)
    if translation.obstacles:
        raise UntranslatableError(path, translation)
    if not may_submit and not is_json and sys.stdin.isatty():
        if not click.confirm("Submit it?", err=True):
            print_lines("Nothing was submitted.", err=True)
            return ExitCode.INTERNAL
        may_submit = True
    if not may_submit:
        raise UsageError(
            "BFT-1074",
            "Nothing was submitted: there is no terminal on which to ask.",
            "Add --yes to submit it, or --dry-run to check it without submitting.",
        )
    with _preamble_file(translation) as preamble:
        words = command_words(translation, typed, preamble)
        command = ctx.command
        with command.make_context(ctx.info_name, list(words), parent=ctx.parent) as inner:
            if is_json:
                inner.meta[_TOLD] = report
            outcome: int = command.invoke(inner)
    return outcome


def told_translation(ctx: click.Context) -> dict[str, Any]:
    """Return what a document of ``--json`` says of the translation; {}: there was none."""
    if _TOLD not in ctx.meta:
        return {}
    return {"from_sbatch": ctx.meta[_TOLD]}


def read_job_script(path: str) -> str:
    """Return the text of a job script.

    Raises:
        UsageError: BFT-1071.
    """
    advice = "Give the path of a job script as you give it to sbatch."
    try:
        return read_file(path, MAX_BYTES, is_typed=True).decode()
    except UnicodeDecodeError as problem:
        raise UsageError("BFT-1071", f"The job script {path} is not UTF-8.", advice) from problem
    except (OSError, ValueError) as problem:  # a NUL in the path
        reason = getattr(problem, "strerror", None) or problem
        cause = f"The job script {path} cannot be read: {reason}."
        raise UsageError("BFT-1071", cause, advice) from problem


def context_of(
    ctx: click.Context, path: str, arguments: Sequence[str], typed: Sequence[str]
) -> Any:
    """Return what a translation is told besides the text."""
    from bftrainer.cli.sbatch_script.translation import TranslationContext  # noqa: PLC0415 - likewise

    options = OptionJudge(ctx.command)
    return TranslationContext(
        name=Path(path).name,
        directory=str(Path.cwd()),
        environment=dict(os.environ),
        judge=options.fault_of,
        source_of=_source_of,
        arguments=tuple(arguments),
        has_array=any(word.partition("=")[0] == "--array" for word in typed),
    )


class OptionJudge:
    """Says whether a command has an option, and whether it takes a value."""

    def __init__(self, command: click.Command) -> None:
        self._context = click.Context(command)
        self._options: dict[str, click.Option] = {}
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                self._options |= dict.fromkeys(parameter.opts, parameter)

    def fault_of(self, flag: str, value: str | None) -> str | None:
        """Return why an option does not take a value; "": it does; None: there is no such one.

        Args:
            flag: the option.
            value: None: the option is a flag without a value.
        """
        parameter = self._options.get(flag)
        if parameter is None or parameter.is_flag is not (value is None):
            return None
        if value is None:
            return ""
        values = (value,) if parameter.multiple else value
        try:
            parameter.type_cast_value(self._context, values)
            if flag == "--account":
                check_account(value)
        except click.UsageError as problem:
            return problem.format_message()
        except BftError as problem:
            return problem.cause
        return ""


def _source_of(path: str) -> str | None:
    """Return the text of a training script; None: it cannot be read."""
    try:
        return read_file(path, MAX_SOURCE_BYTES, is_typed=True).decode(errors="replace")
    except (OSError, ValueError):
        return None


@contextlib.contextmanager
def _preamble_file(translation: SbatchTranslation) -> Iterator[str]:
    """Have the preamble in a file while it is read; "": there is none."""
    if not translation.preamble:
        yield ""
        return
    with tempfile.NamedTemporaryFile("w", prefix="bft-preamble-", suffix=".sh") as file:
        file.write(translation.preamble)
        file.flush()
        yield file.name


def command_words(
    translation: SbatchTranslation, typed: Sequence[str], preamble: str
) -> tuple[str, ...]:
    """Return the words of the command line: what was typed counts more than the job script."""
    options = list(translation.options)
    if preamble:
        at = options.index("--preamble")
        options[at + 1] = preamble
    names = {word.partition("=")[0] for word in typed}
    if names & _SIZES:
        options = _without(options, _SIZES | {"--gres", "--workers-per-node"})
    return (*options, *typed, *translation.program)


def _without(options: Sequence[str], names: frozenset[str]) -> list[str]:
    """Return options but for those of these names, which have a value each."""
    remaining: list[str] = []
    is_value = False  # of an option that is left out
    for word in options:
        is_name = not is_value and word in names
        if not is_value and not is_name:
            remaining.append(word)
        is_value = is_name
    return remaining


def tell(translation: SbatchTranslation, *, is_aside: bool) -> None:
    """Print what a job script becomes; ``is_aside``: to standard error."""
    from bftrainer.cli.sbatch_script.translation import report_lines  # noqa: PLC0415 - likewise

    for line, is_copied in report_lines(translation):
        if is_copied and not is_aside:
            print_as_it_is(line)
        else:
            print_lines(line, err=is_aside)
