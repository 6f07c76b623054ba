"""The ``TrainerSpec`` that is made of the options of ``submit``.

``--dry-run`` prints the same object that is sent to the daemon.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bftrainer.api.admission import check_string, read_request
from bftrainer.api.service import user_name
from bftrainer.cli.container import fitting, mounts_with, python_in, text_with
from bftrainer.cli.curve_file import fitting_curve
from bftrainer.cli.environment import exported
from bftrainer.cli.notification import notification, told_events
from bftrainer.cli.option_values import NEXT_BATCH
from bftrainer.cli.output_pattern import output_pattern
from bftrainer.cli.preamble import python_under, read_preamble
from bftrainer.cli.sbatch_values import Dependency
from bftrainer.cli.sizes import AskedSizes, asked_sizes
from bftrainer.cli.submit_options import option_defaults
from bftrainer.ground.main_module import described
from bftrainer.ground.protocol import NAN_UPDATES
from bftrainer.ground.regular_file import ANY_OWNER
from bftrainer.model.declaration import declarations
from bftrainer.model.errors import UsageError
from bftrainer.model.trainer import (
    ADASCALE,
    BatchRange,
    CheckpointContract,
    Launch,
    TrainerSpec,
)

COMMAND: Final = "command"  # the runtime whose script is any program
SEVERAL_PER_NODE: Final = "torch"  # the runtime that may have several workers on a node


def build_spec(
    script: str, args: Sequence[str], chosen: Mapping[str, Any], environ: Mapping[str, str]
) -> TrainerSpec:
    """Make the spec of the options chosen; paths become absolute, nothing is resolved or created.

    A preamble is run to find its Python if no other is named.
    """
    values = {**option_defaults(), **chosen}
    path, args = _absolute("the script", script), tuple(args)
    preamble, module = read_preamble(values["preamble"]), values.get("module", "")
    environment = _environment(values, environ)
    if values["container"]:
        values["container_mounts"] = mounts_with(values["container_mounts"], values["venv"])
    contract, depends = _contract(values), values["dependency"] or Dependency()
    name = values["name"] or module.rpartition(".")[2] or Path(path).stem
    cwd = working_directory(values)
    size = asked_sizes(values, has_nodes="sizes" in chosen)
    n_min, n_max, sizes = size.sizes
    per_node, curve = _workers_per_node(values, size), None
    if values["curve"] != "auto":
        curve = fitting_curve(values["curve"], size, per_node)
    interpreter, is_named = "", bool(values["interpreter"] or values["venv"] or module)
    if is_named or values["runtime"] != COMMAND:
        interpreter = interpreter_of(values, preamble, environment, cwd, environ, path)
    if values["runtime"] == COMMAND:
        if is_named:
            args = (path, *args)
            if module:
                args = ("-m", module, *args[1:])
            path = interpreter
        interpreter = ""  # the command needs none
    elif module:
        environment = (*environment, described(module, path))
    return TrainerSpec(
        **_taken_as_they_are(values) | {"gres": size.gres},
        name=name,
        user=user_name(os.geteuid()),
        script=path,
        args=args,
        cwd=cwd,
        interpreter=interpreter,
        n_min=n_min,
        n_max=n_max,
        sizes=sizes,
        gpus_per_unit=size.gpus_per_unit,
        workers_per_node=per_node,
        checkpoint_dir=_checkpoint_dir(values["checkpoint_dir"], name, cwd),
        curve=curve,
        environment=environment,
        contract=contract,
        after=_united(values["after"], depends.after),
        after_any=_united(values["after_any"], depends.after_any),
        preamble=preamble,
        notify=notification(values, environ),
        notify_at=told_events(values),
        output=output_pattern(values, environ),
        batch=batch_range(values),
    )


def _environment(
    values: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """Return the variables of the workers."""
    environment = exported(values["environment"], environ)
    if values["container"]:
        environment = fitting(environment, values["environment"])
    if environ.get(ANY_OWNER) == "1":
        environment = (*environment, (ANY_OWNER, "1"))  # workers look for themselves
    if values["allow_nan"]:
        environment = (*environment, (NAN_UPDATES, "0"))
    return environment


def _checkpoint_dir(directory: str | None, name: str, cwd: str) -> str:
    """Return the directory of checkpoints: by default one named after the trainer."""
    if directory is None:  # a safe component of a path
        safe = re.sub(r"[^\w.-]", "_", name)[:64]
        directory = str(Path(cwd) / f"bft-{safe}")
    return _absolute("the checkpoint directory", directory)


def _taken_as_they_are(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that have the values of their options."""
    fields = {}
    for name, declaration in declarations(TrainerSpec).items():
        for option in declaration.options:
            if option.is_value:
                fields[name] = values[option.parameter or name]
    return fields


