"""Builds the ``TrainerSpec`` of a submission from option values and the environment.

``--dry-run`` prints the same object that is sent to the daemon.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bftrainer.api.admission import check_curve, check_string, read_request
from bftrainer.api.documents import CodecError, decode, parse
from bftrainer.api.doorman import user_name
from bftrainer.api.notification import MAIL, MAILERS
from bftrainer.cli.export import exported
from bftrainer.cli.preamble import python_under, read_preamble
from bftrainer.cli.submit_options import batch_range
from bftrainer.daemon.notifier import mailer
from bftrainer.model.errors import UsageError
from bftrainer.model.trainer import CheckpointContract, Launch, TrainerSpec
from milp.problem import Curve

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
