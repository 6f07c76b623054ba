"""``bftrainer submit SCRIPT``: submit an elastic trainer to the daemon, like sbatch.

Builds a ``TrainerSpec`` from options and #BFT lines, checks it on this machine and prints
(``--dry-run``) or sends it (``submission``). ``--wait`` turns the trainer's end into the exit code.
"""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

from bftrainer.api.admission import check_spec
from bftrainer.api.client import Client
from bftrainer.api.documents import document, encode, listing, schema
from bftrainer.cli.common import AWAY, connect
from bftrainer.cli.going_on import CONTINUE_OPTION, marked, said_of_start
from bftrainer.cli.job_script import (
    FROM_SBATCH,
    JobScriptCommand,
    ScriptArgument,
    told_translation,
)
from bftrainer.cli.module_script import AS_MODULE, file_of
from bftrainer.cli.next_commands import print_next_of_trainers
from bftrainer.cli.options import ANY_OWNER_OPTION, JSON, SOCKET, option, verb
from bftrainer.cli.output import print_json, print_lines, print_pairs
from bftrainer.cli.output_pattern import with_output
from bftrainer.cli.sbatch_habits import IGNORED, IGNORED_OPTIONS, ignored, notes_on_partition
from bftrainer.cli.spec import COMMAND, build_spec, find_command
from bftrainer.cli.submission import StartState, send_all, source_of, specs_of
from bftrainer.cli.submit_checks import check_here, check_script
from bftrainer.cli.submit_options import ARGUMENTS, SPEC_OPTIONS, chosen, given, runtime_of
from bftrainer.ground.regular_file import open_stream
from bftrainer.model.columns import counted, shown
from bftrainer.model.declaration import defaults
from bftrainer.model.errors import BftError, ExitCode
from bftrainer.model.size_words import short_limits
from bftrainer.model.trainer import TrainerSpec, TrainerState
from bftrainer.model.trainer_spec import HELP_GROUPS
from bftrainer.model.views import TrainerView

GROUPS = {
    **HELP_GROUPS,
    "State that it starts from": ("--resume-from", "--fresh", "--continue"),
    "A job script for sbatch": ("--from-sbatch", "--yes"),
    "This command": (
        "--dry-run",
        "--wait",
        "--parsable",
        "--json",
        "--yaml",
        "--socket",
        "--any-owner",
    ),
    "As for sbatch, without effect": tuple(f"--{name}" for name in IGNORED),
}
WAIT_INTERVAL_S = 1.0
AWAY_LIMIT_S = 300.0  # how long --wait tolerates an unreachable daemon
MAX_READ_BYTES = 16 << 20  # of a script that may mention an option
_ALWAYS = ("name", "user", "script", "args", "cwd", "interpreter", "checkpoint_dir")
_INSTEAD = frozenset({"n_min", "n_max", "sizes", "gpus_per_unit", "preamble"})  # told otherwise
_EXIT_CODES = {
    TrainerState.FINISHED: 0,
    TrainerState.FAILED: 1,
    TrainerState.CANCELLED: 128 + signal.SIGTERM,
}


