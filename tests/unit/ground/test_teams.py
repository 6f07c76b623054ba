"""The workers of a node as one: names, devices, words and ends."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from bftrainer.batch import process
from bftrainer.fleet.generations.generation import GenerationMachine
from bftrainer.fleet.generations.members import worker_on
from bftrainer.fleet.runtimes.base import load_runtime
from bftrainer.fleet.trainers.log_files import log_directory, log_files, worker_facts
from bftrainer.ground.protocol import (
    Commit,
    Entered,
    Finished,
    Interrupted,
    Left,
    Member,
    Progress,
    Ready,
    Warm,
    WorkerConfig,
    from_body,
    place_in,
    to_body,
)
from bftrainer.model.canonical import from_plain, to_plain
from bftrainer.model.errors import UsageError
from bftrainer.model.trainer import TrainerSpec
from tests.support.generations import machine_of, offer
from trainers.agent.team import Process, Team, split

NODE = WorkerConfig(
    trainer_id="t1", worker_id="t1-1-3", node="n1", script="/s/train.py", local_size=2,
    log_path="/c/logs/t1-1-3.log", environment=(("A", "b"),),
)  # fmt: skip


def commit(*nodes: str) -> Commit:
    members = tuple(
        Member(worker_id=w, rank=rank, node=f"node of {w}", address="127.0.0.1")
        for rank, w in enumerate(nodes)
    )
    return Commit(generation=4, attempt=1, token="t", members=members)  # noqa: S106 - no secret


# ---- one order, several workers -----------------------------------------------------------


def test_a_single_worker_is_told_what_it_always_was() -> None:
    alone = dataclasses.replace(NODE, local_size=1)
    assert split(alone, gpus=4, environ={"CUDA_VISIBLE_DEVICES": "0,1,2,3"}) == [alone]
    # Agents of earlier releases refuse fields they do not know.
    assert not {"member", "local_rank", "local_size", "gpus"} & to_body(alone).keys()
    assert from_body(to_body(alone)) == alone


def test_each_worker_of_a_node_has_a_name_a_log_and_a_rank() -> None:
    first, second = split(NODE, gpus=0, environ={})
    assert (first.worker_id, second.worker_id) == ("t1-1-3", "t1-1-3-1")
    assert (first.member_id, second.member_id) == ("t1-1-3", "t1-1-3")
    assert second.log_path == "/c/logs/t1-1-3-1.log"
    expected = (("A", "b"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2"))
    assert second.environment == expected
    assert from_body(to_body(second)) == second


@pytest.mark.parametrize(
    ("gpus", "environ", "seen"),
    [
        (2, {"CUDA_VISIBLE_DEVICES": "4,GPU-5f"}, [{"CUDA_VISIBLE_DEVICES": "4"},
                                                   {"CUDA_VISIBLE_DEVICES": "GPU-5f"}]),
        (3, {"ROCR_VISIBLE_DEVICES": "1, 2,3"}, [{"ROCR_VISIBLE_DEVICES": "1"},
                                                 {"ROCR_VISIBLE_DEVICES": "2"}]),
        (2, {}, [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}]),
        (0, {"CUDA_VISIBLE_DEVICES": ""}, [{}, {}]),
        (0, {"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, [{}, {}]),
    ],
)  # fmt: skip
def test_each_worker_sees_one_device_of_the_allocation(
    gpus: int, environ: dict[str, str], seen: list[dict[str, str]]
) -> None:
    ours = {"A", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}
    configs = split(NODE, gpus=gpus, environ=environ)
    assert [{k: v for k, v in c.environment if k not in ours} for c in configs] == seen


@pytest.mark.parametrize(
    ("workers", "gpus", "seen"),
    [
        (1, 2, ["4,GPU-5f"]),
        (1, 3, ["4,GPU-5f,6"]),
        (2, 2, ["4,GPU-5f", "6,7"]),
        (2, 1, ["4", "GPU-5f"]),
    ],
)
def test_workers_share_the_gpus_that_were_asked_for(
    workers: int, gpus: int, seen: list[str]
) -> None:
    asking = dataclasses.replace(NODE, local_size=workers, gpus=gpus)
    configs = split(asking, gpus=4, environ={"CUDA_VISIBLE_DEVICES": "4,GPU-5f,6,7"})
    assert [dict(c.environment)["CUDA_VISIBLE_DEVICES"] for c in configs] == seen
    assert all(("LOCAL_RANK" in dict(c.environment)) == (workers > 1) for c in configs)
    assert from_body(to_body(asking)) == asking


def test_a_node_with_fewer_devices_than_were_asked_for_is_refused() -> None:
    asking = dataclasses.replace(NODE, local_size=2, gpus=2)
    with pytest.raises(UsageError, match=r"3 GPU\(s\) for 2 workers with 2 each") as caught:
        split(asking, gpus=3, environ={})
    assert caught.value.code == "BFT-1417"


def test_a_node_with_too_few_devices_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        split(NODE, gpus=1, environ={"CUDA_VISIBLE_DEVICES": "0"})
    assert caught.value.code == "BFT-1417"
    assert "n1 has 1 GPU(s) for 2 workers" in caught.value.cause


@pytest.mark.parametrize("runtime", ["horovod", "mpi", "command"])
def test_other_runtimes_refuse_several_workers_per_node(runtime: str) -> None:
    spec = TrainerSpec(
        name="x", user="u", script="/s/x.py", cwd="/s", interpreter="/p", checkpoint_dir="/c",
    )  # fmt: skip
    load_runtime(runtime).check(spec)
    with pytest.raises(UsageError, match="workers per node") as caught:
        load_runtime(runtime).check(dataclasses.replace(spec, workers_per_node=2))
    assert caught.value.code == "BFT-1305"


@pytest.mark.parametrize("count", [0, 65])
def test_a_number_of_workers_that_no_node_takes(count: int) -> None:
    spec = TrainerSpec(
        name="x", user="u", script="/s/x.py", cwd="/s", interpreter="/p", checkpoint_dir="/c",
        workers_per_node=count,
    )  # fmt: skip
    with pytest.raises(UsageError, match="workers per node") as caught:
        load_runtime("torch").check(spec)
    assert caught.value.code == "BFT-1305"


# ---- where they are ------------------------------------------------------------------------


def test_ranks_go_node_by_node() -> None:
    places = [place_in(commit("a", "t1-1-3", "c"), c) for c in split(NODE, gpus=0, environ={})]
    assert [(p.rank, p.size, p.nodes) for p in places if p] == [(2, 6, 3), (3, 6, 3)]
    assert place_in(commit("a", "c"), NODE) is None


def test_logs_are_named_with_the_ranks_of_their_workers(tmp_path: Path) -> None:
    spec = TrainerSpec(
        name="x", user="u", script="/s/x.py", checkpoint_dir=str(tmp_path), workers_per_node=2
    )
    log_directory(spec).mkdir()
    for name in ("t1-1-10", "t1-1-2", "t1-1-2-1", "t1-1-10-1", "t1-1-1"):
        (log_directory(spec) / f"{name}.log").touch()
    machine = machine_of(GenerationMachine, n_max=2, join_window_s=0.0, start_timeout_s=9.0)
    for name in ("t1-1-2", "t1-1-10"):
        machine.crew.workers[name] = worker_on(offer(f"n{name}"), name, 0.0)
    machine.crew.members = ("t1-1-10", "t1-1-2")
    found = [(f.worker_id, f.rank, f.node) for f in log_files("t1", spec, worker_facts(machine))]
    assert found == [
        ("t1-1-1", None, ""),
        ("t1-1-2", 2, "nt1-1-2"),
        ("t1-1-2-1", 3, "nt1-1-2"),
        ("t1-1-10", 0, "nt1-1-10"),
        ("t1-1-10-1", 1, "nt1-1-10"),
    ]


# ---- what they say as one ------------------------------------------------------------------


class Two:
    """A team of two, and what it says."""

    def __init__(self) -> None:
        self.team = Team("t1-1-3", "t1", 2)
        self.team.processes += [
            Process(name="t1-1-3", local_rank=0, pid=10),
            Process(name="t1-1-3-1", local_rank=1, pid=11),
        ]

    def said(self, local_rank: int, message: Any) -> Any:
        said = self.team.said(self.team.processes[local_rank], to_body(message))
        return None if said is None else from_body(said.body)

    def ended(self, local_rank: int, returncode: int, cause: str = "") -> bool:
        return self.team.ended(self.team.processes[local_rank], returncode, cause)


def entered(attempt: int, rank: int, pause_s: float) -> Entered:
    return Entered(
        generation=4, attempt=attempt, rank=rank, size=4, step=7, epoch=1, samples=70,
        pause_s=pause_s, transfer_s=0.5, shares=(3, 3, 2, 2) if rank == 0 else (),
    )  # fmt: skip


def progress(own_s: float, share: int, generation: int = 4) -> Progress:
    return Progress(
        generation=generation, step=8, epoch=1, samples=80, step_s=0.3, samples_per_s=30.0,
        own_s=own_s, share=share,
    )  # fmt: skip


def test_a_node_is_warm_ready_and_in_when_all_its_workers_are() -> None:
    two = Two()
    assert two.said(1, Warm(warm_up_s=2.0)) is None
    assert two.said(0, Warm(warm_up_s=1.0)) == Warm(warm_up_s=2.0)
    assert two.said(0, Ready(generation=4, attempt=1, store_port=77)) is None
    assert two.said(0, Ready(generation=4, attempt=2, store_port=78)) is None
    assert two.said(1, Ready(generation=4, attempt=1)) is None  # of the attempt before
    whole = Ready(generation=4, attempt=2, store_port=78)
    assert two.said(1, Ready(generation=4, attempt=2)) == whole
    assert two.said(0, entered(2, 0, 0.1)) is None
    assert two.said(1, entered(2, 1, 0.4)) == entered(2, 0, 0.4)
    assert two.said(0, Left(generation=5, step=9)) is None
    assert not two.team.standing().has_left
    assert two.said(1, Left(generation=5, step=9)) == Left(generation=5, step=9)
    assert two.team.standing().has_left


def test_the_first_worker_tells_the_progress_and_the_slowest_the_pace() -> None:
    two = Two()
    assert two.said(1, progress(0.2, 2)) is None
    assert two.said(0, progress(0.1, 3)) == progress(0.2, 5)
    assert two.said(0, progress(0.1, 3, generation=5)) == progress(0.0, 3, generation=5)
    assert two.said(1, progress(0.0, 2, generation=5)) is None
    assert two.said(0, progress(0.1, 3, generation=5)) == progress(0.0, 5, generation=5)


def test_one_interrupted_worker_makes_the_node_stuck_and_is_told_once() -> None:
    two = Two()
    given = commit("t1-1-3", "b")
    two.team.told(given)
    broken = Interrupted(generation=4, attempt=1, step=8, reason="gone")
    assert two.said(1, broken) == broken
    assert two.said(0, broken) is None
    assert two.team.standing().is_stuck
    again = dataclasses.replace(broken, generation=5)
    assert two.said(0, again) == again
    assert two.said(1, dataclasses.replace(broken, attempt=2)) is None  # it is behind
    assert two.said(1, again) is None


def test_what_a_returning_daemon_is_told_is_the_node_as_one() -> None:
    two = Two()
    given = commit("t1-1-3", "b")
    two.team.told(given)
    two.said(0, entered(1, 0, 0.1))
    assert two.team.report().latest == []
    two.said(1, entered(1, 1, 0.0))
    report = two.team.report()
    assert (report.worker_id, report.pid, len(report.latest)) == ("t1-1-3", 10, 1)
    assert two.team.standing().entered == given


# ---- how they end --------------------------------------------------------------------------


def test_one_lost_worker_ends_the_others_and_is_the_cause() -> None:
    two = Two()
    assert two.ended(1, -9, "It did not answer.")
    assert [p.name for p in two.team.running()] == ["t1-1-3"]
    assert two.team.is_lost
    two.ended(0, 1)
    assert (two.team.end().returncode, two.team.end().cause) == (-9, "It did not answer.")


def test_workers_that_leave_end_one_after_the_other() -> None:
    two = Two()
    two.said(1, Left(generation=5, step=9))
    assert not two.ended(1, 0)
    assert two.said(0, Left(generation=6, step=9)) == Left(generation=6, step=9)
    assert not two.ended(0, 0)
    assert two.team.end().returncode == 0


def test_a_worker_that_ends_without_a_word_ends_the_others() -> None:
    two = Two()
    assert two.ended(1, 0)
    assert two.team.end().returncode == 0


def test_after_the_training_the_first_worker_needs_no_other() -> None:
    two = Two()
    done = Finished(generation=4, step=9, epoch=2, samples=90)
    assert two.said(1, done) is None
    assert two.said(0, done) == done
    assert not two.ended(1, -9)
    assert not two.ended(0, 0)
    assert two.team.end().returncode == 0


def test_trainers_of_earlier_journals_have_one_worker_per_node() -> None:
    plain = to_plain(TrainerSpec(name="x", user="u", script="/s/x.py", workers_per_node=3))
    assert from_plain(plain, TrainerSpec).workers_per_node == 3
    del plain["workers_per_node"]
    assert from_plain(plain, TrainerSpec).workers_per_node == 1


HOOKS = """
import importlib, os, socket
from bftrainer.elastic import hooks
from bftrainer.elastic.process import control
from bftrainer.ground.protocol import WorkerConfig
print(os.environ.get("LOCAL_RANK"))
ours, theirs = socket.socketpair()
control.start(WorkerConfig(trainer_id="t1", worker_id="w", node="n", script="x"), theirs)
importlib.reload(hooks)
print(os.environ.get("LOCAL_RANK"))
"""


def test_hooks_hide_from_frameworks_what_looks_like_torchrun_under_an_agent() -> None:
    environ = {**os.environ, "LOCAL_RANK": "1"}
    done = process.run([sys.executable, "-c", HOOKS], env=environ, timeout_s=60)
    assert done.stdout.split() == ["1", "None"], done
