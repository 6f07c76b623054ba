"""The stand-in's scheduler: order, slots, reservation, backfill, preemption."""

from __future__ import annotations

import dataclasses
from typing import Any

from lsf_adapters.testcluster.config import Parameters, Queue, standard_queues
from lsf_adapters.testcluster.scheduler import Held, HostNow, Plan, Wish, run_pass

NORMAL, BF = standard_queues("ibm")
PLAIN = dataclasses.replace(NORMAL, is_preemptive=False)
NOW_S = 10_000.0


def hosts(n: int, slots: int = 4, **more: Any) -> list[HostNow]:
    master = HostNow(name="lsfm", slots=0)
    return [master, *(HostNow(name=f"n{k}", slots=slots, **more) for k in range(1, n + 1))]


def wish(key: str, n_nodes: int = 1, queue: Queue = NORMAL, **more: Any) -> Wish:
    given = {"min_slots": 4 * n_nodes, "ptile": 4, "limit_s": 600.0, "user": "alice", **more}
    given.setdefault("max_slots", given["min_slots"])
    return Wish(key=key, queue=queue, submit_s=NOW_S - 1, **given)


def held(key: str, *names: str, queue: Queue = BF, slots: int = 4, **more: Any) -> Held:
    given = {"start_s": NOW_S - 60, "ends_s": NOW_S + 540, "user": "bft", **more}
    where = tuple(name for name in names for _ in range(slots))
    return Held(key=key, queue=queue, hosts=where, **given)


def plan(wishes: list[Wish], jobs: list[Held], n: int = 2, **settings: Any) -> Plan:
    return run_pass(wishes, jobs, hosts(n), Parameters(**settings), NOW_S)


def started(result: Plan) -> dict[str, set[str]]:
    return {start.key: set(start.hosts) for start in result.starts}


def test_whole_hosts_in_order_of_priority_and_submission() -> None:
    result = plan([wish("1", queue=BF), wish("2"), wish("3")], [])
    assert started(result) == {"2": {"n1"}, "3": {"n2"}}
    assert [len(start.hosts) for start in result.starts] == [4, 4]


def test_slots_of_one_host_are_shared() -> None:
    jobs = [held("9", "n1", queue=NORMAL, slots=3)]
    one = wish("1", min_slots=1, ptile=0)
    two = wish("2", min_slots=2, ptile=0, is_one_host=True)
    assert started(plan([one, two], jobs)) == {"1": {"n1"}, "2": {"n2"}}


def test_ptile_takes_so_many_slots_of_each_host() -> None:
    result = plan([wish("1", min_slots=6, ptile=3)], [])
    (start,) = result.starts
    assert start.hosts == ("n1", "n1", "n1", "n2", "n2", "n2")


def test_asked_host_alone_will_do() -> None:
    jobs = [held("9", "n2", queue=NORMAL)]
    result = plan([wish("1", ask_hosts=("n2",), queue=PLAIN)], jobs)
    assert result.starts == []
    assert result.reasons["1"] == [["Job slot limit reached", "n2", "lsfm"]]


def test_exclusive_job_needs_an_empty_host_and_keeps_others_out() -> None:
    jobs = [held("9", "n1", queue=NORMAL, slots=1)]
    alone = wish("1", min_slots=1, ptile=0, is_exclusive=True)
    other = wish("2", min_slots=4, ptile=4)
    assert started(plan([alone, other], jobs)) == {"1": {"n2"}}


def test_closed_host_is_not_used() -> None:
    closed = run_pass([wish("1")], [], hosts(1, problem="Closed"), Parameters(), NOW_S)
    assert closed.starts == []
    assert closed.reasons["1"] == [["Closed", "n1"], ["Job slot limit reached", "lsfm"]]


def test_limit_of_slots_per_user() -> None:
    queue = dataclasses.replace(PLAIN, max_slots_per_user=4)
    result = plan([wish("1", queue=queue), wish("2", queue=queue)], [])
    assert started(result) == {"1": {"n1"}}
    assert "per-user" in result.reasons["2"][0][0]


def test_blocked_job_reserves_and_is_estimated_by_run_limits() -> None:
    jobs = [held("9", "n1", queue=PLAIN)]
    result = plan([wish("1", n_nodes=2, queue=PLAIN)], jobs)
    kept = result.reservations["1"]
    assert set(kept.hosts) == {"n2"}
    assert len(kept.hosts) == 4
    assert kept.estimate_s == NOW_S + 540
    assert set(kept.plan_hosts) == {"n1", "n2"}


