"""Makes the specification that the trainers of all trials of a study share.

The document's ``submit`` section has the options of ``bftrainer submit``; #BFT lines of the script
count, too, but not for what the study decides.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click

from bftrainer.api.admission import check_spec
from bftrainer.cli.checks import check_here, check_script
from bftrainer.cli.spec import COMMAND, build_spec, find_command, given, merge, read_directives
from bftrainer.cli.submit_options import parse_sizes, spec_options
from bftrainer.fleet.runtimes.base import inherits
from bftrainer.model.errors import UsageError
from bftrainer.model.trainer import TrainerSpec
from bftrainer.study.actions import check_places
from bftrainer.study.document import StudyDocument

# What the study decides for each trial.
_NOT_OURS = ("sizes", "epochs", "samples", "name", "checkpoint_dir", "hold", "array")
_OPTION = re.compile(r"--([a-z][a-z-]*)")
_KEYS = {"--checkpoint-dir": "--dir", "--samples": "'unit: samples'"}


def base_spec(document: StudyDocument, script: str, args: Sequence[str]) -> TrainerSpec:
    """Return the trainer; its arguments still have their places (BFT-1627, BFT-1628)."""
    section = _section(document)
    if section.get("runtime") == COMMAND:
        script = find_command(script, os.environ)
    check_script(script)
    defaults = click.Command("defaults", params=list(spec_options())).make_context("", []).params
    written = {k: v for k, v in read_directives(script).items() if k not in _NOT_OURS}
    for name, value in section.items():
        merge(written, name, value)
    values = {**defaults, "interpreter": None, "venv": None, **written}
    if values["interpreter"]:
        values["interpreter"] = find_command(values["interpreter"], os.environ)
    values["sizes"] = parse_sizes(str(document.nodes))
    values["name"] = document.name
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


def check_trial(spec: TrainerSpec) -> tuple[str, ...]:
    """Check a trial's trainer on this machine; return a sentence for each check."""
    check_spec(spec)
    try:
        return check_here(spec)
    except UsageError as error:
        # What 'submit' says of an option is in a study said of a key.
        step = _OPTION.sub(_as_key, error.next_step)
        raise UsageError(error.code, error.cause, step, exit_code=error.exit_code) from error


def _as_key(found: re.Match[str]) -> str:
    return _KEYS.get(found[0], f"'{found[1]}' (under submit in the study)")


def _section(document: StudyDocument) -> dict[str, Any]:
    """Return the options of the section ``submit``, as the command line would give them."""
    tokens: list[str] = []
    for name, value in document.submit.items():
        for one in value if isinstance(value, tuple) else (value,):
            tokens += [f"--{name.replace('_', '-')}", *([] if one is True else [str(one)])]
    parser = click.Command("submit", params=list(spec_options()), add_help_option=False)
    try:
        with parser.make_context("submit", tokens) as ctx:
            values = given(ctx)
    except click.UsageError as problem:
        raise _refusal(problem.format_message()) from problem
    if wrong := sorted(values.keys() & set(_NOT_OURS)):
        raise _refusal(f"{wrong[0]} is decided by the study")
    return values


def _refusal(problem: str) -> UsageError:
    return UsageError(
        "BFT-1628",
        f"submit: {problem}{'' if problem.endswith(('.', '?', ')')) else '.'}",
        "Correct this section; 'bftrainer submit -h' lists the options.",
    )
