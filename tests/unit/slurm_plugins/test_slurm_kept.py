"""What a look at Slurm keeps of the one before, so that it costs what has changed."""

from __future__ import annotations

import sys
from types import CodeType, FrameType

from _bench.scale_site import Printed, Size
from bench_scale import reader

from bftrainer.model.hostlist import expand
from slurm_plugins.fields import MOST_NODES_IN_ALL, PrintedLists

NOW_S = 1_790_000_000.0


def n_calls_of(code: CodeType, n_nodes: int) -> int:
    """Return how often a function runs in the look after one whose plans were a second earlier."""
    site = Printed(Size(n_nodes=n_nodes, n_trainers=5, n_pending=20), NOW_S)
    looks = reader(site)
    starts_s = [job.start_s for job in looks.read().jobs or ()]
    site.move()
    count = 0

    def note(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call" and frame.f_code is code

    sys.setprofile(note)
    try:
        jobs = looks.read().jobs or ()
    finally:
        sys.setprofile(None)
    assert [job.start_s for job in jobs] != starts_s
    return count


def test_the_nodes_of_a_plan_that_moved_are_not_written_out_again() -> None:
    nobodys = 1  # the empty list of nodes that no job's user asks for is read in each look
    assert [n_calls_of(expand.__code__, n_nodes) for n_nodes in (50, 200)] == [nobodys, nobodys]


def test_kept_lists_do_not_fill_the_memory() -> None:
    lists, most = PrintedLists(), 0
    for number in range(40):
        names = lists.names(f"n{number}-[1-20000]")
        assert len(names) == 20_000
        assert lists.names(f"n{number}-[1-20000]") is names
        n_names = sum(map(len, lists.names_of.values()))
        most = max(most, n_names)
        assert lists.n_names == n_names
    assert MOST_NODES_IN_ALL / 2 < most <= MOST_NODES_IN_ALL
