"""``bftrainer submit SCRIPT``: submit an elastic trainer to the daemon, like sbatch.

Builds a ``TrainerSpec`` from options and #BFT lines, checks it on this machine and prints
(``--dry-run``) or sends it. ``--wait`` turns the trainer's end into the exit code.

The trainers of one ``submit`` are sent all, or none. A trainer whose checkpoint directory has to be
prepared is submitted held: from then on no other trainer may use the directory, and this one does
not start before it is ready.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import click

import bftrainer
from bftrainer.api.admission import check_spec
from bftrainer.api.client import Client
from bftrainer.api.documents import document, encode, listing, schema
from bftrainer.cli.array_table import INDEX
from bftrainer.cli.common import AWAY, connect
from bftrainer.cli.going_on import CONTINUE_OPTION, ContinuingCommand, marked, said_of_start
from bftrainer.cli.module_script import AS_MODULE, check_module, file_of
from bftrainer.cli.next_commands import print_next_of_trainers
from bftrainer.cli.option_values import ArrayOption
from bftrainer.cli.options import ANY_OWNER_OPTION, JSON, SOCKET, option, verb
from bftrainer.cli.output import print_json, print_lines, print_pairs
from bftrainer.cli.preamble import TIMEOUT_S, run_under
from bftrainer.cli.spec import COMMAND, build_spec, find_command
from bftrainer.cli.submit_options import SCRIPT, SPEC_OPTIONS, chosen, given
from bftrainer.elastic import files
from bftrainer.elastic.regular_file import open_stream
from bftrainer.model.columns import counted, shown
from bftrainer.model.errors import BftError, ExitCode, UsageError
from bftrainer.model.trainer import TrainerChange, TrainerSpec, TrainerState
from bftrainer.model.views import TrainerView
from bftrainer.study import checkpoint_files
from bftrainer.study.checkpoint_files import (
    bring,
    make_checkpoint_dir,
    newest_whole,
    remove_if_empty,
    set_aside,
    unstartable,
)

# The package that a runtime's workers import, and a program that prints its version.
_PROBES = {
    "torch": ("torch", "import torch; print(torch.__version__)"),
    "horovod": ("Horovod", "import horovod, horovod.torch; print(horovod.__version__)"),
}
_NOTHING = ("/bin/sh", "-c", ":")
# ``-c`` looks for modules in the working directory, a template does not.
_NOT_HERE = "import sys; sys.path[:] = [p for p in sys.path if p]; "
# What runs in the interpreter on a node; a container may lack it.
TEMPLATE = Path(bftrainer.__file__).resolve().parent / "elastic" / "template.py"
_SEES_US = f"open({str(TEMPLATE)!r}).close(); "
# Compiles without running or writing anything; the message names the line.
_COMPILE = """\
import sys
path = sys.argv[1]
try:
    with open(path, "rb") as script:
        compile(script.read(), path, "exec", dont_inherit=True)
except SyntaxError as problem:
    sys.exit(f"{type(problem).__name__} in line {problem.lineno}: {problem.msg}")
except (ValueError, RecursionError, MemoryError, OverflowError) as problem:
    sys.exit(f"{type(problem).__name__}: {problem}")
