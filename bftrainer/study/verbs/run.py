"""``bftrainer study run STUDY SCRIPT``: begin a study, or go on with it, in the foreground.

``--dry-run`` prints the same object that is written and carried out. The trainers of all trials
share one specification: the document's ``submit`` section has the options of ``bftrainer submit``;
#BFT lines of the script count, too, but not for what the study decides.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bftrainer.api.admission import check_spec
from bftrainer.api.documents import document, encode, schema
from bftrainer.batch import process
from bftrainer.cli.common import AWAY, FollowingClient, connect
from bftrainer.cli.module_script import AS_MODULE, file_of
from bftrainer.cli.next_commands import print_next
from bftrainer.cli.option_values import parse_gpus, parse_sizes
from bftrainer.cli.options import ANY_OWNER_OPTION, JSON, PATH, SOCKET, argument, option, verb
from bftrainer.cli.output import duration, is_terminal, print_json, print_lines, print_pairs
from bftrainer.cli.spec import COMMAND, build_spec, find_command
from bftrainer.cli.submit_checks import check_here, check_script
from bftrainer.cli.submit_options import (
    SPEC_OPTIONS,
    given,
    merge,
    parameters_of_no_study,
    read_directives,
)
from bftrainer.ground.regular_file import open_stream, read_file
from bftrainer.model.columns import shown
from bftrainer.model.errors import BftError, ExitCode, UsageError
from bftrainer.model.size_words import units
from bftrainer.model.trainer import TrainerSpec
from bftrainer.study.directory import (
    MOST_BYTES,
    StudyDirectory,
    check_same,
    check_unused,
    is_running,
    is_study,
    new_directory,
    read_directory,
    unwritable,
    write_directory,
)
from bftrainer.study.trial_table import OVER, SUMMARY_SCHEMA
from bftrainer.study.verbs.lookup import (
    await_verb,
    best_line,
    default_path,
    find_path,
    find_study,
    is_document,
    open_loop,
    read_summary,
)
from bftrainer.study.verbs.plan import keep_plan, plan_for

if TYPE_CHECKING:
    from bftrainer.study.configurations import Parameter
    from bftrainer.study.document import StudyDocument
    from bftrainer.study.plan.document import StudyPlan

INTERRUPTED = 128 + 2
SOCKET_VARIABLE = "BFTRAINER_SOCKET"
_PATHS = (SOCKET_VARIABLE, "BFTRAINER_STATE_DIR")  # may be relative; a loop runs in /
START_S = 30.0
REACH_S = 30.0  # for a daemon that is just being started
ANSWER_S = 5.0  # of one try
TRY_AGAIN_S = 0.5
REFRESH_S = 1.0  # of the line below the events
# What the study decides for each trial.
_NOT_OURS = parameters_of_no_study()
_OPTION = re.compile(r"--([a-z][a-z-]*)")
_KEYS = {"--checkpoint-dir": "--dir", "--samples": "'unit: samples'"}
_FAILED = {"worst": "it counts as the worst", "ignore": "another one takes its place"}


@verb(
    option("--dir DIR", "Where the study is kept, seen by all nodes.  [default: ./NAME.study]",
           PATH, name="directory"),
    option("--plan FILE", "Carry out this plan, as 'study plan --json' prints it.", PATH,
           name="plan_path"),
    option("--new-daemon", "Go on in this daemon, as the one that the study began with is gone for "
           "good."),
    option("--dry-run", "Check everything and print what would be done."),
    AS_MODULE,
    option("--detach", "Go on in the background; see 'study status'."),
    ANY_OWNER_OPTION, JSON, SOCKET,
    argument("study_name", metavar="STUDY"),
    argument("script", metavar="[SCRIPT]", required=False),
    argument("args", click.UNPROCESSED, metavar="[ARGS]...", nargs=-1),
    context_settings={"allow_interspersed_args": False},
    example="bftrainer study run study.yaml train.py",
)  # fmt: skip
def run(
    study_name: str,
    script: str | None,
    args: tuple[str, ...],
    directory: Path | None,
    plan_path: Path | None,
    socket_name: str | None,
    *,
    is_module: bool,
    new_daemon: bool,
    dry_run: bool,
    detach: bool,
    as_json: bool,
) -> int:
    """Begin the study STUDY.yaml, whose trials run SCRIPT with ARGS, or go on with it.

    {lr} in ARGS stands for the parameter lr. To go on, the study's name or directory suffices.
    """
    if script is not None and script.startswith("-"):
        raise click.UsageError(f"{script[:40]} follows {study_name}: options come before STUDY.")
    args = _of_script(args)
    study, is_new = _study_of(study_name, script, args, directory, socket_name, is_module=is_module)
    plan = None
    if plan_path is not None:
        plan = plan_for(study, plan_path)
    if dry_run:
        _print_dry_run(study, plan, is_new=is_new, as_json=as_json)
        return ExitCode.OK
    if is_new:
        check_trial(first_trial(study))
        _reach(socket_name)  # before anything is written
        write_directory(study)
    if plan is not None:
        keep_plan(study, plan)
    if detach:
        return _detach(study, socket_name, is_new_daemon=new_daemon)
    return _run(study, socket_name, is_new_daemon=new_daemon, as_json=as_json)


def _of_script(args: tuple[str, ...]) -> tuple[str, ...]:
    """Return what the script gets; options of ours there are meant for us, but after ``--``."""
    if args[:1] == ("--",):
        return args[1:]
    context = click.get_current_context()
    our_names: set[str] = set()
    for parameter in context.command.get_params(context):
        our_names.update(parameter.opts)
    for word in itertools.takewhile(lambda word: word != "--", args):
        if word.startswith("-") and word.partition("=")[0] in our_names:
            raise click.UsageError(
                f"{word[:40]} follows SCRIPT: options come before STUDY, or after '--' if they are"
                " the script's."
            )
    return args


def _study_of(
    name: str,
    script: str | None,
    args: tuple[str, ...],
    directory: Path | None,
    socket_name: str | None,
    *,
    is_module: bool = False,
) -> tuple[StudyDirectory, bool]:
    """Return the study, and whether it is new."""
    if script is None and (directory or not is_document(Path(name))):
        return find_study(str(directory or name), socket_name), False
    from bftrainer.study.document import read_study  # noqa: PLC0415 - slow to import

    text = read_study(Path(name))
    if script is None:
        path = find_path(name, socket_name)
        if not is_study(path):
            raise click.UsageError(f"SCRIPT is missing: no study {path} is here to go on with.")
        return read_directory(path), False
    base = base_spec(text, script, args, is_module=is_module)
    path = (directory or default_path(str(text.name))).absolute()
    new_study = new_directory(path, text, base)
    if not is_study(new_study.path):
        check_unused(new_study.path)
        return new_study, True
    study = read_directory(new_study.path)
    check_same(study, new_study)
    return study, False


def base_spec(
    document: StudyDocument, script: str, args: Sequence[str], *, is_module: bool = False
) -> TrainerSpec:
    """Return the trainer; its arguments still have their places (BFT-1627, BFT-1628).

    ``is_module``: the script is a module's name, to be run as by ``python -m``.
    """
    from bftrainer.fleet.runtimes.base import inherits  # noqa: PLC0415 - slow to import
    from bftrainer.study.actions import check_places  # noqa: PLC0415

    section, module = _section(document), ""
    if is_module:
        module = script
        script = file_of(module, section, os.environ)
    elif section.get("runtime") == COMMAND:
        script = find_command(script, os.environ)
    check_script(script)
    values = read_directives(script)
    for name in _NOT_OURS:
        values.pop(name, None)
    for name, value in section.items():
        merge(values, name, value)
    if values.get("interpreter"):
        values["interpreter"] = find_command(values["interpreter"], os.environ)
    values |= {**_sizes(document), "name": document.name, "module": module}
    check_places(args, list(document.parameters))
    spec = build_spec(script, args, values, os.environ)
    if document.rule.get("name") == "pbt" and not inherits(spec.runtime):
        raise UsageError(
            "BFT-1626",
            "The rule pbt needs trials that start from each other's checkpoints with parameters"
            f" of their own; those of runtime {spec.runtime} cannot.",
            "Choose another rule.",
        )
    return replace(spec, checkpoint_dir="")


def _sizes(document: StudyDocument) -> dict[str, Any]:
    """Return the sizes of a trial, as options of submit."""
    if document.gpus is None:
        return {"sizes": parse_sizes(str(document.nodes))}
    if document.nodes != 1:
        raise UsageError("BFT-1002", "The study has both nodes and gpus.", "Leave one of them out.")
    return {"gpus": parse_gpus(str(document.gpus))}


def check_trial(spec: TrainerSpec) -> tuple[str, ...]:
    """Check a trial's trainer on this machine; return a sentence for each check."""
    check_spec(spec)
    try:
        return check_here(spec)
    except UsageError as error:
        # What 'submit' says of an option is in a study said of a key.
        step = _OPTION.sub(
            lambda match: _KEYS.get(match[0], f"'{match[1]}' (under submit in the study)"),
            error.next_step,
        )
        raise UsageError(error.code, error.cause, step, exit_code=error.exit_code) from error


