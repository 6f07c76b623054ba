"""One round of a trainer that lost a member without a daemon."""

from __future__ import annotations

from bftrainer.fleet.wire.peers import Done, PassCommit, PeerStanding, Promise, Surveyed
from bftrainer.ground.protocol import Commit, Member
from trainers.agent.regroup import PASS_TRIES, Absent, Ask, Instruction, Regroup, TellOwn

A, B, C = (
    Member(worker_id=name, rank=rank, node=name, address=name, agent_endpoint=f"tcp://{name}")
    for rank, name in enumerate("abc")
)
COMMIT = Commit(generation=1, attempt=1, token="", members=(A, B, C))


def _stuck(worker_id: str) -> PeerStanding:
    return PeerStanding(worker_id=worker_id, commit=COMMIT, entered=COMMIT, interrupted=(1, 1))


def _promise(member: Member) -> Ask:
    question = Promise(trainer_id="t1", worker_id=member.worker_id, generation=2, attempt=1)
    return Ask(member=member, question=question)


def _asked(out: list[Instruction]) -> list[Ask]:
    return [one for one in out if isinstance(one, Ask)]


def _proposed() -> tuple[Regroup, PeerStanding]:
    """c is gone; a has proposed generation 2 of a and b, and its store is open."""
    machine, own = Regroup("t1", me="tcp://a", origin="p1", new_token=lambda: "n"), _stuck("a")
    for asked in _asked(machine.advance([own], is_orphaned=True, now_s=1.0)):
        there = Surveyed(is_orphaned=True, workers=[_stuck("b")])
        machine.on_answer(asked, there if asked.member == B else Absent.GONE, now_s=1.0)
    assert _asked(machine.advance([own], is_orphaned=True, now_s=1.1)) == [_promise(B)]
    return machine, own.model_copy(update={"ready": (2, 1), "store_port": 5})


def test_it_is_announced_when_every_one_of_its_members_has_promised() -> None:
    machine, own = _proposed()
    machine.on_answer(_promise(C), Done(), now_s=1.2)  # as many as the roster, but another
    assert machine.advance([own], is_orphaned=True, now_s=1.2) == []
    machine.on_answer(_promise(B), Done(), now_s=1.3)
    told, passed = machine.advance([own], is_orphaned=True, now_s=1.3)
    assert isinstance(told, TellOwn)
    assert isinstance(told.body, Commit)
    assert [m.worker_id for m in told.body.members] == ["a", "b"]
    question = PassCommit(trainer_id="t1", worker_id="b", body=told.body)
    assert passed == Ask(member=B, question=question, tries=PASS_TRIES)


def test_a_commit_is_brought_again_until_a_daemon_is_back() -> None:
    machine, own = _proposed()
    machine.on_answer(_promise(B), Done(), now_s=1.3)
    [passed] = _asked(machine.advance([own], is_orphaned=True, now_s=1.3))
    for left in reversed(range(PASS_TRIES)):
        [passed] = _asked(machine.on_answer(passed, Absent.SILENT, now_s=1.4))
        assert passed.tries == left
    assert machine.on_answer(passed, Absent.SILENT, now_s=1.5) == []
    machine.advance([own], is_orphaned=False, now_s=1.6)
    again = Ask(member=B, question=passed.question, tries=3)
    assert machine.on_answer(again, Absent.SILENT, now_s=1.6) == []
