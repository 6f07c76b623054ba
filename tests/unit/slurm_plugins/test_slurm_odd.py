"""One odd job or node in Slurm's answer is unknown itself; all others are read as ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from bftrainer.model.cluster import Job, NodeState
from bftrainer.model.hostlist import ParseError
from slurm_plugins import parse

RECORDED = Path(__file__).parents[2] / "fixtures" / "slurm" / "22.05"
R, F = parse.RECORD, parse.FIELD


def test_an_odd_field_of_a_job_is_a_doubt_about_that_job_alone() -> None:
    text = (RECORDED / "busy.squeue.txt").read_text()
    (row, *_), others = text.split(R)[1:], parse.jobs(text)
    fields = row.split(F)

    def with_one(**odd: str) -> Job:
        places = {"job_id": 0, "nodes": 7, "n_nodes": 8, "submit": 9, "priority": 13}
        changed = list(fields)
        for name, value in odd.items():
            changed[places[name]] = value
        first, *rest = parse.jobs(R + F.join(changed) + text)
        assert tuple(rest) == others
        return first

    assert with_one(n_nodes="1K").n_nodes == 1024
    assert with_one(priority="0.0000012").priority == 0.0000012
    assert with_one(priority="-1").priority == -1.0
    odd = with_one(job_id="5_[a-b]", nodes="n[", n_nodes="some", submit="soon", priority="high")
    assert (odd.job_id, odd.nodes, odd.n_nodes, odd.submit_s, odd.priority) == (
        *("5", (), 1, None, 0.0),
    )
    assert odd.unclear == (
        "tasks and a number of nodes and a priority and a time of submission and its nodes"
        " we cannot read"
    )
    with pytest.raises(ParseError):
        with_one(job_id="?")


def test_an_odd_line_of_a_node_makes_that_node_unknown() -> None:
    text = (RECORDED / "idle.sinfo.txt").read_text()
    others = parse.node_rows(text)
    for place, value in ((4, "many"), (5, "1.5"), (7, "0/4")):
        fields = text.split(R)[0].split(F)
        fields[0], fields[1], fields[place] = "odd1", "mixed", value
        first, *rest = parse.node_rows(F.join(fields) + R + "\n" + text)
        assert (first.node.name, first.node.state) == ("odd1", NodeState.UNKNOWN)
        assert first.node.reason == parse.NOT_READ
        assert tuple(rest) == others