def _section(document: StudyDocument) -> dict[str, Any]:
    """Return the options of the section ``submit``, as the command line would give them."""
    tokens: list[str] = []
    for name, value in document.submit.items():
        texts = value if isinstance(value, tuple) else (value,)
        for text in texts:
            tokens.append(f"--{name.replace('_', '-')}")
            if text is not True:  # True: the option takes no value
                tokens.append(str(text))
    parser = click.Command("submit", params=list(SPEC_OPTIONS), add_help_option=False)
    try:
        with parser.make_context("submit", tokens) as ctx:
            values = given(ctx)
    except click.UsageError as problem:
        raise _refusal(problem.format_message()) from problem
    if wrong := sorted(values.keys() & _NOT_OURS):
        raise _refusal(f"{wrong[0]} is decided by the study")
    return values


def _refusal(problem: str) -> UsageError:
    if not problem.endswith((".", "?", ")")):
        problem += "."
    return UsageError(
        "BFT-1628",
        f"submit: {problem}",
        "Correct this section; 'bftrainer submit -h' lists the options.",
    )


def first_trial(study: StudyDirectory, plan: StudyPlan | None = None) -> TrainerSpec:
    """Return a trial's trainer, with parameters that some trial may have."""
    from bftrainer.study.actions import spec_of  # noqa: PLC0415 - slow to import
    from bftrainer.study.trials import StoredTrial  # noqa: PLC0415

    document, rule = study.document, study.document.rule_with()
    if isinstance(document.configurations, tuple):
        parameters = dict(document.configurations[0])
    else:
        parameters = {}
        for name, parameter in document.parameters.items():
            if parameter.type == "categorical":
                parameters[name] = parameter.choices[0]
            else:
                parameters[name] = parameter.low
    budget = next((start.budget for start in rule.verdicts((), 1).start), rule.most)
    trial = StoredTrial(number=0, end=None, parameters=parameters, budget=budget)
    nodes = None
    if plan is not None:
        nodes = plan.stages[0].gpus_per_trial
    return spec_of(study, trial, budget=budget, most=rule.most, nodes=nodes)


