"""Two daemons borrow the same nodes: both get some, nobody waits in vain, a reserve stays one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from bftrainer.decide import borrowers
from bftrainer.decide.pool import KEPT_FREE
from bftrainer.model.cluster import Job, JobState, NodeState, Snapshot
from bftrainer.model.decision import PilotView, Plan, Settings
from tests.support.sim_cluster import SimCluster
from tests.support.snapshots import (
    T0,
    Fold,
    claimed,
    held,
    idle_nodes,
    node_names,
    pilot,
    record,
    released,
    running,
    snapshot,
    with_state,
)

TOKENS = {"a": "aaaaaaaa", "b": "bbbbbbbb"}
LOOK_S = 1.0
CYCLE_S = 10.0


def of_pilot(name: str, *nodes: str, user: str = "bft", number: int = 1) -> Job:
    """A pilot of another daemon that has nodes."""
    job = replace(running(str(number), *nodes), user=user, partitions=("bf",))
    return replace(job, pilot_id=f"{name}.bbbbbbbb", submit_s=T0 - 60.0)


def waiting(
    pilot_id: str, node: str, *, number: int, user: str = "bft", submit_s: float = T0 - 60.0
) -> Job:
    """A pilot, of whichever daemon, that waits for a node."""
    job = of_pilot("x", node, user=user, number=number)
    return replace(
        job,
        pilot_id=pilot_id,
        state=JobState.PENDING,
        required_nodes=(node,),
        nodes=(),
        start_s=None,
        submit_s=submit_s,
    )


# ---- one decision ----------------------------------------------------------------------------


def test_a_node_is_not_asked_for_that_another_daemons_pilot_waits_for() -> None:
    seen = snapshot(idle_nodes(3), [waiting("p1.bbbbbbbb", "n2", number=1)])
    plan = Fold().decide(seen, (), [record()])
    assert claimed(plan) == {"n1", "n3"}
    assert plan.not_used["n2"] == borrowers.WAITED_FOR


@pytest.mark.parametrize(("ours", "goes"), [(1, set()), (3, {"n1"})], ids=["before", "after"])
def test_of_two_that_wait_for_a_node_the_later_one_steps_back(ours: int, goes: set[str]) -> None:
    jobs = [waiting("p-n1", "n1", number=ours), waiting("p1.bbbbbbbb", "n1", number=2)]
    pending_pilot = pilot("n1", is_held=False)
    plan = Fold().decide(snapshot(idle_nodes(1), jobs), [pending_pilot], [record()])
    assert released(plan) == goes
    assert claimed(plan) == set()


def test_order_is_by_submission_and_then_by_number() -> None:
    early = waiting("p9.bbbbbbbb", "n1", number=99, submit_s=T0 - 61.0)
    jobs = [early, *(waiting("p1.bbbbbbbb", "n1", number=n) for n in (9, 10, 100))]
    mixed = [jobs[k] for k in (3, 1, 0, 2)]
    assert sorted(mixed, key=borrowers.order_of) == jobs


def test_pilots_whose_nodes_another_daemon_has_are_cancelled_at_once() -> None:
    """n1 to n3 went to it, n4 is ours; nobody waits for n1 to n3 until they are overdue."""
    nodes = with_state(idle_nodes(4), NodeState.ALLOCATED, *node_names(4))
    theirs = [of_pilot(f"p{k}", f"n{k}", number=k) for k in (1, 2, 3)]
    ours = [waiting(f"p-n{k}", f"n{k}", number=10 + k) for k in (1, 2, 3)]
    pilots = [*held("n4"), *(pilot(f"n{k}", is_held=False) for k in (1, 2, 3))]
    plan = Fold().decide(snapshot(nodes, [*theirs, *ours]), pilots, [record()])
    assert released(plan) == {"n1", "n2", "n3"}
    assert {release.reason for release in plan.releases} == {borrowers.TAKEN}


@pytest.mark.parametrize("theirs_at", [("n1", "n2"), ("n1",)], ids=["two", "one"])
def test_who_has_no_node_waits_with_one_pilot_for_a_node_of_who_has_several(
    theirs_at: tuple[str, ...],
) -> None:
    nodes = with_state(idle_nodes(2), NodeState.ALLOCATED, *theirs_at)
    theirs = [of_pilot(f"p-{n}", n, number=k) for k, n in enumerate(theirs_at)]
    ours = [waiting(f"p-{n}", n, number=10 + k) for k, n in enumerate(theirs_at)]
    pilots = [pilot(n, is_held=False) for n in theirs_at]
    seen = replace(snapshot(nodes, [*theirs, *ours]), taken_at_s=T0)
    plan = Fold().decide(seen, pilots, [record(n_max=len(theirs_at))])
    assert released(plan) == ({"n2"} if len(theirs_at) > 1 else {"n1"})


def test_who_has_several_nodes_gives_one_to_a_daemon_that_has_none() -> None:
    nodes = with_state(idle_nodes(3), NodeState.ALLOCATED, *node_names(3))
    mine = [
        replace(of_pilot("x", n, number=k), pilot_id=f"p-{n}")
        for k, n in enumerate(("n1", "n2", "n3"))
    ]
    waits = [waiting(f"p{k}.bbbbbbbb", f"n{k}", number=20 + k, user="ada") for k in (2, 3)]

    def goes(*jobs: Job) -> set[str]:
        return released(
            Fold().decide(snapshot(nodes, [*mine, *jobs]), held("n1", "n2", "n3"), [record()])
        )

    assert goes(*waits) == {"n2"}, "one for each user, the first that was submitted"
    assert goes(*waits, of_pilot("p9", "n9", user="ada", number=9)) == set(), "it has one"
    assert goes(replace(waits[0], is_entitled=False)) == set(), "it could not start"
    assert goes(replace(waits[0], submit_s=T0 - 1.0)) == set(), "it may still start elsewhere"
    assert goes(replace(waits[0], pilot_id="4711")) == set(), "a job that is no pilot"
    several = [
        replace(waits[0], user=f"u{k}", pilot_id=f"p{k}.0000000{k}", required_nodes=(n,))
        for k, n in enumerate(("n1", "n2", "n3"))
    ]
    assert len(goes(*several)) == 2, "the last one stays"


# ---- the reserve -----------------------------------------------------------------------------


def with_reserve_taken(fold: Fold) -> tuple[Snapshot, Plan]:
    """n1 and n2 are ours; n3, the reserve, was free in one look, and another's in the next."""
    nodes = with_state(idle_nodes(3), NodeState.ALLOCATED, "n1", "n2")
    assert fold.decide(snapshot(nodes), held("n1", "n2"), [record()]).reserve == ("n3",)
    seen = snapshot(with_state(nodes, NodeState.ALLOCATED, "n3"), [of_pilot("p1", "n3")])
    return seen, fold.decide(seen, held("n1", "n2"), [record()], at_s=T0 + 1)


