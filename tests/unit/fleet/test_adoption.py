"""A daemon that comes back takes over what runs, and touches nothing that is right."""

from __future__ import annotations

from collections.abc import Sequence

from bftrainer.fleet.generations.adoption import adopt
from bftrainer.fleet.generations.members import Parked, Regrouped, Rescaled, StartWorkerOn, Worker
from bftrainer.fleet.lifecycle import WorkerPhase
from bftrainer.ground import protocol
from tests.support.generations import Driver

NODES = {"w1": "n1", "w2": "n2", "w3": "n3"}


def _worker(worker_id: str) -> Worker:
    node = NODES[worker_id]
    return Worker(
        worker_id=worker_id,
        pilot_id=f"p-{node}",
        node=node,
        address=f"addr-{node}",
        agent_endpoint="",
        agent_public_key="",
        started_s=100.0,
    )


def _commit(generation: int, *roster: str, abandon: bool = False) -> protocol.Commit:
    return protocol.Commit(
        generation=generation,
        attempt=1,
        token="x",  # noqa: S106 - of the test
        members=tuple(_worker(w).as_member(rank) for rank, w in enumerate(roster)),
        abandon=abandon,
    )


def _entered(generation: int, rank: int, size: int, step: int = 20) -> protocol.Entered:
    return protocol.Entered(
        generation=generation,
        attempt=1,
        rank=rank,
        size=size,
        step=step,
        epoch=1,
        samples=step * 10,
        pause_s=0.0,
        transfer_s=0.0,
    )


def _interrupted(generation: int) -> protocol.Interrupted:
    return protocol.Interrupted(generation=generation, attempt=1, step=20, reason="reset")


WARM = protocol.Warm(warm_up_s=1.0)


def _adopted(reports: dict[str, Sequence[protocol.Message]], *, last_generation: int = 5) -> Driver:
    d = Driver(last_generation=last_generation, incarnation=2)
    adopt(d.machine, [_worker(w) for w in reports], reports)
    return d


def _told(reports: dict[str, Sequence[protocol.Message]]) -> Regrouped | None:
    d = Driver(last_generation=5, incarnation=2)
    return adopt(d.machine, [_worker(w) for w in reports], reports)


def _two_members(*more: protocol.Message) -> dict[str, Sequence[protocol.Message]]:
    commit = _commit(5, "w2", "w1")
    return {
        "w1": [WARM, *more, _entered(5, 1, 2), commit],
        "w2": [WARM, *more, _entered(5, 0, 2), commit],
    }


def test_nobody_there_is_a_fresh_start() -> None:
    d = _adopted({})
    assert (d.machine.crew.members, d.machine.numbers.generation, d.machine.trouble.is_broken) == (
        (),
        5,
        False,
    )
    d.target("n1")
    assert [s.worker_id for s in d.wanted(StartWorkerOn)] == ["t1-2-1"]


def test_what_is_right_is_not_touched() -> None:
    d = _adopted(_two_members())
    assert d.machine.crew.members == ("w2", "w1")  # in rank order
    assert (d.machine.numbers.generation, d.machine.mark.step, d.machine.mark.samples) == (
        5,
        20,
        200,
    )
    assert d.target("n1", "n2") == []
    assert d.wait(100.0) == []


def test_an_interruption_that_was_recovered_from_is_history() -> None:
    d = _adopted(_two_members(_interrupted(4)))
    assert d.target("n1", "n2") == []


def test_an_interruption_that_was_not_recovered_from_is_repaired() -> None:
    reports = _two_members()
    reports["w1"] = [*reports["w1"], _interrupted(5)]
    d = _adopted(reports)
    d.target("n1", "n2")
    d.ready()
    assert (d.commit().generation, d.commit().abandon, d.commit().incarnation) == (6, True, 2)


def test_an_adopted_trainer_grows_from_the_size_it_has() -> None:
    d = _adopted(_two_members())
    d.target("n1", "n2", "n3")
    d.warm("n3")
    d.ready()
    (done,) = d.wanted(Rescaled, d.enter(step=30))
    assert (done.generation, done.size_before, done.size) == (6, 2, 3)


def test_an_adopted_trainer_parks_from_the_size_it_has() -> None:
    d = _adopted(_two_members())
    d.target()
    d.leave("w1", 6)
    d.leave("w2", 6)
    assert [p.size_before for p in d.wanted(Parked, d.log)] == [2]


def test_a_member_whose_agent_did_not_come_back_is_lost() -> None:
    reports = _two_members()
    del reports["w2"]
    d = _adopted(reports)
    d.target("n1")
    d.ready()
    assert d.commit().abandon
    d.enter()
    assert d.nodes() == ["n1"]