"""


def check_script(script: str) -> str:
    """Refuse a script that is missing, unreadable or not a regular file (BFT-1001)."""
    try:
        open_stream(script, is_typed=True).close()
    except OSError as problem:
        raise _script_refusal(script, f"cannot be read ({problem.strerror})") from problem
    except ValueError as problem:  # a NUL in the path
        raise _script_refusal(script, f"cannot be read ({problem})") from problem
    return f"script {script} is readable"


def _script_refusal(script: str, reason: str) -> UsageError:
    return UsageError(
        "BFT-1001", f"The script {script} {reason}.", "Give the path of a Python script."
    )


def check_here(spec: TrainerSpec) -> tuple[str, ...]:
    """Check everything that a spec refers to on this machine; change nothing.

    Returns:
        A sentence for each check.

    Raises:
        UsageError: the first that failed.
    """
    from bftrainer.fleet.runtimes.base import load_runtime  # noqa: PLC0415 - heavy; -h needs none of it

    script = check_script(spec.script) if spec.interpreter else _check_program(spec.script)
    if not os.path.isdir(spec.cwd) or not os.access(spec.cwd, os.X_OK):  # noqa: PTH112
        raise UsageError(
            "BFT-1013",
            f"The working directory {spec.cwd} does not exist or may not be entered.",
            "Name another one with --chdir.",
        )
    load_runtime(spec.runtime).check(spec)
    return (
        script,
        *check_module(spec),
        f"working directory {spec.cwd} exists",
        f"runtime {spec.runtime} accepts it",
        _check_interpreter(spec),
        *_check_syntax(spec),
        _check_checkpoint_dir(Path(spec.checkpoint_dir)),
    )


def _check_program(program: str) -> str:
    check_script(program)
    if not os.access(program, os.X_OK):
        raise UsageError(
            "BFT-1001",
            f"The program {program} may not be executed.",
            "Make it executable, or name its interpreter with --interpreter.",
        )
    return f"program {program} can be run"


def _check_interpreter(spec: TrainerSpec) -> str:
    advice = "Name the Python that has your packages with --interpreter or --venv."
    if spec.preamble and spec.runtime not in _PROBES:
        run_under(spec.preamble, _NOTHING, environment=spec.environment, cwd=spec.cwd)
    if not spec.interpreter:
        return "no interpreter is needed"
    path = Path(spec.interpreter)
    # Under a preamble it may be in a container.
    is_there = os.path.isfile(path) and os.access(path, os.X_OK)  # noqa: PTH113
    if not spec.preamble and not is_there:
        cause = f"The interpreter {path} does not exist or cannot be run."
        raise UsageError("BFT-1006", cause, advice)
    if spec.runtime not in _PROBES:
        return f"interpreter {path} can be run"
    package, probe = _PROBES[spec.runtime]
    if spec.preamble:
        probe = _NOT_HERE + _SEES_US + probe
    under = " under the preamble" if spec.preamble else ""
    argv = (str(path), "-c", probe)
    done = run_under(spec.preamble, argv, environment=spec.environment, cwd=spec.cwd)
    if done.timed_out:
        cause = f"{path} did not import {package}{under} within {TIMEOUT_S:g} s."
        raise UsageError("BFT-1006", cause, advice)
    if not done.is_ok:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        if str(TEMPLATE) in last:
            advice = f"Mount {TEMPLATE.parents[1]} into the container, at the same place."
        raise UsageError("BFT-1006", f"{path} cannot import {package}{under}: {last[:300]}", advice)
    version = (done.stdout.split() or ["of unknown version"])[-1]
    return f"interpreter {path} imports {package} {version[:60]}{under}"


def _check_syntax(spec: TrainerSpec) -> tuple[str, ...]:
    """Compile the script with the interpreter that will run it.

    Not for runtime ``command``, whose program may be in any language.
    """
    if not spec.interpreter or spec.runtime == COMMAND:
        return ()
    argv = (spec.interpreter, "-I", "-S", "-c", _COMPILE, spec.script)
    done = run_under(spec.preamble, argv, environment=spec.environment, cwd=spec.cwd)
    if not done.is_ok:
        if _is_shell_script(Path(spec.script)):
            raise UsageError("BFT-1035", f"{spec.script} is a script of a shell.", _OF_SHELLS)
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise UsageError(
            "BFT-1035",
            f"{spec.interpreter} cannot compile the script {spec.script}: {last[:300]}",
            "Correct the script, or name the Python it is written for with --interpreter.",
        )
    return (f"script {spec.script} compiles",)


def _is_shell_script(path: Path) -> bool:
    """Return whether the first line names a shell, or one is for sbatch or bsub."""
    with contextlib.suppress(OSError), open_stream(path, is_typed=True) as stream:
        lines = stream.read(MOST_OF_SCRIPT).splitlines() or [b""]
        return bool(_SHELL.match(lines[0])) or any(_BATCH.match(line) for line in lines)
    return False


def _check_checkpoint_dir(path: Path) -> str:
    existing = path
    while not os.path.lexists(existing):
        existing = existing.parent
    if not os.path.isdir(existing):  # noqa: PTH112
        raise checkpoint_files.refusal(path, f"{existing} is not a directory")
    if existing == path:
        checkpoint_files.check_owner(path)
    if not os.access(existing, os.W_OK | os.X_OK):
        raise checkpoint_files.refusal(path, f"{existing} is not writable")
    return f"checkpoint directory {path} {'is writable' if existing == path else 'can be created'}"


MOST_OF_SCRIPT = 1 << 14  # bytes of it that are looked at
_SHELL, _BATCH = re.compile(rb"#!.*\b(ba|da|k|z|c|tc)?sh\b"), re.compile(rb"#(SBATCH|BSUB)\b")
_OF_SHELLS = (
    "Submit the Python script that it runs. Lines that prepare it (module load, source) go into"
    " --preamble, partition and time limit into 'bftrainer up'; 'bftrainer submit -h' has the rest."
)
_ID = re.compile(r"t[0-9]{1,18}\Z", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartState:
    """The preparation of a trainer's checkpoint directory before it may start."""

    source: Path | None = None  # directory whose newest checkpoint it starts from
    is_fresh: bool = False  # its own checkpoints are set aside

    @property
    def is_needed(self) -> bool:
        """Return whether anything is to be done."""
        return self.is_fresh or self.source is not None

    def check(self, spec: TrainerSpec) -> None:
        """Refuse what cannot be done (BFT-1047)."""
        if not self.is_needed:
            return
        own = Path(spec.checkpoint_dir)
        if spec.runtime == "command":
            raise unstartable(
                "Programs of runtime command keep their state in files of their own.",
                "Copy them, or name a new --checkpoint-dir to start afresh.",
            )
        if self.source is None:
            return
        if os.path.realpath(self.source) == os.path.realpath(own):
            raise unstartable(
                f"{shown(str(own))} is the trainer's own checkpoint directory.",
                "Leave out --resume-from: it goes on from there anyway."
                " Name another -J or --checkpoint-dir to leave it as it is.",
            )
        if not self.is_fresh and files.newest_first(own):
            raise unstartable(
                f"{shown(str(own))} has checkpoints already.",
                "Add --fresh to set them aside, or name another -J or --checkpoint-dir.",
            )
        newest_whole(self.source)

    def prepare(self, directory: Path) -> None:
        """Set checkpoints aside and bring the one to start from."""
        try:
            if self.is_fresh:
                set_aside(directory)
            if self.source is not None:
                bring(self.source, directory)
        except OSError as problem:
            raise unstartable(
                f"The checkpoints in {shown(str(directory))} cannot be changed: {problem}.",
                "Check the directory and its file system, then submit again.",
            ) from problem