@verb(
    *SPEC_OPTIONS,
    ScriptArgument(["script"], metavar="SCRIPT"),
    ARGUMENTS,
    AS_MODULE,
    *IGNORED_OPTIONS,
    *FROM_SBATCH,
    option("--dry-run, --test-only", "Check everything and print what would be sent."),
    option("-W, --wait", "Wait for its end: 0 finished, 1 failed, 143 cancelled."),
    option("--parsable", "Print the id only."),
    option("--resume-from ID|DIR", "Start from the newest checkpoint of a trainer, which keeps "
           "it."),
    option("--fresh", "Set the checkpoints in its directory aside first."),
    CONTINUE_OPTION,
    ANY_OWNER_OPTION, JSON, SOCKET, context_settings={"allow_interspersed_args": False},
    cls=JobScriptCommand, groups=GROUPS,
    example="bftrainer submit --nodes 1:8 --job-name digits train.py --lr 0.1",
)  # fmt: skip
@click.pass_context
def submit(
    ctx: click.Context,
    /,
    script: str,
    args: tuple[str, ...],
    socket_name: str | None,
    resume_from: str | None,
    way: str | None,
    *,
    is_module: bool,
    fresh: bool,
    dry_run: bool,
    wait: bool,
    parsable: bool,
    as_json: bool,
    **_: Any,
) -> int:
    """Hand the training script SCRIPT (or any program, see --runtime) to the daemon.

    Lines "#BFT OPTIONS" at the head of the script are read as if they stood on the
    command line, which wins.
    """
    if (dry_run and (wait or parsable)) or (as_json and parsable):
        raise click.UsageError(
            "--dry-run excludes --wait and --parsable; --json excludes --parsable"
        )
    module = ""
    if is_module:
        module = script
        script = file_of(module, given(ctx), os.environ)
    elif runtime_of(ctx) == COMMAND:
        script = find_command(script, os.environ)
    check_script(script)
    values = {**chosen(ctx, script), "module": module}
    has_source = resume_from is not None
    specs = _specs(script, args, values, way, has_source=has_source)
    checks = check_here(specs[0], imports_torch=dry_run)
    print_lines(*ignored(values), err=True)
    warn_of_late_options(ctx, script, args)
    starts: list[str] = []
    if not has_source:  # read before a directory is prepared
        starts = _starts(specs, StartState(is_fresh=fresh))
    if dry_run:
        print_lines(*starts, err=True)
        _print_dry_run(specs, checks, told_translation(ctx), as_json=as_json)
        return ExitCode.OK
    client = connect(socket_name)
    state = StartState(source=source_of(client, resume_from), is_fresh=fresh)
    views = send_all(client, specs, state)
    if has_source:
        starts = _starts(specs, state)
    print_lines(*starts, err=True)
    trainer_ids = [view.record.trainer_id for view in views]
    if not as_json:
        _print_submitted(trainer_ids, socket_name, values, is_bare=parsable, waits=wait)
    if wait:
        views = tuple(wait_for_end(client, trainer_id) for trainer_id in trainer_ids)
    if as_json:
        _print_views(views, told_translation(ctx), is_array=values.get("array") is not None)
    return _outcome(views) if wait else ExitCode.OK


def _print_submitted(
    trainer_ids: list[str],
    socket_name: str | None,
    values: Mapping[str, Any],
    *,
    is_bare: bool,
    waits: bool,
) -> None:
    """Print the ids, for people in sentences and with what they may type next."""
    partitions = values.get("partition")
    if partitions is not None:
        status = connect(socket_name).status()
        print_lines(*notes_on_partition(partitions, status.batch_pairs), err=True)
    if is_bare:
        print_lines(*trainer_ids)
        return
    for trainer_id in trainer_ids:
        print_lines(f"Submitted trainer {trainer_id}")
    if not waits:
        print_next_of_trainers(trainer_ids, socket_name)


def _print_views(
    views: Sequence[TrainerView], translation: dict[str, Any], *, is_array: bool
) -> None:
    """Print the trainers as a document; ``translation``: of the job script they are made of."""
    if is_array:
        print_json(listing("trainers", views) | translation)
    else:
        print_json(document("trainer", views[0]) | translation)


def _starts(specs: Sequence[TrainerSpec], state: StartState) -> list[str]:
    """Say from which checkpoints trainers start, where that is worth a line."""
    sentences = []
    for spec in specs:
        sentence = said_of_start(spec, state.source, is_fresh=state.is_fresh)
        if sentence:
            sentences.append(sentence)
    return sentences


def _specs(
    script: str, args: tuple[str, ...], values: dict[str, Any], way: str | None, *, has_source: bool
) -> tuple[TrainerSpec, ...]:
    """Return the trainers of a submission, checked; an array has several."""
    spec = build_spec(script, args, values, os.environ)
    has_own_dir = values.get("checkpoint_dir") is not None
    specs = specs_of(spec, values.get("array"), has_own_dir=has_own_dir)
    specs = tuple(map(with_output, specs))
    exported = values.get("environment", ())
    specs = tuple(marked(spec, exported, way, has_source=has_source) for spec in specs)
    for spec in specs:
        check_spec(spec)
    return specs