def preview_lines(study: StudyDirectory, plan: StudyPlan | None = None) -> list[tuple[str, str]]:
    """Return the study, and the plan, as names and values."""
    document, spec = study.document, first_trial(study, plan)
    settings = document.rule_with().describe()
    details = ", ".join(f"{name} {value}" for name, value in settings.items() if name != "name")
    source = f"drawn by {document.sampler}, seed {document.seed}"
    sizes, parallel = f"{spec.n_min} to {spec.n_max}", f"parallel: {document.parallel}"
    if spec.gpus_per_unit > 1:
        sizes = f"{sizes} {units(spec.gpus_per_unit)}"
    if isinstance(document.configurations, tuple):
        source = f"{len(document.configurations)} listed configurations"
    lines = [
        ("study", study.study_id),
        ("directory", str(study.path)),
        ("metric", f"{document.metric}, to {document.direction}"),
        ("rule", f"{settings['name']}: {details}; in {document.unit}"),
    ]
    for name, parameter in document.parameters.items():
        lines.append((f"  {name}", _words(parameter)))
    lines += [
        ("parameters", source),
        ("GPUs" if spec.gpus_per_unit else "nodes", f"{sizes} for a trial; {parallel}"),
        ("failed", f"tried again up to {document.retry} times, then {_FAILED[document.failed]}"),
        ("a trial runs", shlex.join((spec.interpreter, spec.script, *spec.args)).strip("' ")),
    ]
    if plan is not None:
        lines += _plan_lines(plan)
    return lines