def source_of(client: Client, text: str | None) -> Path | None:
    """Return the checkpoint directory that ``--resume-from ID|DIR`` names."""
    if text is None:
        return None
    if _ID.match(text) and not os.path.lexists(text):
        return Path(client.trainer(text).record.spec.checkpoint_dir)
    return Path(text).absolute()


TOO_MANY_NOW = "BFT-1031"  # the limit of submissions per minute
RETRY_S = 2.0


def send_all(
    client: Client, specs: Sequence[TrainerSpec], state: StartState
) -> tuple[TrainerView, ...]:
    """Submit all; when one is refused, those before it are cancelled again."""
    for spec in specs:
        state.check(spec)
    sent: list[TrainerView] = []
    try:
        for spec in specs:
            sent.append(_patiently(client, spec, state) if sent else _send(client, spec, state))
    except BaseException:
        for view in sent:
            with contextlib.suppress(BftError):
                client.cancel(view.record.trainer_id, now=True)
        raise
    return tuple(sent)


def _patiently(client: Client, spec: TrainerSpec, state: StartState) -> TrainerView:
    """Submit a further trainer of an array, as fast as the policy allows."""
    is_told = False
    while True:
        try:
            return _send(client, spec, state)
        except BftError as error:
            if error.code != TOO_MANY_NOW:
                raise
            if not is_told:
                print_lines(f"waits: {error.cause}", err=True)
            is_told = True
            time.sleep(RETRY_S)