def _outcome(views: Sequence[TrainerView]) -> int:
    """Say how they have ended; return the code of the first that has not finished."""
    exit_code = 0
    for view in views:
        record = view.record
        line = f"{record.trainer_id} {record.state}"
        if record.reason:
            line += f": {shown(record.reason)}"
        print_lines(line, err=True)
        exit_code = exit_code or _EXIT_CODES[record.state]
    return exit_code


def warn_of_late_options(ctx: click.Context, script: str, args: tuple[str, ...]) -> None:
    """Warn of our own options among the script's arguments, unless the script mentions them."""
    flags: set[str] = set()
    for parameter in ctx.command.params:
        flags.update(parameter.opts)
    late_flags = []
    for argument in args:
        name, _, _ = argument.partition("=")
        if name.startswith("--") and name in flags:
            late_flags.append(name)
    text = b""
    if late_flags:
        with open_stream(script, is_typed=True) as file:
            text = file.read(MAX_READ_BYTES)
    for name in late_flags:
        if name.encode() not in text:
            print_lines(
                f"warning: {shown(name)} follows {shown(script)} and is passed to it;"
                f" options of {ctx.command.name} come before the script",
                err=True,
            )


def _print_dry_run(
    specs: Sequence[TrainerSpec],
    checks: tuple[str, ...],
    translation: dict[str, Any],
    *,
    as_json: bool,
) -> None:
    spec = specs[0]  # of an array, the others differ in index, name and directory
    is_array = len(specs) > 1
    if as_json:
        parts: dict[str, Any] = {"spec": encode(spec), "checks": list(checks)}
        if is_array:
            parts |= {"array": len(specs), "arguments": [member.args for member in specs]}
        print_json({"schema": schema("dry-run"), **parts, **translation})
        return
    rows: list[tuple[str, object]] = []
    if is_array:
        rows.append(("array", f"{counted(len(specs), 'trainer')}; the first:"))
    rows += _worth_reading(spec).items()
    if any(member.args != spec.args for member in specs):
        for member in specs:
            if member is spec or member.args != spec.args:
                rows.append((f"args of {member.name}", shlex.join(member.args)))
    print_pairs(rows, 22)
    for check in checks:
        print_pairs([("ok", check)], 22)
    print_lines(
        "Nothing was submitted; the same command without --dry-run does it (--json shows all"
        " settings).",
        err=True,
    )


def _worth_reading(spec: TrainerSpec) -> dict[str, object]:
    """Return what is always told of a submission, and what is not as by default."""
    usual = defaults(TrainerSpec)
    rows: dict[str, object] = {}
    for name, value in encode(spec).items():
        is_unusual = name not in _INSTEAD and getattr(spec, name) != usual.get(name)
        if name in _ALWAYS or is_unusual:
            rows[name] = value
    rows["args"] = shlex.join(spec.args) or "none"
    rows["gpus" if spec.gpus_per_unit else "nodes"] = short_limits(spec)
    if "environment" in rows:
        rows["environment"] = shlex.join(f"{name}={value}" for name, value in spec.environment)
    if spec.preamble:
        rows["preamble"] = f"{len(spec.preamble.encode())} bytes"
    return rows


def wait_for_end(client: Client, trainer_id: str) -> TrainerView:
    """Poll the daemon, which may restart meanwhile, until the trainer has ended."""
    last_seen = time.monotonic()
    while True:
        try:
            view = client.trainer(trainer_id)
        except BftError as error:
            if error.exit_code not in AWAY or time.monotonic() - last_seen > AWAY_LIMIT_S:
                raise
        else:
            if view.record.state.is_final:
                return view
            last_seen = time.monotonic()
        time.sleep(WAIT_INTERVAL_S)
