"""Limits of a user in nodes, where pilots have single GPUs of them."""

from __future__ import annotations

import pytest

from bftrainer.model.cluster import Node, NodeState
from bftrainer.model.parts import Lend, NodePart
from slurm_plugins import own_site
from slurm_plugins.own_pilots import PilotSize, pilot_sizes
from tests.support.gpu_hosts import gpu_host

PLAIN = Node(name="c1", state=NodeState.IDLE, cpus=64)
HOST = gpu_host("g1")  # four GPUs, each with four CPUs and 1000 MB
SHARE = ", and a pilot has one of a node's 4 GPUs"


def limits(text: str, sizes: tuple[PilotSize, ...]) -> list[tuple[int, str]]:
    (row,) = own_site.rows(text, own_site.QOS)
    return [(limit.n_nodes, limit.words) for limit in own_site.node_limits(row, "X", sizes)]


def test_pilots_are_of_single_gpus_and_of_nodes_that_lend_none() -> None:
    single = NodePart(name="g1/0", node="g1", gpu_type="gpu:a100", gpus=1, cores=4, memory_mb=1000)
    small = gpu_host("g2", n_gpus=2)

    def parts(lend: Lend, *nodes: Node) -> list[NodePart | None]:
        return [size.part for size in pilot_sizes(nodes, lend)]

    assert parts(Lend.AUTO, PLAIN, small, HOST) == [None, single]
    assert parts(Lend.AUTO, small, HOST) == [single]
    assert parts(Lend.GPUS, PLAIN, HOST) == [single]
    assert parts(Lend.AUTO, PLAIN) == parts(Lend.NODES, PLAIN) == parts(Lend.NODES) == [None]
    assert parts(Lend.GPUS, PLAIN) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("q|8||||||||\n", (2, "MaxJobsPU=8 of X" + SHARE)),
        ("q|3||||||||\n", (1, "MaxJobsPU=3 of X" + SHARE)),  # three of its GPUs
        ("q|0||||||||\n", (0, "MaxJobsPU=0 of X")),
        ("q|||||gres/gpu=10||||\n", (2, "MaxTRESPU=gres/gpu=10 of X" + SHARE)),
        ("q|||||gres/gpu=2||||\n", (1, "MaxTRESPU=gres/gpu=2 of X" + SHARE)),
        ("q|||||cpu=35||||\n", (2, "MaxTRESPU=cpu=35 of X, and a pilot takes 4")),
        ("q|||||node=5||||\n", (5, "MaxTRESPU=node=5 of X" + SHARE)),
        ("q|||||cpu=3||||\n", (0, "MaxTRESPU=cpu=3 of X, and a pilot takes 4")),
        ("q|||||||cpu=3||\n", (0, "MaxTRES=cpu=3 of X")),
        ("q|||||gres/gpu:a100=8||||\n", (2, "MaxTRESPU=gres/gpu:a100=8 of X" + SHARE)),
        ("q||||||mem=12G|||\n", (3, "GrpTRES=mem=12G of X, and a pilot takes 1000M")),
        ("q|||||||mem=500M||\n", (0, "MaxTRES=mem=500M of X")),
    ],
)
def test_single_gpus_count_as_shares_of_a_node(text: str, expected: tuple[int, str]) -> None:
    assert limits(text, pilot_sizes([HOST], Lend.GPUS)) == [expected]


def test_a_job_too_small_for_a_node_may_have_a_gpu() -> None:
    one_gpu = "q|||||||gres/gpu=1||\n"
    assert limits(one_gpu, pilot_sizes([HOST], Lend.AUTO)) == []
    whole = (PilotSize(amounts={"node": 1, "cpu": 16, "gres/gpu": 4}),)
    assert limits(one_gpu, whole) == [(0, "MaxTRES=gres/gpu=1 of X")]


def test_beside_whole_nodes_limits_allow_these() -> None:
    both = pilot_sizes([PLAIN, HOST], Lend.AUTO)
    assert limits("q|8||||cpu=130||||\n", both) == [
        (8, "MaxJobsPU=8 of X"),
        (2, "MaxTRESPU=cpu=130 of X, and a pilot takes 64"),
    ]
    assert limits("q|||||cpu=40||||\n", both) == [(2, "MaxTRESPU=cpu=40 of X, and a pilot takes 4")]


def test_limits_on_memory_and_on_one_type_hold_for_whole_nodes() -> None:
    small, large, plain = (
        Node(name="s", state=NodeState.IDLE, node_type="gpu:a100:2", gpus=2, memory_mb=256_000),
        Node(name="l", state=NodeState.IDLE, node_type="gpu:a100:4", gpus=4, memory_mb=1_024_000),
        Node(name="c", state=NodeState.IDLE),  # its memory is not known
    )
    whole = pilot_sizes([small, large, plain], Lend.NODES)
    assert limits("q|||||gres/gpu:a100=9|mem=1.50T|||\n", whole) == [
        (6, "GrpTRES=mem=1.50T of X, and a pilot takes 256000M"),
        (2, "MaxTRESPU=gres/gpu:a100=9 of X, and a pilot takes 4"),
    ]
    for not_binding in ("gres/gpu:v100=1", "mem=some", "license/matlab=1"):
        assert limits(f"q|||||{not_binding}||||\n", whole) == []
    assert limits("q|||||mem=1G||||\n", pilot_sizes([plain], Lend.NODES)) == []
