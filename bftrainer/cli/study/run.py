"""``bftrainer study run STUDY SCRIPT``: begin a study, or go on with it, in the foreground.

``--dry-run`` prints the same object that is written and carried out.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bftrainer.api.documents import document, encode, schema
from bftrainer.batch import process
from bftrainer.cli.common import FollowingClient, connect, json_option, print_json, socket_option
from bftrainer.cli.study.lookup import (
    await_verb,
    default_path,
    find_path,
    find_study,
    is_document,
    open_loop,
)
from bftrainer.cli.study.results import best_line
from bftrainer.cli.study.screen import Screen
from bftrainer.model.columns import shown
from bftrainer.model.errors import BftError, ExitCode
from bftrainer.study.directory import (
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
from bftrainer.study.outcome import OVER

if TYPE_CHECKING:
    from bftrainer.study.plan.document import StudyPlan

INTERRUPTED = 128 + 2
START_S = 30.0
REACH_S = 30.0  # for a daemon that is just being started
ANSWER_S = 5.0  # of one try
TRY_AGAIN_S = 0.5


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where the study is kept, seen by all nodes.  [default: ./NAME.study]",
)
@click.option(
    "--plan",
    "plan_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Carry out this plan, as 'study plan --json' prints it.",
)
@click.option(
    "--new-daemon",
    is_flag=True,
    help="Go on in this daemon, as the one that the study began with is gone for good.",
)
@click.option("--dry-run", is_flag=True, help="Check everything and print what would be done.")
@click.option("--detach", is_flag=True, help="Go on in the background; see 'study status'.")
@json_option
@socket_option
@click.argument("study_name", metavar="STUDY")
@click.argument("script", metavar="[SCRIPT]", required=False)
@click.argument("args", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
def run(
    study_name: str,
    script: str | None,
    args: tuple[str, ...],
    directory: Path | None,
    plan_path: Path | None,
    socket_name: str | None,
    *,
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
    study, is_new = _study_of(study_name, script, args, directory, socket_name)
    plan = None if plan_path is None else _plan_of(study, plan_path)
    if dry_run:
        _print_dry_run(study, plan, is_new=is_new, as_json=as_json)
        return ExitCode.OK
    if is_new:
        _checks(study)
        _reach(socket_name)  # before anything is written
        write_directory(study)
    if plan is not None:
        from bftrainer.cli.study.plan_file import keep_plan  # noqa: PLC0415

        keep_plan(study, plan)
    if detach:
        return _detach(study, socket_name, is_new_daemon=new_daemon)
    return _run(study, socket_name, is_new_daemon=new_daemon, as_json=as_json)


def _of_script(args: tuple[str, ...]) -> tuple[str, ...]:
    """Return what the script gets; options of ours there are meant for us, but after ``--``."""
    if args[:1] == ("--",):
        return args[1:]
    context = click.get_current_context()
    ours = {name for each in context.command.get_params(context) for name in each.opts}
    for one in args[: args.index("--") if "--" in args else None]:
        if one.partition("=")[0] in ours and one.startswith("-"):
            raise click.UsageError(
                f"{one[:40]} follows SCRIPT: options come before STUDY, or after '--' if they are"
                " the script's."
            )
    return args


def _study_of(
    name: str,
    script: str | None,
    args: tuple[str, ...],
    directory: Path | None,
    socket_name: str | None,
) -> tuple[StudyDirectory, bool]:
    """Return the study, and whether it is new."""
    if script is None and (directory or not is_document(Path(name))):
        return find_study(str(directory or name), socket_name), False
    # Imported here to keep other verbs fast.
    from bftrainer.cli.study.base import base_spec  # noqa: PLC0415
    from bftrainer.study.document import read_study  # noqa: PLC0415

    text = read_study(Path(name))
    if script is None:
        path = find_path(name, socket_name)
        if not is_study(path):
            raise click.UsageError(f"SCRIPT is missing: no study {path} is here to go on with.")
        return read_directory(path), False
    wanted = new_directory(
        (directory or default_path(str(text.name))).absolute(), text, base_spec(text, script, args)
    )
    if not is_study(wanted.path):
        check_unused(wanted.path)
        return wanted, True
    found = read_directory(wanted.path)
    check_same(found, wanted)
    return found, False


def _checks(study: StudyDirectory) -> tuple[str, ...]:
    from bftrainer.cli.study.base import check_trial  # noqa: PLC0415
    from bftrainer.cli.study.preview import first_trial  # noqa: PLC0415

    return check_trial(first_trial(study))


def _plan_of(study: StudyDirectory, path: Path) -> StudyPlan:
    from bftrainer.cli.study.plan_file import plan_for  # noqa: PLC0415

    return plan_for(study, path)


def _print_dry_run(
    study: StudyDirectory, plan: StudyPlan | None, *, is_new: bool, as_json: bool
) -> None:
    from bftrainer.cli.study.preview import first_trial, plan_lines, preview_lines  # noqa: PLC0415

    checks = _checks(study)
    if as_json:
        said: dict[str, Any] = {"study": study.study_id, "directory": str(study.path)}
        said |= {"is_new": is_new, "document": study.document.model_dump(mode="json")}
        said |= {"spec": encode(first_trial(study, plan)), "checks": list(checks)}
        print_json({"schema": schema("study-dry-run"), **said})
        return
    for name, value in [*preview_lines(study, plan), *plan_lines(plan)]:
        click.echo(f"{name:<12} {shown(value)}")
    for check in checks:
        click.echo(f"ok           {shown(check)}")
    click.echo("nothing was started", err=True)


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
            click.echo(
                f"interrupted; its trials stay in the daemon. Go on with:"
                f" bftrainer study run {study.path}",
                err=True,
            )
            return INTERRUPTED
    screen.close()
    if as_json:
        print_json(document("study", summary))
    else:
        click.echo(f"{summary.state}: {best_line(summary)}")
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
            is_away = error.exit_code in (ExitCode.DAEMON_UNREACHABLE, ExitCode.TIMEOUT)
            if not is_away or time.monotonic() >= deadline:
                raise
            if not is_told:
                click.echo(shown(f"{error.cause} Waiting up to {REACH_S:g} s for it."), err=True)
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
    where = ("--socket", socket_name) if socket_name else ()
    argv = (sys.executable, "-m", "bftrainer", "study", "run", *where, str(study.path))
    try:
        log = study.log.open("ab")
    except OSError as problem:
        raise unwritable(study.log, problem) from problem
    with log:
        child = process.spawn(argv, env=os.environ, stdout=log, stderr=log)
    deadline = time.monotonic() + START_S
    while child.poll() is None and time.monotonic() < deadline:
        if is_running(study.path):
            click.echo(f"process {child.pid} runs {study.study_id}; it writes {study.log}")
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
    lines = path.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
    return next((line for line in reversed(lines) if line.startswith("error ")), lines[-1])[:300]