def _plan_lines(plan: StudyPlan) -> Iterator[tuple[str, str]]:
    yield "plan", f"{duration(plan.time_s.mean)}, {plan.cost.mean:.2f}"
    for stage in plan.stages:
        at_once = f"{stage.at_once} at once, nodes {stage.gpus_per_trial} each"
        end = duration(stage.time_s.mean)
        yield f"  to {stage.budget}", f"trials {stage.trials}, {at_once}, {end}"


def _words(parameter: Parameter) -> str:
    if parameter.type == "categorical":
        return f"one of {', '.join(map(str, parameter.choices))}"
    words = f"{parameter.low} to {parameter.high}"
    if parameter.log:
        words += ", log"
    if parameter.step not in (None, 1):
        words += f", step {parameter.step}"
    return words


def _print_dry_run(
    study: StudyDirectory, plan: StudyPlan | None, *, is_new: bool, as_json: bool
) -> None:
    checks = check_trial(first_trial(study))
    if as_json:
        print_json(
            {
                "schema": schema("study-dry-run"),
                "study": study.study_id,
                "directory": str(study.path),
                "is_new": is_new,
                "document": study.document.model_dump(mode="json"),
                "spec": encode(first_trial(study, plan)),
                "checks": list(checks),
            }
        )
        return
    print_pairs([*preview_lines(study, plan), *(("ok", check) for check in checks)], 12)
    print_lines("nothing was started", err=True)


class Screen:
    """The events of ``study run`` line by line, on a terminal with a summary below them."""

    def __init__(self, study: StudyDirectory, *, is_err: bool) -> None:
        self._study, self._is_err = study, is_err
        self._is_drawn = is_terminal() and not is_err
        self._bottom, self._read_s = "", 0.0

    def say(self, line: str) -> None:
        """Print one event."""
        if self._is_drawn:
            click.echo("\r\x1b[K", nl=False)
        print_lines(f"{time.strftime('%H:%M:%S')} {shown(line)}", err=self._is_err)
        if self._is_drawn:
            click.echo(self._summary(), nl=False)

    def close(self) -> None:
        """Take the summary away."""
        if self._is_drawn:
            click.echo("\r\x1b[K", nl=False)

    def _summary(self) -> str:
        """Return the summary as the loop last wrote it, in one line."""
        if time.monotonic() - self._read_s >= REFRESH_S:
            self._read_s = time.monotonic()
            try:
                summary = read_summary(self._study.path)
            except BftError:
                return ""  # not written yet
            self._bottom = (
                f"{summary.active} active, {summary.waiting} waiting, {summary.over} over;"
                f" {summary.nodes} of {summary.pool_nodes} nodes; best {best_line(summary)}"
            )
        return shown(self._bottom)[: shutil.get_terminal_size().columns - 1]