def working_directory(values: Mapping[str, Any]) -> str:
    """Return the directory in which the trainer is to run."""
    return _absolute("the working directory", values["cwd"] or ".")


def interpreter_of(
    values: Mapping[str, Any],
    preamble: str,
    environment: Iterable[tuple[str, str]],
    cwd: str,
    environ: Mapping[str, str],
    script: str = "/",
) -> str:
    """Return the Python that runs the script: as named, else under the preamble, else the active.

    In a container it is that of the image.

    Raises:
        UsageError: BFT-1006; BFT-1082, BFT-1084, BFT-1085 of a container.
    """
    if values["interpreter"] or values["venv"] or not (preamble or values["container"]):
        return _interpreter(values, environ)
    if values["container"]:
        text = text_with(preamble, values, script=script, cwd=cwd, environment=environment)
        return python_in(text, values, environment, cwd)
    return python_under(preamble, environment, cwd)


def _united(ids: tuple[str, ...] | None, further_ids: tuple[str, ...]) -> tuple[str, ...]:
    """Return the trainers that two options name, each once."""
    return tuple(dict.fromkeys((*(ids or ()), *further_ids)))


def _workers_per_node(values: Mapping[str, Any], size: AskedSizes) -> int:
    """Return the option's value; by default one per requested GPU if the runtime allows it."""
    if values["workers_per_node"] is not None:
        return int(values["workers_per_node"])
    n_gpus = read_request(size.gres, values["constraint"], size.gpus_per_unit).n_gpus
    if values["runtime"] != SEVERAL_PER_NODE:
        return 1
    return max(1, n_gpus)


def find_command(name: str, environ: Mapping[str, str]) -> str:
    """Return the path of a command, looked up as in a shell."""
    if os.sep in name or os.path.lexists(name):
        return name
    return shutil.which(name, path=environ.get("PATH")) or name


def _contract(values: Mapping[str, Any]) -> CheckpointContract | None:
    """Return the checkpoint contract; None if no option was given and none is needed."""
    fields = {}
    for name in declarations(CheckpointContract):
        if values[name] is not None:
            fields[name] = values[name]
    if not fields and values["runtime"] != COMMAND:
        return None
    if "launch" in fields:
        fields["launch"] = Launch(fields["launch"])
    return CheckpointContract(**fields)


def _absolute(subject: str, path: str) -> str:
    check_string(subject, path)
    # Not resolved: the python link identifies a virtual environment.
    return os.path.abspath(path)  # noqa: PTH100


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


def batch_range(values: Mapping[str, Any]) -> BatchRange | None:
    """Return the range; None if it was not given.

    Raises:
        UsageError: BFT-1067, an option is missing.
    """
    limits, per_worker, rule = values["batch"], values["batch_per_worker"], values["lr_rule"]
    if limits is None and per_worker is None and rule is None:
        return None
    if limits is None:
        raise UsageError("BFT-1067", "--batch is missing.", NEXT_BATCH)
    if per_worker is None:
        raise UsageError("BFT-1067", "--batch-per-worker is missing.", NEXT_BATCH)
    if rule is None and values["runtime"] == "torch":
        rule = ADASCALE
    elif rule is None:
        rule = "none"
    smallest, largest = limits
    return BatchRange(least=smallest, most=largest, per_worker=per_worker, lr_rule=rule)
