"""What is declared of a trainer's fields, and that the rest follows from it.

The worked example of CONTRIBUTING.md is tried in a process of its own: the field that the page
shows is written into a copy of the module, and nothing else is changed.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import typing
from pathlib import Path
from typing import Any

import pytest

import bftrainer
from bftrainer.api.admission import check_spec
from bftrainer.api.privacy import HIDDEN, for_peer
from bftrainer.api.service import Peer
from bftrainer.batch import process
from bftrainer.cli.option_values import converter
from bftrainer.cli.submit_options import (
    SPEC_OPTIONS,
    parameters_of_no_study,
    parameters_of_tries,
)
from bftrainer.ground.protocol import WorkerConfig, to_body
from bftrainer.model.declaration import Disclosure, declarations
from bftrainer.model.errors import UsageError
from bftrainer.model.study import TrialTag
from bftrainer.model.trainer import TrainerRecord, TrainerState, as_decided
from bftrainer.model.trainer_spec import (
    IN_HELP,
    BatchRange,
    CheckpointContract,
    TrainerSpec,
)
from bftrainer.model.views import TrainerView

ROOT = Path(__file__).parents[3]
MODULE = Path(bftrainer.__file__).parent / "model" / "trainer_spec.py"
BEFORE = "    # Not written while unused; CONTRIBUTING.md.\n"
DECLARING: tuple[type, ...] = (TrainerSpec, BatchRange, CheckpointContract)
# Sizes have a check of their own (BFT-1002).
WITHOUT_RANGE = {"n_min", "n_max"}
# Of a worker's configuration, what is not a trainer's field as it is.
OF_WORKERS = {
    *("trainer_id", "worker_id", "node", "environment", "log_path", "address", "incarnation"),
    *("member", "local_rank", "gpus"),
}
# Runs with the copy in place of the module, whose path it gets.
TRIAL = """
import importlib.util, json, sys
from types import SimpleNamespace
name = "bftrainer.model.trainer_spec"
about = importlib.util.spec_from_file_location(name, sys.argv[1])
sys.modules[name] = module = importlib.util.module_from_spec(about)
about.loader.exec_module(module)
from dataclasses import replace
from bftrainer.api.admission import check_spec
from bftrainer.api.documents import encode
from bftrainer.api.privacy import for_peer
from bftrainer.api.service import Peer
from bftrainer.cli.spec import build_spec
from bftrainer.study.verbs.results import _repeated
from bftrainer.study.verbs.run import _section
from bftrainer.cli.submit_options import SPEC_OPTIONS, parameters_of_tries, read_directives
from bftrainer.fleet.runtimes.base import worker_config
from bftrainer.model.errors import UsageError
from bftrainer.model.trainer import TrainerRecord, TrainerState, as_decided
from bftrainer.model.views import TrainerView
sys.path.insert(0, sys.argv[2])
import write_json_fields

script = sys.argv[3]
spec = build_spec(script, (), {"runtime": "command", **read_directives(script)}, {})
record = TrainerRecord(trainer_id="t1", spec=spec, state=TrainerState.QUEUED, submitted_s=0.0)
view = TrainerView(record=record, planned_nodes=(), requested_nodes=(), observed_nodes=())
seen = for_peer(view, Peer(uid=4711, user="stranger", pid=1))
config = worker_config(
    record, worker_id="w1", node="n1", address="a", incarnation=1, log_path="/l"
)
refusals = []
for norm in (0.0, 2e6, float("nan")):
    try:
        check_spec(replace(spec, gradient_clip=norm))
    except UsageError as problem:
        refusals.append([problem.code, problem.cause, problem.next_step])