def _run(
    study: StudyDirectory, socket_name: str | None, *, is_new_daemon: bool, as_json: bool
) -> int:
    screen = Screen(study, is_err=as_json)
    await_verb(study.path)
    client = FollowingClient(socket_name)
    with open_loop(study, client, screen.say, is_new_daemon=is_new_daemon) as loop:
        screen.say(f"study {study.study_id} in {study.path}")
        try:
            _reach(socket_name)
            summary = loop.run()
        except KeyboardInterrupt:
            screen.close()
            with contextlib.suppress(BftError):  # the daemon is away
                loop.summarize()
            print_lines(
                f"interrupted; its trials stay in the daemon. Go on with:"
                f" bftrainer study run {study.path}",
                err=True,
            )
            return INTERRUPTED
    screen.close()
    if as_json:
        print_json(document(SUMMARY_SCHEMA, summary))
    else:
        print_lines(f"{summary.state}: {best_line(summary)}")
    if summary.state == OVER and summary.best is None:
        last = max(summary.trials, key=lambda row: row.ended_s or 0.0, default=None)
        raise BftError(
            "BFT-1629",
            f"The study is over without a value. {last.reason if last else 'It has no trials.'}",
            f"Read {last.checkpoint_dir if last else study.path}/logs, correct the script, and"
            " begin another study.",
        )
    return ExitCode.OK


def _reach(socket_name: str | None) -> None:
    """Wait a little for a daemon that does not answer yet; a loop that met one waits for ever."""
    deadline, is_told = time.monotonic() + REACH_S, False
    while True:
        try:
            connect(socket_name, timeout_s=ANSWER_S).status()
        except BftError as error:
            if error.exit_code not in AWAY or time.monotonic() >= deadline:
                raise
            if not is_told:
                print_lines(f"{error.cause} Waiting up to {REACH_S:g} s for it.", err=True)
            is_told = True
            time.sleep(TRY_AGAIN_S)
        else:
            return


def _detach(study: StudyDirectory, socket_name: str | None, *, is_new_daemon: bool) -> int:
    """Start the loop as a process of its own, and wait until it holds the study's lock."""
    client = FollowingClient(socket_name)
    with open_loop(study, client, lambda _: None, is_new_daemon=is_new_daemon) as loop:
        # Nobody else runs it, its files can be written, and the daemon is its own.
        _reach(socket_name)
        loop.meet()
    paths = {name: os.environ[name] for name in _PATHS if os.environ.get(name)}
    if socket_name:
        paths[SOCKET_VARIABLE] = socket_name
    env = dict(os.environ)
    for name, path in paths.items():
        env[name] = os.path.abspath(path)  # noqa: PTH100 - links are not resolved
    argv = process.own_python("bftrainer", "study", "run", str(study.path))
    try:
        log = open_stream(study.log, "ab")
    except OSError as problem:
        raise unwritable(study.log, problem) from problem
    with log:
        child = process.spawn(argv, env=env, cwd=Path("/"), stdout=log, stderr=log)
    deadline = time.monotonic() + START_S
    while child.poll() is None and time.monotonic() < deadline:
        if is_running(study.path):
            print_lines(f"process {child.pid} runs {study.study_id}; it writes {study.log}")
            print_next(
                (f"bftrainer study status {study.path}", "its trials"),
                (f"bftrainer study best {study.path}", "the best of them so far"),
                ("bftrainer web", "watch it in a browser"),
                socket_name=socket_name,
            )
            return ExitCode.OK
        time.sleep(0.1)
    if child.poll() == 0:
        return ExitCode.OK  # there was nothing left to do
    raise BftError(
        "BFT-1638",
        f"The study's process has not started: {_last_line(study.log)}",
        f"Read {study.log}.",
    )


def _last_line(path: Path) -> str:
    """Return the last error in a log, or the last line."""
    try:
        text = read_file(path, MOST_BYTES).decode(errors="replace")
    except OSError as problem:
        raise unwritable(path, problem) from problem
    lines = text.strip().splitlines() or ["it said nothing"]
    errors = [line for line in lines if line.startswith("error ")]
    return (errors or lines)[-1][:300]
