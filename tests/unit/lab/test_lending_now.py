"""What lending GPUs one by one would gain at the moment of a look."""

from __future__ import annotations

from dataclasses import replace

from bftrainer.lab.whatif.present import lending_now, lending_sections
from bftrainer.model.cluster import LentGpus, Node, NodeState
from bftrainer.model.parts import Lend

FOUR = LentGpus(gpu_type="a100", n_gpus=4, n_free=4, cpus=4, memory_mb=16_000)
IDLE = Node(
    name="n1", state=NodeState.IDLE, gpus=4, cpus=16, partitions=("batch", "bf"), lends=(FOUR,),
    is_shared=True,
)  # fmt: skip
IN_USE = replace(IDLE, name="n2", state=NodeState.ALLOCATED, lends=(replace(FOUR, n_free=3),))
DRAINED = replace(IN_USE, name="n3", state=NodeState.DRAINED)
ALONE = replace(IN_USE, name="n4", is_shared=False)
WHOLE = replace(IN_USE, name="n5", lends=(), why_whole="It is so.")
ALL = (IDLE, IN_USE, DRAINED, ALONE, WHOLE)


def test_free_gpus_beside_jobs_are_what_whole_nodes_leave() -> None:
    now = lending_now(ALL, Lend.NODES)
    assert now is not None
    assert (now.code, now.remedy) == ("BFT-2120", "lend: auto")
    assert (now.nodes, now.gpus, now.free_gpus) == (3, 12, 3)
    assert now.gain_gpu_hours_per_day == 72.0
    (section,) = lending_sections(now)
    cost, gain = section.text
    assert cost.startswith("Ordinary jobs share 3 nodes (n1 and others) with 12 GPUs: while ")
    assert gain.startswith("At this moment 3 of them are free beside jobs: that is 72")


def test_nothing_is_proposed_where_gpus_are_lent_or_cannot_be() -> None:
    assert lending_now(ALL, Lend.AUTO) is None
    assert lending_now((ALONE, WHOLE), Lend.NODES) is None
    assert lending_sections(None) == ()
