"""The file of ``--output`` and ``--error``; what a submission knows of its name is filled in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bftrainer.api.service import user_name
from bftrainer.cli.array_table import INDEX
from bftrainer.cli.output import print_lines
from bftrainer.ground.output_place import UnknownPlaceError, filled
from bftrainer.model.columns import shown
from bftrainer.model.errors import UsageError
from bftrainer.model.trainer import TrainerSpec

_LATER: Final = "j"  # the daemon gives it


def output_pattern(values: Mapping[str, Any], environ: Mapping[str, str]) -> str | None:
    """Return the absolute pattern of the file that a trainer's output is copied to; None: none.

    Standard error goes where standard output goes, so that both stay in order.
    """
    output, error = values["output"], values["error"]
    if output is not None and error not in (None, output):
        print_lines(
            f"note: --error {shown(error)} stays empty: standard error is in --output, in order",
            err=True,
        )
    pattern = output if output is not None else error
    if pattern in (None, "", os.devnull):
        return None
    directory = environ.get("PWD", "")  # as the user went there: links are not resolved
    is_named = directory.startswith("/") and Path(directory).exists()
    if not is_named or not Path(directory).samefile(Path.cwd()):
        directory = os.getcwd()  # noqa: PTH109 - not resolved
    return str(Path(directory) / pattern)


def with_output(spec: TrainerSpec) -> TrainerSpec:
    """Return the spec of one trainer with the file's name as far as it is known.

    Raises:
        UsageError: BFT-1016, the name has a place that nobody fills.
    """
    if spec.output is None:
        return spec
    user, index = user_name(os.geteuid()), dict(spec.environment).get(INDEX, "0")
    values = {"x": spec.name.replace("/", "_"), "u": user, "a": index, "A": spec.array_id}
    pattern = spec.output
    if not spec.array_id:  # as for sbatch, it is the id then
        pattern = pattern.replace("%A", "%j")
    try:
        return replace(spec, output=filled(pattern, values, _LATER))
    except UnknownPlaceError as problem:
        raise UsageError(
            "BFT-1016",
            f"--output has {problem}, which nobody fills.",
            "Write %j (id), %x (name), %a (index), %A (array), %u (user) or %% (a percent sign).",
        ) from problem