def _send(client: Client, spec: TrainerSpec, state: StartState) -> TrainerView:
    path = Path(spec.checkpoint_dir)
    is_new = make_checkpoint_dir(path)
    try:
        view = client.submit(replace(spec, hold=True) if state.is_needed else spec)
    except BftError as error:
        # After a time-out the trainer may exist and use the directory.
        if is_new and error.exit_code != ExitCode.TIMEOUT:
            remove_if_empty(path)
        raise
    if not state.is_needed:
        return view
    trainer_id = view.record.trainer_id
    try:
        state.prepare(path)
        return view if spec.hold else client.change(trainer_id, TrainerChange(is_held=False))
    except BaseException:
        with contextlib.suppress(BftError):
            client.cancel(trainer_id, now=True)
        raise


def specs_of(
    spec: TrainerSpec, array: ArrayOption | None, *, has_own_dir: bool
) -> tuple[TrainerSpec, ...]:
    """Return the trainers to submit: one, or one for each index.

    Args:
        spec: as one trainer.
        array: None: it is one.
        has_own_dir: ``--checkpoint-dir`` was given: each has a directory in it. By default the
            directory is named after the trainer.
    """
    if array is None:
        return (spec,)
    array_id = secrets.token_hex(8)
    between = "/" if has_own_dir else "_"
    return tuple(
        replace(
            spec,
            name=f"{spec.name}_{index}",
            args=placed(spec.args, {"index": str(index), "name": f"{spec.name}_{index}"}),
            checkpoint_dir=f"{spec.checkpoint_dir}{between}{index}",
            environment=(
                *(pair for pair in spec.environment if pair[0] != INDEX),
                (INDEX, str(index)),
            ),
            array_id=array_id,
            array_limit=array.limit,
        )
        for index in array.indices
    )


_PLACE = re.compile(r"\{(?P<kept>\{(?:index|name)\})\}|\{(?P<place>index|name)\}")