check_spec(spec)
last = SPEC_OPTIONS[-1]
meanings = {field: text for field, _, text in write_json_fields.fields(type(spec))}
print(json.dumps({
    "help": [last.opts, last.metavar, last.help, last.type.name],
    "spec": encode(spec)["gradient_clip"],
    "of the journal": sorted(type(spec).ADDED),
    "refusals": refusals,
    "is tried": "gradient_clip" in parameters_of_tries(),
    "study": _section(SimpleNamespace(submit={"gradient_clip": 0.5})),
    "best": _repeated(spec),
    "seen": seen.record.spec.gradient_clip,
    "worker": dict(config.environment)["BFT_GRADIENT_CLIP"],
    "decided": as_decided(record).spec.gradient_clip,
    "meaning": meanings["gradient_clip"],
}))
"""


def test_the_worked_example_needs_one_declaration(tmp_path: Path) -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    section = page.partition("## Add an option to `submit`")[2].partition("\n## ")[0]
    (field,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    text = MODULE.read_text()
    assert text.count(BEFORE) == 1
    copy, script = tmp_path / "trainer_spec.py", tmp_path / "train.sh"
    copy.write_text(text.replace(BEFORE, field + BEFORE))
    script.write_text("#!/bin/sh\n#BFT --gradient-clip 2.5\n")
    places = (str(copy), str(ROOT / "scripts"), str(script))
    completed = process.run([sys.executable, "-c", TRIAL, *places], timeout_s=120)
    assert completed.is_ok, completed.stderr
    refusal = "It must be a number from 1e-06 to 1e+06."
    assert json.loads(completed.stdout) == {
        "help": [
            ["--gradient-clip"],
            "NORM",
            "Cut the gradient's norm to it before each update.",
            "float",
        ],
        "spec": 2.5,
        "of the journal": [
            *(
                "account",
                "comment",
                "container",
                "container_mounts",
                "container_runtime",
                "gpus_per_unit",
                "gradient_clip",
                "notify_at",
                "output",
                "rescale_rest_s",
                "seed",
                "sizes",
                "steps",
                "time_limit_s",
                "trial",
            )
        ],
        "refusals": [
            ["BFT-1016", "--gradient-clip is 0.0.", refusal],
            ["BFT-1016", "--gradient-clip is 2000000.0.", refusal],
            ["BFT-1016", "--gradient-clip is nan.", refusal],
        ],
        "is tried": True,
        "study": {"gradient_clip": 0.5},
        "best": ["--gradient-clip", "2.5"],
        "seen": 2.5,
        "worker": "2.5",
        "decided": None,
        "meaning": "the gradient's norm is cut to it before each update; None: it is not",
    }


def test_every_field_says_who_sees_it_and_every_number_has_a_range() -> None:
    assert set(declarations(TrainerSpec)) == {f.name for f in dataclasses.fields(TrainerSpec)}
    hints = typing.get_type_hints(TrainerSpec)
    for name, declaration in declarations(TrainerSpec).items():
        if hints[name] in (int, float, int | None, float | None) and name not in WITHOUT_RANGE:
            assert declaration.minimum is not None, name
            assert declaration.maximum is not None, name


def test_parts_declare_nothing_that_is_read_of_trainers_alone() -> None:
    for cls in (BatchRange, CheckpointContract):
        for name, declaration in declarations(cls).items():
            assert (declaration.minimum, declaration.maximum) == (None, None), name
            assert declaration.longest_bytes is None, name
            assert declaration.disclosure is Disclosure.ALL, name
            assert not declaration.is_path, name
            assert not declaration.is_tried, name
            assert not declaration.variable, name


def test_the_help_names_each_declared_option_once_and_converters_exist() -> None:
    parts = [
        part
        for cls in DECLARING
        for declaration in declarations(cls).values()
        for part in declaration.options
    ]
    flags = [part.flag for part in parts]
    assert len(flags) == len(set(flags))
    assert set(IN_HELP) <= set(flags)
    assert [option.opts[-1] for option in SPEC_OPTIONS][: len(IN_HELP)] == list(IN_HELP)
    for part in parts:
        if part.takes not in ("", "flag"):
            assert callable(converter(part.takes))


def test_studies_and_tries_take_what_they_took() -> None:
    assert parameters_of_no_study() == {
        *("sizes", "gpus", "epochs", "samples", "steps", "name", "checkpoint_dir", "hold", "array"),
        *("time_limit_s", "output", "error"),
    }
    assert parameters_of_tries() == {
        *("cwd", "interpreter", "venv", "environment", "preamble"),
        *("epochs", "samples", "steps", "seed", "workers_per_node", "allow_nan"),
        *("container", "container_mounts", "container_runtime"),
    }


def test_workers_have_all_that_is_declared_to_reach_them() -> None:
    declared = [
        declaration
        for cls in DECLARING
        for declaration in declarations(cls).values()
        if declaration.worker
    ]
    names = [declaration.worker for declaration in declared]
    assert len(names) == len(set(names))
    assert set(names) | OF_WORKERS == {field.name for field in dataclasses.fields(WorkerConfig)}
    body = to_body(WorkerConfig(trainer_id="t1", worker_id="w1", node="n1", script="/s.py"))
    for declaration in declared:
        if declaration.since and declaration.worker != "seed":  # older than it as a trainer's field
            assert declaration.worker not in body, "agents of the release before refuse it"


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"seed": 2**32}, "--seed is 4294967296."),
        ({"array_limit": 0}, "--array % is 0."),
        ({"account": "a" * 256}, "The account has 256 bytes; the limit is 255."),
        ({"runtime": "a" * 4097}, "The runtime has 4097 bytes; the limit is 4096."),
        ({"interpreter": "bin/python"}, "The interpreter 'bin/python' is not absolute."),
    ],
)
def test_errors_name_fields_as_they_are_declared(changes: dict[str, Any], cause: str) -> None:
    spec = TrainerSpec(name="n", user="u", script="/s.py", **changes)
    with pytest.raises(UsageError) as caught:
        check_spec(spec)
    assert caught.value.cause == cause


def test_strangers_and_decisions_see_nothing_that_is_the_users_alone() -> None:
    spec = TrainerSpec(
        name="n", user="u", script="/s1.py", args=("s2",), cwd="/s3", interpreter="/s4",
        checkpoint_dir="/s5", environment=(("TOKEN", "s6"),), preamble="s7", notify="/s8",
        trial=TrialTag(study="s9", number=1), after=("t71",), after_any=("t72",), begin_s=73.0,
        array_id="a74", array_limit=75, seed=76,
    )  # fmt: skip
    record = TrainerRecord(trainer_id="t1", spec=spec, state=TrainerState.QUEUED, submitted_s=0.0)
    view = TrainerView(record=record, planned_nodes=(), requested_nodes=(), observed_nodes=())
    stranger = for_peer(view, Peer(uid=4711, user="stranger", pid=1)).record.spec
    assert stranger == TrainerSpec(
        name="n", user="u", script=HIDDEN, args=(HIDDEN,), cwd=HIDDEN, interpreter=HIDDEN,
        checkpoint_dir=HIDDEN, environment=(("TOKEN", HIDDEN),), preamble=HIDDEN, notify=HIDDEN,
        after=("t71",), after_any=("t72",), begin_s=73.0,
        array_id="a74", array_limit=75, seed=76,
    )  # fmt: skip
    assert as_decided(record).spec == TrainerSpec(
        name="n", user="u", script="/s1.py", cwd="/s3", interpreter="/s4", checkpoint_dir="/s5"
    )
