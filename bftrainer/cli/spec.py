"""Builds the ``TrainerSpec`` of a submission: options, #BFT lines, preamble.

``--dry-run`` prints the same object that is sent to the daemon.

Only lines before the first one that is neither blank nor a comment count; an unknown option is
an error.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from bftrainer.api.admission import (
    MAIL,
    MAILERS,
    check_curve,
    check_preamble,
    check_string,
    read_request,
)
from bftrainer.api.documents import CodecError, decode, parse
from bftrainer.api.http_protocol import user_name
from bftrainer.batch import process
from bftrainer.cli.submit_options import batch_range, exported, spec_options
from bftrainer.daemon.notifier import mailer
from bftrainer.model.errors import UsageError
from bftrainer.model.preamble import MAX_BYTES, NOT_STARTED, under, why_not_started
from bftrainer.model.trainer import CheckpointContract, Launch, TrainerSpec
from milp.problem import Curve

TIMEOUT_S = 120.0  # torch on a cold parallel file system
OUTPUT_CAP_BYTES = 1024 * 1024
_WHICH = 'command -v python || command -v python3 || { echo "there is no python" >&2; exit 1; }'


def read_preamble(path: str | None) -> str:
    """Return the text of the file; "" without one.

    Raises:
        UsageError: BFT-1060.
    """
    if path is None:
        return ""
    advice = "Give the path of a shell file in UTF-8 of at most 64 KiB."
    try:
        with open(path, "rb") as stream:  # noqa: PTH123 - read with a limit
            text = stream.read(MAX_BYTES + 1).decode()
    except UnicodeDecodeError as problem:
        raise UsageError("BFT-1060", f"The preamble {path} is not UTF-8.", advice) from problem
    except (OSError, ValueError) as problem:  # a NUL in the path
        why = getattr(problem, "strerror", None) or problem
        cause = f"The preamble {path} cannot be read: {why}."
        raise UsageError("BFT-1060", cause, advice) from problem
    check_preamble(text)
    if not text.strip():
        raise UsageError("BFT-1060", f"The preamble {path} is empty.", advice)
    return text


def run_under(
    text: str, argv: Sequence[str], *, environment: Iterable[tuple[str, str]] = (), cwd: str
) -> process.Completed:
    """Run a command as on a node: under this preamble, in ``cwd``; without one, in /.

    Raises:
        UsageError: BFT-1061, the preamble failed.
    """
    with tempfile.NamedTemporaryFile("w", prefix="bft-preamble-", suffix=".sh") as file:
        file.write(text)
        file.flush()
        done = process.run(
            under(file.name, argv) if text else argv,
            timeout_s=TIMEOUT_S,
            env={**os.environ, **dict(environment)},
            # A torch.py in our working directory must not be imported.
            cwd=Path(cwd if text and Path(cwd).is_dir() else "/"),
            output_cap_bytes=OUTPUT_CAP_BYTES,
        )
        if text and done.returncode == NOT_STARTED:
            code, _, cause = why_not_started(done.stderr, done.returncode, file.name).partition(
                ": "
            )
            raise UsageError(
                code,
                f"{cause.rstrip('.')}.",
                "Run the file here with bash and correct it; its last command must succeed.",
            )
    return done


def python_under(text: str, environment: Iterable[tuple[str, str]], cwd: str) -> str:
    """Return the Python that a preamble puts first into PATH.

    Raises:
        UsageError: BFT-1006, there is none; BFT-1061.
    """
    argv = ("/bin/sh", "-c", _WHICH)
    done = run_under(text, argv, environment=environment, cwd=cwd)
    found = (done.stdout.split() or [""])[-1]
    if not done.is_ok or not found.startswith("/"):
        raise UsageError(
            "BFT-1006",
            "There is no python in PATH under the preamble.",
            "Activate an environment in it, or name a Python with --interpreter or --venv.",
        )
    return found


MAX_CURVE_BYTES = 1024 * 1024
COMMAND = "command"  # the runtime whose script is any program
SEVERAL_PER_NODE = "torch"  # the runtime that may have several workers on a node


def build_spec(
    script: str, args: Sequence[str], values: Mapping[str, Any], environ: Mapping[str, str]
) -> TrainerSpec:
    """Make the spec; paths become absolute, nothing is resolved or created.

    A preamble is run to find its Python if no other is named.
    """
    path, args = _absolute("the script", script), tuple(args)
    preamble = read_preamble(values.get("preamble"))
    environment = exported(values["environment"], environ)
    contract = _contract(values)
    name = values["name"] or Path(path).stem
    cwd = _absolute("the working directory", values["cwd"] or ".")
    checkpoint_dir = values["checkpoint_dir"]
    if checkpoint_dir is None:
        checkpoint_dir = str(Path(cwd) / f"bft-{_file_name(name)}")
    n_min, n_max = values["sizes"]
    interpreter = ""
    is_named = bool(values["interpreter"] or values["venv"])
    if is_named or not preamble:
        interpreter = _interpreter(values, environ)
    elif values["runtime"] != COMMAND:
        interpreter = python_under(preamble, environment, cwd)
    if values["runtime"] == COMMAND:
        if is_named:
            path, args = interpreter, (path, *args)
        interpreter = ""  # the command needs none
    return TrainerSpec(
        name=name,
        user=user_name(os.geteuid()),
        script=path,
        args=args,
        cwd=cwd,
        interpreter=interpreter,
        n_min=n_min,
        n_max=n_max,
        workers_per_node=_workers_per_node(values),
        gres=values["gres"],
        constraint=values["constraint"],
        epochs=values["epochs"],
        samples=values["samples"],
        checkpoint_dir=_absolute("the checkpoint directory", checkpoint_dir),
        checkpoint_interval_s=values["checkpoint_interval_s"],
        curve=None if values["curve"] == "auto" else read_curve(values["curve"]),
        runtime=values["runtime"],
        weight=values["weight"],
        environment=environment,
        max_failures=values.get("max_failures"),
        contract=contract,
        backend=values["backend"],
        after=values.get("after") or (),
        after_any=values.get("after_any") or (),
        begin_s=values.get("begin_s"),
        hold=bool(values.get("hold")),
        preamble=preamble,
        notify=_notification(values.get("notify") or "", environ),
        batch=batch_range(values),
        account=values.get("account") or "",
    )


def _notification(text: str, environ: Mapping[str, str]) -> str:
    """Return what is sent of --notify: an address, or a command with its absolute path."""
    if text == "mail" or text.startswith(MAIL):
        if not mailer():
            raise UsageError(
                "BFT-1064",
                f"This host cannot send mail: it has none of {', '.join(MAILERS)}.",
                "Name a command: --notify '/path/to/script ARGS'.",
            )
        address = text.removeprefix("mail").removeprefix(":")
        return f"{MAIL}{address or user_name(os.geteuid())}"
    if not text.strip():
        return ""
    program, blank, rest = text.strip().partition(" ")
    found = shutil.which(program, path=environ.get("PATH"))
    if found is None:
        raise UsageError(
            "BFT-1066",
            f"--notify: {program[:200]} cannot be run here.",
            "Name an executable file, or mail[:ADDRESS].",
        )
    return f"{shlex.quote(os.path.abspath(found))}{blank}{rest}"  # noqa: PTH100 - not resolved


def _workers_per_node(values: Mapping[str, Any]) -> int:
    """Return the option's value; by default one per requested GPU if the runtime allows it."""
    if values["workers_per_node"] is not None:
        return int(values["workers_per_node"])
    n_gpus = read_request(values["gres"], values["constraint"]).n_gpus
    return max(1, n_gpus) if values["runtime"] == SEVERAL_PER_NODE else 1


