"""Turns mistakes on the command line into errors that name what was meant; loaded for them alone.

``habits`` has the words of other programs; here they become a cause and the command to type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import click

from bftrainer.cli import habits
from bftrainer.cli.sbatch_habits import IGNORED, refusal_of
from bftrainer.cli.submit import submit
from bftrainer.cli.verb_plugins import is_out_of_date
from bftrainer.model.errors import UsageError

_OF_HOST = ("--host", "--host-program")  # options before the verb
_IDS = "ID..."  # not required where options choose trainers, too
_NONE_ADDED = (
    "No installed package adds verbs (entry points bftrainer.verbs): the installation is older than"
    " this code."
)
_INSTALL = "Install bftrainer again (in a clone: pip install -e .)."
MOST_CHOICES = 4  # of an option, which a next step names
# What a judge finds: a hint for the cause ("": none) and what to type ("": see the help).
_Advice = Iterator[tuple[str, str]]


class Meant(click.UsageError):
    """A mistake of which it is known what was meant."""

    def __init__(self, cause: str, ctx: click.Context, next_step: str) -> None:
        super().__init__(cause, ctx)
        self.next_step = next_step


def unknown_verb(
    group: click.Group,
    ctx: click.Context,
    word: str,
    rest: Sequence[str],
    verbs: Mapping[str, tuple[str, str]],
) -> click.UsageError:
    """Return the error of a word that is no verb of a group.

    Args:
        group: whose verbs they are.
        ctx: of the group.
        word: what was typed.
        rest: what followed.
        verbs: verb -> (where it is, what it does).
    """
    cause = f"No such command {word[:40]!r}."
    asking = click.get_current_context(silent=True)
    is_of_help = asking is not None and asking.info_name == "help"  # about a verb, not for it
    if page := habits.page_meant(word, () if is_of_help else rest):
        step = f"bftrainer help {page}"
        return Meant(f"{cause} '{step}' is about that.", ctx, step)
    hint, step = habits.in_group(ctx.info_name or "", word)
    if not hint and is_out_of_date():
        hint, step = _NONE_ADDED, _INSTALL
    if hint:
        return Meant(f"{cause} {hint}", ctx, step)
    typed_verb, further = habits.without_prefix(word, rest)
    verb, path = habits.verb_meant(typed_verb, verbs), ctx.command_path
    if not verb:
        return click.UsageError(cause, ctx)
    if is_of_help:
        cause += f" Did you mean '{path} help {verb}'?"
        return Meant(cause, ctx, f"{path} help {verb}")
    _, explanation = verbs[verb]
    cause += f" Did you mean '{path} {verb}'? {explanation}"
    if verb == "submit":
        script, why = habits.program_meant(further)
        if why:
            script = script or "SCRIPT"
            step = f"{path} submit {script}; 'bftrainer help train-command' is of others."
            return Meant(f"{cause} {why}", ctx, step)
    further = further or _placeholders(group.get_command(ctx, verb))
    steps = [habits.corrected(path, verb, further)]
    if not rest:  # without a trainer's name it may be a daemon that is meant
        daemon_verb, effect = habits.daemon_verb_meant(word)
        if daemon_verb:
            cause += f" Or '{path} {daemon_verb}'? {effect}"
            steps.append(f"{path} {daemon_verb}")
        if service := habits.service_meant(word):
            steps.append(f"for the site: {service}")
    return Meant(cause, ctx, ", or ".join(steps))


def _placeholders(command: click.Command | None) -> list[str]:
    """Return words for what a command needs."""
    if isinstance(command, click.Group):
        return ["-h"]
    return _needed(command)


def _needed(command: click.Command | None) -> list[str]:
    """Return words for the arguments that a command needs, in their order."""
    if command is None:
        return []
    arguments = [param for param in command.params if isinstance(param, click.Argument)]
    return [_metavar(param) for param in arguments if param.required or param.metavar == _IDS]


def _metavar(argument: click.Argument) -> str:
    return argument.metavar or (argument.name or "").upper()


def usage_error(problem: click.ClickException) -> UsageError:
    """Return a mistake that click has found as an error with a code and a next step."""
    path = "bftrainer"
    if isinstance(problem, click.UsageError) and problem.ctx is not None:
        path = problem.ctx.command_path
    cause = problem.format_message()
    if not cause.endswith((".", "?", "!", ".)", "?)")):
        cause += "."
    verb = path.rpartition(" ")[2]
    if verb in habits.BEGIN and isinstance(problem, click.UsageError):
        submit_flags: set[str] = set()
        for parameter in submit.params:
            if parameter.name not in IGNORED:  # submit has no use for their values, either
                submit_flags.update(parameter.opts)
        refusal, step = refusal_of(problem, submit_flags)
        if refusal:
            return UsageError("BFT-1000", refusal, step)
    for hint, step in _advice(problem, path):
        if hint:
            cause = f"{problem.message} {hint}"
        return UsageError("BFT-1000", cause, step or f"See '{path} -h'.")
    return UsageError("BFT-1000", cause, f"See '{path} -h'.")


def _advice(problem: click.ClickException, path: str) -> _Advice:
    """Yield what the judges find; the first one counts."""
    for judge in (
        _next_step,
        _host_after_verb,
        _option_of_verb,
        _near_option,
        _verb_of_group,
        _missing,
        _superfluous,
        _choice,
        _no_file,
    ):
        yield from judge(problem, path)


def _next_step(problem: click.ClickException, _: str) -> _Advice:
    if isinstance(problem, Meant):
        yield "", problem.next_step


def _host_after_verb(problem: click.ClickException, path: str) -> _Advice:
    if isinstance(problem, click.NoSuchOption) and problem.option_name in _OF_HOST:
        program, _, verb = path.partition(" ")
        yield "It stands before the verb.", f"{program} --host LOGIN {verb or 'VERB'} ..."


def _near_option(problem: click.ClickException, path: str) -> _Advice:
    if isinstance(problem, click.NoSuchOption) and problem.possibilities:
        yield "", f"{path} {problem.possibilities[0]} ...; '{path} -h' has all options."


def _option_of_verb(problem: click.ClickException, path: str) -> _Advice:
    if isinstance(problem, click.NoSuchOption):
        hint, step = habits.option_meant(problem.option_name, path.rpartition(" ")[2])
        if hint:
            yield hint, step


def _verb_of_group(problem: click.ClickException, path: str) -> _Advice:
    context = getattr(problem, "ctx", None)
    word = getattr(problem, "command_name", "")  # of NoSuchCommand, which older clicks lack
    if not word or context is None or not isinstance(context.command, click.Group):
        return
    hint, step = habits.in_group(path.rpartition(" ")[2], word)
    if hint:
        yield hint, step
    elif is_out_of_date():
        yield _NONE_ADDED, _INSTALL
    elif verb := habits.verb_meant(word, context.command.list_commands(context)):
        step = f"{path} {verb} ...; '{path} {verb} -h' says what it takes."
        yield f"Did you mean '{path} {verb}'?", step


def _missing(problem: click.ClickException, path: str) -> _Advice:
    if not isinstance(problem, click.MissingParameter):
        return
    missing = problem.param
    if isinstance(missing, click.Argument):
        words = _needed(problem.ctx.command if problem.ctx else None)
        word = " ".join(words) or _metavar(missing)
        lister = " 'bftrainer status' lists ids;" if word.startswith("ID") else ""
        yield "", f"{path} {word};{lister} '{path} -h' says more."
    elif isinstance(missing, click.Option) and missing.is_flag:
        yield "", f"{path} {missing.opts[-1]}"


def _superfluous(problem: click.ClickException, path: str) -> _Advice:
    hint, step = habits.superfluous(problem.message, path.rpartition(" ")[2])
    if hint:
        yield hint, step


def _choice(problem: click.ClickException, path: str) -> _Advice:
    wrong = _param_of(problem)
    if not isinstance(wrong, click.Option) or not isinstance(wrong.type, click.Choice):
        return
    option = wrong.opts[-1]
    words = [f"{option} {getattr(choice, 'name', choice)}" for choice in wrong.type.choices]
    if len(words) <= MOST_CHOICES:
        yield "", f"{path} {' or '.join(words)}"


def _no_file(problem: click.ClickException, path: str) -> _Advice:
    wrong = _param_of(problem)
    if wrong is None:
        return
    if "journal" in f"{wrong.name} {wrong.metavar}".lower():
        yield "", f"Name a journal that you may read. {habits.JOURNALS}"
    elif isinstance(wrong.type, click.Path) and wrong.type.exists:
        yield "", f"Name a file that exists and that you may read; '{path} -h' says what it is."


def _param_of(problem: click.ClickException) -> click.Parameter | None:
    """Return the parameter whose value cannot be taken; None: the mistake is another."""
    if isinstance(problem, click.MissingParameter) or not isinstance(problem, click.BadParameter):
        return None
    return problem.param