def test_a_generation_in_the_making_is_replaced_by_a_fresh_one() -> None:
    old, new = _commit(5, "w1", "w2"), _commit(6, "w1", "w2", "w3")
    d = _adopted(
        {
            "w1": [WARM, _entered(6, 0, 3, step=21), new],
            "w2": [WARM, _entered(5, 1, 2), new],
            "w3": [WARM, new],
        },
        last_generation=6,
    )
    assert old.generation == 5
    d.target("n1", "n2", "n3")
    d.ready()
    commit = d.commit()
    assert (commit.generation, commit.abandon) == (7, True)
    assert [m.worker_id for m in commit.members] == ["w1", "w2", "w3"]
    d.enter(step=21)
    assert d.nodes() == ["n1", "n2", "n3"]


def test_a_commit_nobody_has_acted_on_yet_is_replaced_by_a_fresh_one() -> None:
    new = _commit(6, "w1", "w3")
    d = _adopted({"w1": [WARM, _entered(5, 0, 1), new], "w3": [WARM, new]})
    assert d.machine.numbers.generation == 6
    d.target("n1", "n3")
    d.ready()
    assert (d.commit().generation, d.commit().abandon) == (7, True)
    assert [m.worker_id for m in d.commit().members] == ["w1", "w3"]


def test_numbers_are_never_used_again_even_if_agents_know_more_than_we() -> None:
    d = _adopted({"w1": [WARM, _entered(9, 0, 1), _commit(9, "w1")]}, last_generation=5)
    d.target("n1", "n2")
    d.warm("n2")
    assert d.announced() == [10]


def test_phases_are_taken_over() -> None:
    left = protocol.Left(generation=5, step=20)
    done = protocol.Finished(generation=5, step=20, epoch=1, samples=200)
    d = _adopted(
        {
            "w1": [WARM, _entered(5, 0, 1), done, _commit(5, "w1")],
            "w2": [WARM, _entered(4, 1, 2), left, _commit(5, "w1")],
            "w3": [],
        }
    )
    workers = d.machine.crew.workers
    assert [workers[w].phase for w in ("w1", "w2", "w3")] == [
        WorkerPhase.MEMBER,
        WorkerPhase.LEAVING,
        WorkerPhase.STARTING,
    ]
    assert workers["w1"].is_finished
    assert d.machine.crew.members == ("w1",)


def test_warm_joiners_are_kept() -> None:
    reports = _two_members()
    reports["w3"] = [WARM]
    d = _adopted(reports)
    d.target("n1", "n2", "n3")
    assert not d.started()
    assert "w3" in d.told(protocol.Prepare)


def test_a_parking_that_was_interrupted_goes_on() -> None:
    d = _adopted({"w1": [WARM, _entered(5, 0, 1), _commit(6)]})
    d.target()
    commit = d.told(protocol.Commit)["w1"]
    assert (commit.generation, commit.members, commit.abandon) == (7, (), True)
    d.leave("w1", 7)
    assert d.wanted(Parked)


def test_a_member_that_agents_left_out_is_started_anew_at_once() -> None:
    """It waits for a generation; nobody told it of the present one."""
    commit = _commit(6, "w1", "w2")
    d = _adopted(
        {
            "w1": [WARM, _entered(6, 0, 2), commit],
            "w2": [WARM, _entered(6, 1, 2), commit],
            "w3": [WARM, _entered(5, 2, 3), _commit(5, "w1", "w2", "w3"), _interrupted(5)],
        }
    )
    out = d.target("n1", "n2", "n3")
    assert d.killed(out) == {"w3": "stays on"}
    assert d.started() == ["n3"]
    assert d.machine.crew.members == ("w1", "w2")


def test_a_generation_that_a_daemon_announced_is_told_too() -> None:
    """The journal may end before it was complete; failed before: only agents' own were told."""
    told = _told(_two_members())
    assert told is not None
    assert (told.generation, told.size, told.by) == (5, 2, "")
    assert told.nodes == ("n2", "n1")  # in rank order
    assert (told.step, told.samples) == (20, 200)


def test_a_generation_is_told_even_if_the_next_was_already_ordered() -> None:
    """Its commit is not reported any more: the agents keep the newest. Failed before."""
    told = _told(
        {"w1": [WARM, _entered(5, 0, 2), _commit(6)], "w2": [WARM, _entered(5, 1, 2), _commit(6)]}
    )
    assert told is not None
    assert (told.generation, told.nodes, told.by) == (5, ("n1", "n2"), "")


def test_nothing_is_told_of_workers_that_entered_nothing() -> None:
    assert _told({"w1": [WARM, _commit(5, "w1")]}) is None