def find_command(name: str, environ: Mapping[str, str]) -> str:
    """Return the path of a command, looked up as in a shell."""
    if os.sep in name or os.path.lexists(name):
        return name
    return shutil.which(name, path=environ.get("PATH")) or name


def _contract(values: Mapping[str, Any]) -> CheckpointContract | None:
    """Return the checkpoint contract; None if no option was given and none is needed."""
    names = [f.name for f in dataclasses.fields(CheckpointContract)]
    said = {name: values[name] for name in names if values.get(name) is not None}
    if not said and values["runtime"] != COMMAND:
        return None
    if "launch" in said:
        said["launch"] = Launch(said["launch"])
    return CheckpointContract(**said)


def _absolute(what: str, path: str) -> str:
    check_string(what, path)
    # Not resolved: the python link identifies a virtual environment.
    return os.path.abspath(path)  # noqa: PTH100


def _file_name(name: str) -> str:
    """Return the name as a safe component of a path."""
    return re.sub(r"[^\w.-]", "_", name)[:64]


def _interpreter(values: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    interpreter, venv = values["interpreter"], values["venv"]
    if interpreter and venv:
        raise UsageError(
            "BFT-1006", "Interpreter and virtual environment are both given.", "Give one of them."
        )
    if interpreter:
        return _absolute("the interpreter", interpreter)
    # Default: the active environment, else our own Python.
    prefix = venv or environ.get("VIRTUAL_ENV") or environ.get("CONDA_PREFIX")
    if prefix:
        return _absolute("the interpreter", str(Path(prefix) / "bin" / "python"))
    return sys.executable


def read_curve(path: str) -> Curve:
    """Read ``{"sizes": [...], "samples_per_s": [...]}``.

    Raises:
        UsageError: BFT-1015 saying what is wrong with the file.
    """
    example = 'Write {"sizes": [1, 2, 4], "samples_per_s": [100, 190, 350]}, or use auto.'
    try:
        with open(path, "rb") as stream:  # noqa: PTH123 - read with a limit
            text = stream.read(MAX_CURVE_BYTES + 1)
        if len(text) > MAX_CURVE_BYTES:
            raise UsageError("BFT-1015", f"The curve {path} is larger than 1 MiB.", example)
        curve = decode(Curve, parse(text))
        check_curve(curve)
    except OSError as problem:
        cause = f"The curve {path} cannot be read: {problem.strerror}."
        raise UsageError("BFT-1015", cause, example) from problem
    except CodecError as problem:
        raise UsageError("BFT-1015", f"The curve {path}: {problem}.", example) from problem
    except ValueError as problem:  # a NUL in the path
        raise UsageError("BFT-1015", f"The curve cannot be read: {problem}.", example) from problem
    return curve


PREFIX = "#BFT"
_MAX_LINE_BYTES = 64 * 1024


def read_directives(script: str) -> dict[str, Any]:
    """Return the options that the script's head sets, by parameter name.

    Raises:
        UsageError: BFT-1003 with file and line; a value that is wrong in itself keeps
            its own code.
    """
    parser = click.Command("directives", params=list(spec_options()), add_help_option=False)
    values: dict[str, Any] = {}
    for number, text in _directive_lines(script):
        where = f"{script}:{number}"
        try:
            tokens = shlex.split(text, comments=True)
            with parser.make_context(PREFIX, tokens, allow_interspersed_args=False) as ctx:
                for name, value in given(ctx).items():
                    merge(values, name, value)
        except ValueError as problem:
            raise _refusal(where, f"{problem}.") from problem
        except click.UsageError as problem:
            raise _refusal(where, problem.format_message()) from problem
        except UsageError as problem:
            raise UsageError(
                problem.code, f"{where}: {problem.cause}", problem.next_step
            ) from problem
    return values


def given(ctx: click.Context) -> dict[str, Any]:
    """Return the parameters given explicitly, without defaults."""
    return {
        name: value
        for name, value in ctx.params.items()
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }


def merge(values: dict[str, Any], name: str, value: Any) -> None:
    """Add a value: later values win, repeated ``--export`` options accumulate."""
    earlier = values.get(name)
    if name == "environment" and earlier:
        value = (*earlier, *value)
    if name in ("interpreter", "venv"):  # alternatives
        values.pop("interpreter", None)
        values.pop("venv", None)
    values[name] = value


def _directive_lines(script: str) -> Iterator[tuple[int, str]]:
    with open(script, "rb") as stream:  # noqa: PTH123 - readline with a limit
        number = 0
        while line := stream.readline(_MAX_LINE_BYTES):
            number += 1
            if len(line) == _MAX_LINE_BYTES:
                return  # no comment is this long
            text = os.fsdecode(line.removeprefix(b"\xef\xbb\xbf")).rstrip("\r\n")
            if text.strip() and not text.lstrip().startswith("#"):
                return
            if text == PREFIX or text.startswith((f"{PREFIX} ", f"{PREFIX}\t")):
                yield number, text.removeprefix(PREFIX)


def _refusal(where: str, problem: str) -> UsageError:
    return UsageError(
        "BFT-1003",
        f"{where}: {problem}",
        f"Correct this {PREFIX} line; 'bftrainer submit -h' lists the options.",
    )
