"""GPUs of nodes and of jobs, in every form in which Slurm prints them."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.decide.feasible import Feasibility
from bftrainer.decide.queue.models import PrintedQueue
from bftrainer.model.census import census_of
from bftrainer.model.cluster import Job, JobState, Node, NodeLeft, NodeState
from bftrainer.model.hostlist import ParseError
from slurm_plugins import job_requests, parse
from slurm_plugins.gres import SEVERAL_TYPES, GpusUntold, gpus_by_type
from slurm_plugins.hook.lines import announcement
from tests.support.snapshots import T0, snapshot
from tests.unit.slurm_plugins.test_slurm_hook import submit

FIXTURES = Path(__file__).parents[2] / "fixtures" / "slurm"


def _lines(name: str) -> list[list[str]]:
    """Return the cells of each line that is no comment."""
    lines = (FIXTURES / name).read_text().splitlines()
    return [
        [cell.strip() for cell in line.split("|")]
        for line in lines
        if line.strip() and not line.startswith("#")
    ]


OF_NODES, OF_JOBS = _lines("gres-of-nodes.txt"), _lines("gres-of-jobs.txt")


def sinfo(gres: str, gres_used: str, *, name: str = "n1", state: str = "mixed") -> str:
    """A line of sinfo: a node of 16 processors of which 4 are in use."""
    fields = (
        *(name, state, "bf", gres, "16", "64000", "(null)", "4/12/0/16", "16000", gres_used),
        *("up", "12:00:00", "1-infinite", "1", "NO", "none"),
    )
    return parse.FIELD.join(fields) + parse.RECORD + "\n"


def seen(gres: str, gres_used: str) -> Node:
    [row] = parse.node_rows(sinfo(gres, gres_used))
    return row.node


@pytest.mark.parametrize(("gres", "gres_used", "counts", "node_type"), OF_NODES)
def test_gpus_of_a_node(gres: str, gres_used: str, counts: str, node_type: str) -> None:
    n_all, n_used, n_left = counts.split()
    assert n_used == "?" or int(n_used) + int(n_left) == int(n_all)  # of the table itself
    node = seen(gres, gres_used)
    assert (node.state, node.gpus, node.node_type) == (NodeState.ALLOCATED, int(n_all), node_type)
    assert node.left == NodeLeft(cpus=12, memory_mb=48_000, gpus=int(n_left))


@pytest.mark.parametrize(("gres", "gres_used", "counts", "node_type"), OF_NODES)
def test_it_is_said_where_slurm_does_not_tell(
    gres: str, gres_used: str, counts: str, node_type: str
) -> None:
    [row] = parse.node_rows(sinfo(gres, gres_used))
    assert bool(row.gpus_unclear) == ("?" in counts), node_type


def test_a_form_that_is_too_long_hides_no_node() -> None:
    used = "gpu:(null):2(IDX:0-1)," + "nvme:0," * 1000
    node = seen("gpu:4(S:0-1)", used)
    assert (node.state, node.gpus) == (NodeState.ALLOCATED, 4)
    assert node.left == NodeLeft(cpus=12, memory_mb=48_000, gpus=0)
    [unread] = parse.node_rows(sinfo("nvme:1," * 1000, "gpu:0"))
    assert (unread.node.state, unread.node.reason) == (NodeState.UNKNOWN, parse.NOT_READ)


def test_a_node_whose_gpus_cannot_be_read_is_not_lent() -> None:
    """An unlike node beside it is."""
    odd, plain = parse.node_rows(
        sinfo("gpu:a100:many", "gpu:0", state="idle") + sinfo("gpu:4", "gpu:0", name="n2")
    )
    assert (odd.node.state, odd.node.reason) == (NodeState.UNKNOWN, parse.NOT_READ)
    assert (plain.node.gpus, plain.node.left is not None) == (4, True)


@pytest.mark.parametrize(("gres", "gres_used", "counts", "node_type"), OF_NODES)
def test_gpus_by_type_agree_with_those_in_all(
    gres: str, gres_used: str, counts: str, node_type: str
) -> None:
    n_all, n_used, n_left = counts.split()
    if n_used == "?":
        with pytest.raises(ParseError):
            gpus_by_type(gres, gres_used)
        return
    typed = gpus_by_type(gres, gres_used)
    assert sum(gpus.count for gpus in typed) == int(n_all), node_type
    n_free = sum(gpus.free for gpus in typed)
    assert n_free == int(n_left) or (len(typed) > 1 and n_free < int(n_left))


def test_parts_in_use_of_untold_types_count_against_each_type() -> None:
    gres, none = "gpu:a100:2,gpu:v100:2,shard:16", "gpu:a100:0,gpu:v100:1"
    typed = gpus_by_type(gres, f"{none},shard:(null):1(1/4,0/4,0/4,0/4)")
    assert [(gpus.gpu_type, gpus.free) for gpus in typed] == [("a100", 1), ("v100", 0)]
    told = f"{none},shard:a100:1(1/4,0/4),shard:v100:0(0/4,0/4)"
    typed = gpus_by_type("gpu:a100:2,gpu:v100:2,shard:a100:8,shard:v100:8", told)
    assert [(gpus.gpu_type, gpus.free) for gpus in typed] == [("a100", 1), ("v100", 1)]


def test_what_slurm_does_not_tell_is_in_the_log_once(caplog: pytest.LogCaptureFixture) -> None:
    untold = sinfo("gpu:a100:4", "gpu:a100:x(IDX:0)")
    first = parse.node_rows(untold + sinfo("gpu:4", "gpu:1", name="n2"))
    both = parse.node_rows(untold + sinfo("gpu:4", "(null)", name="n3"))
    log = GpusUntold()
    with caplog.at_level(logging.WARNING, "bftrainer.slurm"):
        log.note(_untold(first))
        log.note(_untold(first))
        assert len(caplog.records) == 1
        assert "node n1: " in caplog.text
        assert "'gpu:a100:x(IDX:0)'" in caplog.text
        log.note(_untold(both))
        log.note({})
    assert len(caplog.messages) == 2
    assert "node n3" in caplog.text


def _untold(rows: tuple[parse.NodeRow, ...]) -> dict[str, str]:
    return {row.node.name: row.gpus_unclear for row in rows if row.gpus_unclear}


# -- jobs ----------------------------------------------------------------------------------


def squeue(per_node: str) -> Job:
    row = ["777", "batch", "PENDING", "None", "N/A", "5:00", "(null)", "", "1", "1795198022",
           "eve", "(null)", per_node, "0", "", "", "(null)"]  # fmt: skip
    [job] = parse.jobs(f"{parse.RECORD}{parse.FIELD.join(row)}\n")
    return job


def asked(per_job: str, per_socket: str, per_task: str, n_tasks: str) -> job_requests.Request:
    values = dict.fromkeys(job_requests.FIELDS, "0") | {
        "JobArrayID": "777", "MinMemory": "0", "NumTasks": n_tasks, "MinTime": "0:00",
        "OverSubscribe": "OK", "tres-per-job": per_job, "tres-per-socket": per_socket,
        "tres-per-task": per_task, "tres-alloc": "cpu=4,mem=100M,node=1,gres/gpu=2",
    }  # fmt: skip
    row = parse.FIELD.join(values[name] for name in job_requests.FIELDS)
    return job_requests.rows(row + parse.RECORD + "\n")["777"]


@pytest.mark.parametrize(
    ("per_node", "per_job", "per_socket", "per_task", "n_tasks", "counts", "unclear"), OF_JOBS
)
def test_gpus_of_a_job(
    per_node: str,
    per_job: str,
    per_socket: str,
    per_task: str,
    n_tasks: str,
    counts: str,
    unclear: str,
) -> None:
    on_each, in_all = map(int, counts.split())
    named = squeue(per_node)
    assert named.gpus_per_node == on_each
    assert named.unclear == (SEVERAL_TYPES if per_node.count("100:") > 1 else "")
    request = asked(per_job, per_socket, per_task, n_tasks)
    assert (request["gpus"], request["unclear"]) == (in_all, unclear)
    told = announcement(submit(gres="" if per_node == "N/A" else per_node), 1)
    assert told is not None
    assert told.job is not None
    assert told.job.gpus_per_node == on_each


@pytest.mark.parametrize(
    ("per_node", "per_job", "per_task", "gpu_type", "unclear"),
    [
        ("gres/gpu:2", "N/A", "N/A", "", ""),
        ("gres:gpu:a100", "N/A", "N/A", "a100", ""),
        ("gpu:1g.10gb:2", "N/A", "N/A", "1g.10gb", ""),
        ("N/A", "gres:gpu:a100:4", "N/A", "a100", ""),
        ("N/A", "N/A", "cpu=2,gres/gpu=1,gres/gpu:gtx=1", "gtx", ""),
        ("gres:gpu:a100:1", "gres:gpu:a100:4", "N/A", "a100", ""),
        ("gres:gpu:a100:1", "gres:gpu:v100:4", "N/A", "", SEVERAL_TYPES),
        ("gres:gpu:a100:1,gres:gpu:v100:1", "N/A", "N/A", "", SEVERAL_TYPES),
        ("N/A", "gpu:a100:1,gpu:v100:1", "N/A", "", SEVERAL_TYPES),
        ("gres:shard:a100:1", "N/A", "N/A", "", ""),
        ("gres/gpu:a:b:c", "N/A", "N/A", "", "GPUs we cannot read"),
    ],
)
def test_the_type_of_gpus_that_a_job_must_have(
    per_node: str, per_job: str, per_task: str, gpu_type: str, unclear: str
) -> None:
    known = job_requests.AskedFor()
    job = squeue(per_node)
    known.learn([job], {"777": asked(per_job, "N/A", per_task, "1")})
    [completed] = known.complete((job,), None)
    assert (completed.gpu_type, completed.unclear) == (gpu_type, unclear)


def test_a_job_whose_gpus_cannot_be_read_says_so() -> None:
    for text in ("gres/gpu:a:b:c", "gres/gpu:1(", "gres:shard:x y:z"):
        job = squeue(text)
        assert (job.gpus_per_node, job.unclear) == (0, "GPUs we cannot read"), text
        assert job.state is JobState.PENDING


def test_a_part_of_a_gpu_needs_a_node_with_a_gpu_that_is_free_or_ours() -> None:
    """Else nothing would be given back for it: a node without GPUs has room for its processors."""
    job = replace(squeue("gres/shard:1"), n_nodes=1, cpus=1, can_share=True)
    plain = replace(seen("(null)", "(null)"), name="n2", partitions=("batch",))
    full = replace(seen("gpu:2,shard:8", "gpu:2,shard:(null):0(-/4,-/4)"), partitions=("batch",))
    free = replace(seen("gpu:2,shard:8", "gpu:1,shard:(null):0(-/4,0/4)"), partitions=("batch",))
    assert _starts(job, plain, full) is False
    assert _starts(job, plain, free) is True


def _starts(job: Job, *nodes: Node) -> bool:
    """Return whether it could start on what is left of these nodes in use."""
    queue = PrintedQueue(census_of(snapshot(nodes, [job])), T0, 30.0)
    pass_ = Feasibility(queue, queue.next_plan(0), usable=0, free=0, refusals={}).of_all()
    return [started.job_id for started in pass_.starts] == [job.job_id]
