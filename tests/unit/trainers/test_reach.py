"""Members that an agent cannot connect to: when it looks, and what a quorum makes of it."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing

import pytest

from bftrainer.fleet.wire.peers import PeerStanding, Surveyed
from bftrainer.ground.protocol import Commit, Member
from trainers.agent.reach import AGAIN_S, LEAST_S, MOST_S, REPORT_S, Search, reaches
from trainers.agent.regroup import Absent, Answer, NextGeneration, judge

A, B, C = (
    Member(worker_id=name, rank=rank, node=name, address=name, agent_endpoint=f"tcp://{name}:1")
    for rank, name in enumerate("abc")
)
ALL = {m.agent_endpoint: m for m in (A, B, C)}


def _due(search: Search, still_s: float, now_s: float, step_s: float = 0.1) -> set[str]:
    members = {m.agent_endpoint: m for m in (B, C)}
    asked = search.due(members, still_s=still_s, step_s=step_s, now_s=now_s)
    return {m.node for m in asked.values()}


def test_it_looks_for_members_while_its_worker_does_not_get_on() -> None:
    search = Search()
    assert _due(search, LEAST_S - 0.1, 10.0) == set()
    assert _due(search, LEAST_S + 0.1, 10.0) == {"b", "c"}
    assert not search.found({B.agent_endpoint: B, C.agent_endpoint: C}, (), 10.1)
    assert _due(search, LEAST_S + 0.2, 10.2) == set()
    assert _due(Search(), 20.0, 10.0, step_s=10.0) == set(), "a step takes so long"


def test_long_steps_make_it_look_less_and_less_often() -> None:
    search, now_s, pauses_s = Search(), 100.0, []
    for _ in range(6):
        assert _due(search, now_s, now_s) == {"b", "c"}
        search.found({B.agent_endpoint: B}, (), now_s)
        pauses_s.append(search.next_s - now_s)
        now_s = search.next_s
    assert pauses_s == [4.0, 8.0, 16.0, MOST_S, MOST_S, MOST_S]


def test_who_cannot_be_reached_is_looked_for_until_it_can_and_then_reported_once() -> None:
    search = Search()
    asked = {m.agent_endpoint: m for m in (B, C)}
    assert search.found(asked, [C.agent_endpoint], 10.0)
    assert _due(search, 0.0, 10.0 + AGAIN_S / 2) == set()
    assert _due(search, 0.0, 10.0 + AGAIN_S) == {"c"}, "the others train without it"
    assert not search.found({C.agent_endpoint: C}, [C.agent_endpoint], 10.0 + REPORT_S / 2)
    assert search.found({C.agent_endpoint: C}, [C.agent_endpoint], 14.0)
    assert search.found({C.agent_endpoint: C}, (), 17.0)
    assert search.silent == {}
    assert _due(search, 0.0, 30.0) == set()


def test_a_host_that_refuses_is_reached_and_one_that_keeps_silent_is_not() -> None:
    async def said() -> list[bool]:
        with closing(socket.create_server(("127.0.0.1", 0))) as server:
            port = server.getsockname()[1]
            there = await reaches(f"tcp://127.0.0.1:{port}", 60.0)
        refused = await reaches(f"tcp://127.0.0.1:{port}", 60.0)
        # A backlog of nothing that is full answers no SYN (listen(2)).
        with closing(socket.socket()) as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            taken = [socket.socket() for _ in range(4)]
            for one in taken:
                one.setblocking(False)  # noqa: FBT003 - socket's API
                one.connect_ex(full.getsockname())
            silent = await reaches(f"tcp://127.0.0.1:{full.getsockname()[1]}", 1.5)
            for one in taken:
                one.close()
        return [there, refused, silent, await reaches("not an endpoint", 1.0)]

    assert asyncio.run(said()) == [True, True, False, True]


# ---- without a daemon ------------------------------------------------------------------------


def _answers(**unreachable: tuple[Member, ...] | Absent) -> dict[str, Answer]:
    commit = Commit(generation=1, attempt=1, token="", members=(A, B, C)[: len(unreachable)])
    found: dict[str, Answer] = {}
    for member in commit.members:
        said = unreachable[member.node]
        worker = PeerStanding(worker_id=member.node, commit=commit, interrupted=(1, 1))
        found[member.agent_endpoint] = said if isinstance(said, Absent) else Surveyed(
            is_orphaned=True, workers=[worker], unreachable=[m.agent_endpoint for m in said]
        )  # fmt: skip
    return found


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (_answers(a=(), b=(C,), c=(B,)), "ab"),
        (_answers(a=(), b=(C,), c=()), "ab"),
        (_answers(a=(B, C), b=(), c=()), "bc"),
        (_answers(a=(), b=(), c=Absent.SILENT), "ab"),
        (_answers(a=(), b=(C,), c=Absent.GONE), "ab"),
    ],
)
def test_without_a_daemon_the_majority_that_hears_each_other_goes_on(
    answers: dict[str, Answer], expected: str
) -> None:
    verdict = judge(answers)
    assert isinstance(verdict, NextGeneration)
    assert "".join(m.node for m in verdict.roster) == expected


def test_two_members_that_do_not_hear_each_other_wait_for_a_daemon() -> None:
    assert isinstance(judge(_answers(a=(B,), b=(A,))), str)


def test_an_answer_says_nothing_new_while_all_are_reached() -> None:
    """So agents of the release before understand it."""
    assert "unreachable" not in Surveyed(is_orphaned=True, workers=[]).model_dump_json()
    said = Surveyed(is_orphaned=True, workers=[], unreachable=["tcp://a:1"])
    assert Surveyed.model_validate_json(said.model_dump_json()) == said
