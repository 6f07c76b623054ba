"""How a trainer's record becomes an order to start a worker."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import pytest

from bftrainer.batch import process
from bftrainer.fleet.runtimes.base import (
    RESTART_COUNTS,
    WANDB,
    load_runtime,
    template_of,
    worker_config,
)
from bftrainer.fleet.wire.messages import StartWorker, decode_to_agent, encode
from bftrainer.ground.protocol import BY_DAEMON, LEAST_NODES, TELLS, WorkerConfig, from_body
from bftrainer.model.errors import UsageError
from bftrainer.model.trainer import TrainerRecord, TrainerSpec, TrainerState

SPEC = TrainerSpec(
    name="digits", user="u", script="/s/train.py", args=("--lr", "0.1 $(x)"), cwd="/s",
    interpreter="/venv/bin/python", n_min=1, n_max=4, epochs=3, checkpoint_dir="/s/ckpt",
    checkpoint_interval_s=7.0, environment=(("A", "b=c"),), backend="nccl",
    seed=5,
)  # fmt: skip


def test_the_order_survives_the_wire_and_says_all_the_spec_says() -> None:
    runtime = load_runtime("torch")
    runtime.check(SPEC)
    record = TrainerRecord(trainer_id="t7", spec=SPEC, state=TrainerState.QUEUED, submitted_s=0.0)
    told = worker_config(
        record, worker_id="t7.w1", node="n1", address="10.0.0.1", incarnation=3, log_path="/l"
    )
    order = runtime.start_message(record, told)
    received = decode_to_agent(encode(order))
    assert isinstance(received, StartWorker)
    order = received
    assert (order.worker_id, order.trainer_id, order.interpreter) == (
        "t7.w1", "t7", "/venv/bin/python",
    )  # fmt: skip
    config = from_body(order.config)
    assert config == WorkerConfig(
        trainer_id="t7", worker_id="t7.w1", node="n1", script="/s/train.py",
        args=("--lr", "0.1 $(x)"), cwd="/s", log_path="/l",
        environment=(
            ("BFT_RUN_ID", "t7-0"), ("WANDB_RUN_ID", "t7-0"), *WANDB,
            *((name, "0") for name in RESTART_COUNTS),
            ("BFT_SEED", "5"), ("A", "b=c"), *((name, BY_DAEMON) for name in TELLS),
        ),
        checkpoint_dir="/s/ckpt", checkpoint_interval_s=7.0, epochs=3, address="10.0.0.1",
        incarnation=3, backend="nccl", seed=5,
    )  # fmt: skip


@pytest.mark.parametrize(("n_min", "told"), [(1, None), (3, "3")])
def test_workers_are_told_the_smallest_size(n_min: int, told: str | None) -> None:
    spec = dataclasses.replace(SPEC, n_min=n_min)
    record = TrainerRecord(trainer_id="t7", spec=spec, state=TrainerState.QUEUED, submitted_s=0.0)
    config = worker_config(
        record, worker_id="t7.w1", node="n1", address="10.0.0.1", incarnation=3, log_path="/l"
    )
    assert dict(config.environment).get(LEAST_NODES) == told


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"script": "train.py"}, "script"),
        ({"interpreter": ""}, "interpreter"),
        ({"cwd": "."}, "working directory"),
        ({"checkpoint_dir": "ckpt"}, "checkpoint directory"),
        ({"n_min": 5}, "5:4"),
        ({"n_min": 0}, "0:4"),
        ({"samples": 10}, "epochs"),
        ({"backend": "mpi"}, "'mpi' with runtime torch"),
    ],
)
def test_what_no_agent_could_start_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_runtime("torch").check(dataclasses.replace(SPEC, **changes))
    assert caught.value.code == "BFT-1305"
    assert words in caught.value.cause
    assert caught.value.next_step


@pytest.mark.parametrize("name", ["horovod", "command"])
def test_only_torch_scripts_have_a_back_end_to_choose(name: str) -> None:
    spec = dataclasses.replace(SPEC, runtime=name, interpreter="" if name == "command" else "/p")
    with pytest.raises(UsageError, match=f"'nccl' with runtime {name}") as caught:
        load_runtime(name).check(spec)
    assert caught.value.code == "BFT-1305"


def test_an_unknown_runtime_is_a_clear_error() -> None:
    with pytest.raises(UsageError, match="torch") as caught:
        load_runtime("fortran")
    assert caught.value.code == "BFT-1304"


def test_neither_runtime_nor_agent_imports_torch() -> None:
    check = (
        "import sys, bftrainer.fleet.runtimes.torch, trainers.agent.main;"
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    done = process.run([sys.executable, "-I", "-c", check], timeout_s=60)
    assert done.is_ok, done.stderr


@pytest.mark.parametrize(
    ("imported", "without"),
    [
        # Started once for each worker, only to become the user's interpreter.
        ("trainers.mpi.__main__", "{'torch', 'numpy', 'mpi4py'}"),
        # All that a worker of MPI has, the user's script included.
        ("bftrainer.elastic.mpi.run, bftrainer.elastic.worker", "{'torch'}"),
    ],
    ids=["its launcher", "its worker"],
)
def test_a_worker_of_mpi_imports_no_torch(imported: str, without: str) -> None:
    check = f"import sys, {imported}; sys.exit(bool({without} & set(sys.modules)))"
    done = process.run([sys.executable, "-I", "-c", check], timeout_s=60)
    assert done.is_ok, done.stderr


@pytest.mark.parametrize("early", ["trainers.agent.start", "trainers.command.keeper"])
def test_what_starts_early_imports_the_standard_library_alone(early: str) -> None:
    check = (
        f"import sys, {early};"
        "sys.exit(bool({'zmq', 'pydantic', 'numpy', 'torch'} & set(sys.modules)))"
    )
    done = process.run([sys.executable, "-I", "-c", check], timeout_s=60)
    assert done.is_ok, done.stderr


@pytest.mark.parametrize(
    ("runtime", "template"),
    [("torch", SPEC.interpreter), ("horovod", SPEC.interpreter), ("mpi", ""), ("command", "")],
)
def test_only_what_is_forked_from_a_template_has_agents_start_one(
    runtime: str, template: str
) -> None:
    assert template_of(dataclasses.replace(SPEC, runtime=runtime)) == template


def test_a_runtime_that_is_gone_has_no_template() -> None:
    assert template_of(dataclasses.replace(SPEC, runtime="of a plug-in that is gone")) == ""