def test_without_a_run_limit_nobody_knows_when() -> None:
    jobs = [held("9", "n1", queue=PLAIN, ends_s=None)]
    kept = plan([wish("1", n_nodes=2, queue=PLAIN)], jobs).reservations["1"]
    assert kept.estimate_s is None
    assert set(kept.hosts) == {"n2"}


def test_reserved_slots_are_backfilled_by_what_ends_in_time() -> None:
    jobs = [held("9", "n1", queue=PLAIN)]
    big = wish("1", n_nodes=2, queue=PLAIN)
    fits = wish("2", queue=BF, limit_s=500.0)
    too_long = wish("3", queue=BF, limit_s=600.0)
    result = plan([big, too_long, fits], jobs)
    (start,) = result.starts
    assert (start.key, start.is_backfilled) == ("2", True)
    assert result.reservations["1"].hosts == ()
    no_backfill = dataclasses.replace(BF, backfills=False)
    assert plan([big, wish("4", queue=no_backfill, limit_s=60.0)], jobs).starts == []


def test_exclusive_job_does_not_backfill() -> None:
    jobs = [held("9", "n1", queue=PLAIN)]
    alone = wish("2", queue=BF, min_slots=1, ptile=0, limit_s=60.0, is_exclusive=True)
    assert plan([wish("1", n_nodes=2, queue=PLAIN), alone], jobs).starts == []


def test_higher_priority_takes_reserved_slots() -> None:
    jobs = [held("9", "n1", queue=PLAIN)]
    urgent = dataclasses.replace(PLAIN, name="urgent", priority=50)
    result = plan(
        [wish("1", n_nodes=2, queue=PLAIN), wish("2", min_slots=1, ptile=0, queue=urgent)], jobs
    )
    assert started(result) == {"2": {"n2"}}


def test_free_host_before_preemption() -> None:
    result = plan([wish("1")], [held("9", "n1")])
    assert started(result) == {"1": {"n2"}}
    assert result.preempted == {}


def test_one_pilot_gives_way_and_its_slots_are_kept() -> None:
    result = plan([wish("1"), wish("2", queue=BF)], [held("8", "n1"), held("9", "n2")])
    assert result.starts == []
    assert result.preempted == {"8": "1"}
    # The next pass finds it on its way out and asks nobody else.
    going = [held("8", "n1", preempted_by="1", is_preempted=True), held("9", "n2")]
    again = plan([wish("1")], going)
    assert again.preempted == {}
    gone = plan([wish("1"), wish("2", queue=BF)], [held("9", "n2")])
    assert started(gone) == {"1": {"n1"}}


def test_latest_pilot_of_a_host_gives_way_first() -> None:
    old, new = held("8", "n1", slots=2), held("9", "n1", slots=2, start_s=NOW_S - 5)
    result = plan([wish("1", min_slots=2, ptile=0)], [old, new], n=1)
    assert result.preempted == {"9": "1"}


def test_what_is_not_preempted() -> None:
    pilots = [held("8", "n1"), held("9", "n2")]
    assert plan([wish("1", queue=PLAIN)], pilots).preempted == {}
    assert plan([wish("1")], pilots, preempt_jobtype=()).preempted == {}
    assert plan([wish("1")], pilots, preempt_delay_s=5.0).preempted == {}
    assert plan([wish("1")], pilots, max_job_preempt=0).preempted == {}
    unreachable = [dataclasses.replace(one, obeys=False) for one in pilots]
    assert plan([wish("1")], unreachable).preempted == {}
    alone = [dataclasses.replace(one, is_exclusive=True) for one in pilots]
    assert plan([wish("1")], alone).preempted == {}


def test_suspended_slots_are_lent_to_preemptive_queues_alone() -> None:
    jobs = [held("8", "n1", is_suspended=True, is_preempted=True, preempted_by="1")]
    result = plan([wish("1"), wish("2", queue=BF)], jobs, n=1)
    assert started(result) == {"1": {"n1"}}
    assert result.resumed == []
    assert plan([], jobs, n=1).resumed == ["8"]


def test_gpus_are_counted() -> None:
    with_gpus = hosts(1, gpus=2)
    two = wish("1", min_slots=1, ptile=0, gpus=2, queue=PLAIN)
    one = wish("2", min_slots=1, ptile=0, gpus=1, queue=PLAIN)
    result = run_pass([two, one], [], with_gpus, Parameters(), NOW_S)
    assert started(result) == {"1": {"n1"}}