def placed(args: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """Return the arguments of a trainer of an array: ``{index}`` and ``{name}`` have its values.

    ``{{index}}`` becomes ``{index}``; all other braces stay as they are.
    """

    def value(place: re.Match[str]) -> str:
        return place["kept"] or values[place["place"]]

    return tuple(_PLACE.sub(value, one) for one in args)


WAIT_INTERVAL_S = 1.0
AWAY_LIMIT_S = 300.0  # how long --wait tolerates an unreachable daemon
_EXIT_CODES = {
    TrainerState.FINISHED: 0,
    TrainerState.FAILED: 1,
    TrainerState.CANCELLED: 128 + signal.SIGTERM,
}


@verb(
    *SPEC_OPTIONS,
    *SCRIPT,
    AS_MODULE,
    option("--dry-run", "Check everything and print what would be sent."),
    option("--wait", "Wait for its end: 0 finished, 1 failed, 143 cancelled."),
    option("--parsable", "Print the id only."),
    option("--resume-from ID|DIR", "Start from the newest checkpoint of a trainer, which keeps "
           "it."),
    option("--fresh", "Set the checkpoints in its directory aside first."),
    CONTINUE_OPTION,
    ANY_OWNER_OPTION, JSON, SOCKET, context_settings={"allow_interspersed_args": False},
    cls=ContinuingCommand,
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
    module = script if is_module else ""
    if module:
        script = file_of(module, given(ctx), os.environ)
    elif ctx.params["runtime"] == COMMAND:
        script = find_command(script, os.environ)
    check_script(script)
    values = {**chosen(ctx, script), "module": module}
    has_source = resume_from is not None
    specs = _specs(script, args, values, way, has_source=has_source)
    checks = check_here(specs[0])
    warn_of_late_options(ctx, script, args)
    said = () if has_source else tuple(said_of_start(s, None, is_fresh=fresh) for s in specs)
    if dry_run:
        print_lines(*filter(None, said), err=True)
        _print_dry_run(specs, checks, as_json=as_json)
        return ExitCode.OK
    client = connect(socket_name)
    state = StartState(source=source_of(client, resume_from), is_fresh=fresh)
    views = send_all(client, specs, state)
    said = said or tuple(said_of_start(s, state.source, is_fresh=fresh) for s in specs)
    print_lines(*filter(None, said), err=True)
    for view in views if not as_json else ():
        trainer_id = view.record.trainer_id
        print_lines(trainer_id if parsable else f"Submitted trainer {trainer_id}")
    if not (as_json or parsable or wait):
        print_next_of_trainers([view.record.trainer_id for view in views], socket_name)
    if wait:
        views = tuple(wait_for_end(client, view.record.trainer_id) for view in views)
    if as_json:
        is_array = values.get("array") is not None
        print_json(listing("trainers", views) if is_array else document("trainer", views[0]))
    return _outcome(views) if wait else ExitCode.OK


def _specs(
    script: str, args: tuple[str, ...], values: dict[str, Any], way: str | None, *, has_source: bool
) -> tuple[TrainerSpec, ...]:
    """Return the trainers of a submission, checked; an array has several."""
    spec = build_spec(script, args, values, os.environ)
    has_own_dir = values.get("checkpoint_dir") is not None
    specs = specs_of(spec, values.get("array"), has_own_dir=has_own_dir)
    exported = values.get("environment", ())
    specs = tuple(marked(spec, exported, way, has_source=has_source) for spec in specs)
    for spec in specs:
        check_spec(spec)
    return specs


def _outcome(views: Sequence[TrainerView]) -> int:
    """Say how they have ended; return the code of the first that has not finished."""
    for record in (view.record for view in views):
        why = f": {shown(record.reason)}" if record.reason else ""
        print_lines(f"{record.trainer_id} {record.state}{why}", err=True)
    codes = [_EXIT_CODES[view.record.state] for view in views]
    return next((code for code in codes if code), 0)


_MOST_READ_BYTES = 16 << 20


def warn_of_late_options(ctx: click.Context, script: str, args: tuple[str, ...]) -> None:
    """Warn of our own options among the script's arguments, unless the script mentions them."""
    own = {name for param in ctx.command.params for name in param.opts if name.startswith("--")}
    late = [name for name in (argument.partition("=")[0] for argument in args) if name in own]
    text = b""
    if late:
        with open_stream(script, is_typed=True) as file:
            text = file.read(_MOST_READ_BYTES)
    for name in late:
        if name.encode() not in text:
            print_lines(
                f"warning: {shown(name)} follows {shown(script)} and is passed to it;"
                f" options of {ctx.command.name} come before the script",
                err=True,
            )


def _print_dry_run(specs: Sequence[TrainerSpec], checks: tuple[str, ...], *, as_json: bool) -> None:
    spec = specs[0]  # of an array, the others differ in index, name and directory
    more: dict[str, Any] = {"array": len(specs)} if len(specs) > 1 else {}
    if as_json:
        more |= {"arguments": [one.args for one in specs]} if more else {}
        said = {"spec": encode(spec), "checks": list(checks), **more}
        print_json({"schema": schema("dry-run"), **said})
        return
    head = {"array": f"{counted(len(specs), 'trainer')}; the first:"} if more else {}
    said = head | _worth_reading(spec)
    if differ := [one for one in specs if one.args != spec.args]:
        said |= {f"args of {one.name}": shlex.join(one.args) for one in (spec, *differ)}
    print_pairs([*said.items(), *(("ok", check) for check in checks)], 22)
    print_lines(
        "Nothing was submitted; the same command without --dry-run does it (--json shows all"
        " settings).",
        err=True,
    )


_ALWAYS = ("name", "user", "script", "args", "cwd", "interpreter", "checkpoint_dir")
_INSTEAD = frozenset({"n_min", "n_max", "sizes", "preamble"})  # told in other words


def _worth_reading(spec: TrainerSpec) -> dict[str, object]:
    """Return what is always told of a submission, and what is not as by default."""
    usual = {one.name: one.default for one in fields(spec)}
    told: dict[str, object] = {
        name: value
        for name, value in encode(spec).items()
        if name in _ALWAYS or (name not in _INSTEAD and getattr(spec, name) != usual[name])
    }
    told["args"] = shlex.join(spec.args) or "none"
    told["nodes"] = spec.nodes
    if "environment" in told:
        told["environment"] = shlex.join(f"{name}={value}" for name, value in spec.environment)
    if spec.preamble:
        told["preamble"] = f"{len(spec.preamble.encode())} bytes"
    return told


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
