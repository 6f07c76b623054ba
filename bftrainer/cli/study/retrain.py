"""The command line that trains a trial's parameters to the full budget: ``study best --script``.

It has every option that the study's trainers have and that is not the default, except when they
were to start.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

from bftrainer.model.study import PARAMETERS
from bftrainer.model.trainer import CheckpointContract, TrainerSpec
from bftrainer.study.arguments import filled
from bftrainer.study.directory import StudyDirectory
from bftrainer.study.outcome import TrialRow


def command_of(study: StudyDirectory, row: TrialRow) -> str:
    """Return the command line."""
    base, document, unit = study.base, study.document, study.document.unit
    words = ["bftrainer", "submit", "-J", f"{document.name}-best"]
    words += ["--nodes", f"{base.n_min}:{base.n_max}", f"--{unit}", str(document.rule_with().most)]
    words += ["--runtime", base.runtime, "--workers-per-node", str(base.workers_per_node)]
    words += ["--chdir", base.cwd]
    # Trainers have what those files said.
    files = [(f"--{name}", document.submit.get(name)) for name in ("curve", "preamble")]
    for option, value in [*files, *_options(base)]:
        words += [option, str(value)] if value not in (None, "") else []
    for name, value in (*base.environment, (PARAMETERS, json.dumps(dict(row.parameters)))):
        words += ["--export", f"{name}={value}"]
    return shlex.join([*words, base.script, *filled(base.args, row.parameters)])


def _options(base: TrainerSpec) -> Iterator[tuple[str, object]]:
    """Return options with their values; None or "": the default."""
    usual = TrainerSpec(name="", user="", script="")
    for option, name in (
        ("--interpreter", "interpreter"),
        ("--gres", "gres"),
        ("--constraint", "constraint"),
        ("--account", "account"),
        ("--checkpoint-interval", "checkpoint_interval_s"),
        ("--weight", "weight"),
        ("--max-failures", "max_failures"),
        ("--notify", "notify"),
        ("--backend", "backend"),
    ):
        value = getattr(base, name)
        yield option, None if value == getattr(usual, name) else value
    if base.batch is not None:
        yield "--batch", f"{base.batch.least}:{base.batch.most}"
        yield "--batch-per-worker", base.batch.per_worker
        yield "--lr-rule", base.batch.lr_rule
    contract, plain = base.contract or CheckpointContract(), CheckpointContract()
    for option, name in (
        ("--launch", "launch"),
        ("--checkpoint-signal", "stop_signal"),
        ("--save-signal", "save_signal"),
        ("--checkpoint-status", "saved_status"),
        ("--checkpoint-grace", "grace_s"),
    ):
        value = getattr(contract, name)
        yield option, None if value == getattr(plain, name) else value
