"""``bftrainer study best`` and ``export``: the results of a study.

The ``bftrainer submit`` line of ``best`` has every option of the study's trainers that is not the
default, except those on when they were to start.
"""

from __future__ import annotations

import json
import shlex

from bftrainer.api.documents import document
from bftrainer.cli.options import JSON, SOCKET, option, verb
from bftrainer.cli.output import (
    print_as_it_is,
    print_csv,
    print_json,
    print_pairs,
)
from bftrainer.model.declaration import InStudy, declarations, defaults
from bftrainer.model.errors import BftError, ExitCode
from bftrainer.model.quantities import quantity
from bftrainer.model.study import PARAMETERS
from bftrainer.model.trainer import CheckpointContract, TrainerSpec
from bftrainer.study.directory import StudyDirectory, read_directory
from bftrainer.study.trial_table import SUMMARY_SCHEMA, TrialRow
from bftrainer.study.verbs.lookup import STUDY, find_path, summary_of

_COLUMNS = (
    *("number", "stage", "value", "units", "budget", "node_s", "bracket", "parent", "attempt"),
    *("began_s", "ended_s", "reason"),
)


def command_of(study: StudyDirectory, row: TrialRow) -> str:
    """Return the command line that trains a trial in full."""
    from bftrainer.study.actions import filled  # noqa: PLC0415 - slow to import

    base, document, unit = study.base, study.document, study.document.unit
    words = ["bftrainer", "submit", "-J", f"{document.name}-best"]
    words += [*base.size_words, f"--{unit}", str(document.rule_with().most)]
    words += ["--runtime", base.runtime, "--workers-per-node", str(base.workers_per_node)]
    words += ["--chdir", base.cwd]
    for name in ("curve", "preamble"):  # trainers have what those files say
        if document.submit.get(name):
            words += [f"--{name}", str(document.submit[name])]
    words += _repeated(base)
    if base.batch is not None:
        words += ["--batch", f"{base.batch.least}:{base.batch.most}"]
        words += ["--batch-per-worker", str(base.batch.per_worker), "--lr-rule", base.batch.lr_rule]
    words += _repeated(base.contract or CheckpointContract())
    for name, value in (*base.environment, (PARAMETERS, json.dumps(dict(row.parameters)))):
        words += ["--export", f"{name}={value}"]
    return shlex.join([*words, base.script, *filled(base.args, row.parameters)])


def _repeated(record: TrainerSpec | CheckpointContract) -> list[str]:
    """Return the options that the best trial's trainer has, too, unless they are as by default."""
    cls: type = type(record)
    words: list[str] = []
    for name, declaration in declarations(cls).items():
        if declaration.in_study is not InStudy.REPEATED or not declaration.options:
            continue
        value = getattr(record, name)
        if value in (None, "", defaults(cls).get(name)):
            continue
        words.append(declaration.options[0].flag)
        if value is not True:
            words.append(str(value))
    return words


@verb(
    *STUDY,
    option("--script", "Print the command that trains it fully.", name="as_script"),
    JSON, SOCKET,
    example="bftrainer study best digits --script",
)  # fmt: skip
def best(study_name: str, socket_name: str | None, *, as_script: bool, as_json: bool) -> None:
    """Print the best trial of STUDY."""
    path = find_path(study_name, socket_name)
    summary = summary_of(path, socket_name)
    row = summary.best_row
    if row is None:
        raise BftError(
            "BFT-1635",
            f"No trial of {summary.name} has reported a value yet.",
            f"See 'bftrainer study status {path}'.",
            exit_code=ExitCode.NOT_FOUND,
        )
    if as_script:
        print_as_it_is(command_of(read_directory(path), row))
    elif as_json:
        print_json(document("trial", row))
    else:
        value = "-"
        if row.value is not None:
            value = quantity(row.value, 10)
        lines: list[tuple[str, object]] = [
            ("trial", f"{row.number}, {row.stage}"),
            (summary.metric, f"{value} at {row.units} {summary.unit}"),
            *row.parameters.items(),
            ("checkpoint", row.checkpoint_dir),
        ]
        print_pairs(lines, 14)


@verb(*STUDY, JSON, SOCKET, example="bftrainer study export digits")
def export(study_name: str, socket_name: str | None, *, as_json: bool) -> None:
    """Print every trial of STUDY with its parameters; --json has all its values, too."""
    summary = summary_of(find_path(study_name, socket_name), socket_name)
    if as_json:
        print_json(document(SUMMARY_SCHEMA, summary))
        return
    names: list[str] = []
    if summary.trials:
        names = list(summary.trials[0].parameters)
    rows = []
    for row in summary.trials:
        cells = [getattr(row, column) for column in _COLUMNS]
        rows.append(cells + list(map(row.parameters.get, names)))
    print_csv([*_COLUMNS, *names], rows)