def test_a_reserve_node_that_another_daemon_takes_stays_the_reserve() -> None:
    fold = Fold(settings=Settings(reserve_nodes_per_type=1))
    seen, plan = with_reserve_taken(fold)
    assert plan.releases == ()
    # As before where an ordinary job takes it.
    job = replace(seen, jobs=(running("8", "n3"),))
    assert len(fold.decide(job, held("n1", "n2"), [record()], at_s=T0 + 2).releases) == 1


def test_a_reserve_node_that_another_daemon_waits_for_is_not_replaced_either() -> None:
    fold = Fold(settings=Settings(reserve_nodes_per_type=1))
    nodes = with_state(idle_nodes(3), NodeState.ALLOCATED, "n1", "n2")
    fold.decide(snapshot(nodes), held("n1", "n2"), [record()])
    seen = snapshot(nodes, [waiting("p1.bbbbbbbb", "n3", number=5)])
    assert fold.decide(seen, held("n1", "n2"), [record()], at_s=T0 + 1).releases == ()


def test_what_comes_free_while_the_reserve_is_taken_may_be_lent() -> None:
    fold = Fold(settings=Settings(reserve_nodes_per_type=1))
    seen, _ = with_reserve_taken(fold)
    free = replace(seen, nodes=with_state(seen.nodes or (), NodeState.IDLE, "n2"))
    assert claimed(fold.decide(free, held("n1"), [record()], at_s=T0 + 2)) == {"n2"}
    # The other daemon's pilot has ended.
    over = replace(free, nodes=with_state(free.nodes or (), NodeState.IDLE, "n3"), jobs=())
    plan = fold.decide(over, held("n1"), [record()], at_s=T0 + 3)
    assert len(plan.reserve) == 1
    assert plan.not_used[plan.reserve[0]] == KEPT_FREE


def test_without_other_daemons_nothing_is_remembered_or_reordered() -> None:
    fold = Fold(settings=Settings(reserve_nodes_per_type=1))
    plan = fold.decide(snapshot(idle_nodes(4), [running("7", "n4")]), (), [record()])
    assert [claim.node for claim in plan.claims] == sorted(claimed(plan))
    assert plan.memory.reserve_taken == {}


# ---- two daemons -----------------------------------------------------------------------------


class SharedCluster(SimCluster):
    """A batch system that shows each pilot's node while it waits, and when it was submitted."""

    def snapshot(self) -> Snapshot:
        seen, jobs = super().snapshot(), list[Job]()
        for job in seen.jobs or ():
            if job.pilot_id is not None:
                mine = self.pilots[job.pilot_id]
                job = replace(  # noqa: PLW2901
                    job,
                    job_id=job.pilot_id[1:5],
                    user=job.pilot_id[0],
                    required_nodes=(mine.node,),
                    submit_s=float(int(mine.requested_s)),
                )
            jobs.append(job)
        return replace(seen, jobs=tuple(jobs))


class Site:
    """Daemons *a* and *b*, each with a trainer that would use every node."""

    def __init__(self, n_nodes: int, **reserves: int) -> None:
        self.cluster = SharedCluster(types=dict.fromkeys(node_names(n_nodes), "cpu"))
        self.folds = {
            name: Fold(settings=Settings(reserve_nodes_per_type=n, min_gap_s=0.0, cycle_s=CYCLE_S))
            for name, n in reserves.items()
        }
        self.n_releases, self.n_looks = Counter[str](), 0
        self.longest_wait_s = Counter[str]()  # of a pilot for its node
        self._number = 1000

    def views(self, daemon: str) -> list[PilotView]:
        views = self.cluster.views()
        return [view for view in views if view.pilot_id.startswith(daemon)]

    def decide(self, *names: str) -> None:
        """Let daemons look and decide at one moment, and submit in turns."""
        seen, claims = self.cluster.snapshot(), list[list[tuple[str, str, float]]]()
        for name in names:
            at_s = self.cluster.now_s
            plan = self.folds[name].decide(seen, self.views(name), [record(n_max=99)], at_s=at_s)
            for release in plan.releases:
                self.n_releases[name] += 1
                self.cluster.pilots[release.pilot_id].is_leaving = True
            claims.append([(name, claim.node, claim.time_limit_s) for claim in plan.claims])
        for turn in range(max(map(len, claims), default=0)):
            for name, node, limit_s in [c[turn] for c in claims if turn < len(c)]:
                self._number += 1
                pilot_id = f"{name}{self._number}.{TOKENS[name]}"
                self.cluster.add_pilot(pilot_id, node, limit_s)

    def pass_time(self, seconds: float, *names: str) -> None:
        """Let the daemons look every second, while the scheduler starts what it can."""
        for _ in range(int(seconds / LOOK_S)):
            self.cluster.pass_time(LOOK_S)
            cycled_s = self.cluster.cycle_ended_s
            self.cluster.cycle()
            if cycled_s is not None and self.cluster.now_s - cycled_s < CYCLE_S:
                self.cluster.cycle_ended_s = cycled_s
            self.cluster.connect_agents()
            self.n_looks += 1
            self.decide(*(names or self.folds))
            for mine in self.cluster.pilots.values():
                if mine.start_s is None:
                    wait_s = self.cluster.now_s - mine.requested_s
                    key = mine.pilot_id[0]
                    self.longest_wait_s[key] = max(self.longest_wait_s[key], int(wait_s))

    def sizes(self) -> dict[str, int]:
        counts = Counter(p.pilot_id[0] for p in self.cluster.pilots.values() if p.is_held)
        return {name: counts[name] for name in self.folds}

    def n_free(self) -> int:
        return len(self.cluster.free())


def calm(site: Site, seconds: float = 40.0) -> dict[str, int]:
    """Return the sizes, which do not change any more."""
    before, sizes, pilots = +site.n_releases, site.sizes(), set(site.cluster.pilots)
    site.pass_time(seconds)
    assert site.n_releases == before
    assert site.sizes() == sizes
    assert set(site.cluster.pilots) == pilots
    return sizes


def test_two_that_begin_at_once_both_get_nodes() -> None:
    site = Site(6, a=0, b=0)
    site.pass_time(20.0)
    sizes = calm(site)
    assert sum(sizes.values()) == 6
    assert min(sizes.values()) >= 1
    assert max(site.longest_wait_s.values()) < CYCLE_S, "no pilot waits for its node for long"


def test_two_with_a_reserve_keep_one_node_free_between_them() -> None:
    site = Site(6, a=1, b=1)
    site.pass_time(20.0)
    sizes = calm(site)
    assert (sum(sizes.values()), site.n_free()) == (5, 1)
    assert min(sizes.values()) >= 1


def test_nodes_that_come_free_go_to_both() -> None:
    site = Site(8, a=0, b=0)
    site.cluster.drained = {"n5", "n6", "n7", "n8"}
    site.pass_time(20.0)
    before = calm(site)
    site.cluster.drained = set()
    site.pass_time(20.0)
    after = calm(site)
    assert sum(after.values()) == 8
    assert {name: after[name] - before[name] for name in before} == {"a": 2, "b": 2}


def test_a_borrower_takes_the_reserve_once_and_no_more() -> None:
    site = Site(6, a=1, b=0)
    site.pass_time(20.0, "a")
    assert (site.sizes(), site.n_free()) == ({"a": 5, "b": 0}, 1)
    site.pass_time(20.0)
    assert calm(site) == {"a": 5, "b": 1}


def test_an_ordinary_job_gets_the_nodes_of_both_and_both_come_back() -> None:
    site = Site(6, a=1, b=0)
    site.pass_time(20.0)
    site.cluster.submit(6, 20.0, is_hopeless=False)
    site.pass_time(20.0)
    [job] = site.cluster.jobs.values()
    assert len(job.nodes) == 6
    site.pass_time(30.0)
    sizes = calm(site)
    assert sum(sizes.values()) >= 5
    assert min(sizes.values()) >= 1
