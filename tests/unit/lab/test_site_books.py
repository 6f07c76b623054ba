"""The daemon beside a simulated machine keeps the books and the rules of the real one.

Each test names what an imitation of them had left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from bftrainer.batch.commands import SHORTEST_LIMIT_S
from bftrainer.fleet.pilots.vain import TIMES
from bftrainer.lab.site.looks import job_id_of
from bftrainer.lab.site.machine import JobSpec, Machine, SchedulerSettings
from bftrainer.lab.site.scheduler import Backfill, MainScheduler
from bftrainer.lab.site.sidecar import LEAVE_S, LOOK_S, ORDER_S, Core, Sidecar
from bftrainer.model.cluster import EndedBy
from bftrainer.model.decision import Claim, Memory, PilotView, Plan, Release

N_NODES = 8
BEGIN_S = 20.0
QUIET_S = 30.0  # the first look is over, and the next regular one far away
HOUR_S = 3600.0
SOON_S = 0.5


class Undecided(Core):
    """It sees everything, and decides nothing: a test does."""

    def decide(self, pilots: Sequence[PilotView], *, is_new: bool) -> Plan:
        del pilots, is_new
        return plan()


class QuietSite:
    """Eight idle nodes, and a daemon that does what a test plans."""

    def __init__(self) -> None:
        self.machine = Machine(SchedulerSettings(n_nodes=N_NODES, sched_min_interval_s=0.0))
        MainScheduler(self.machine)
        self.sidecar = Sidecar(self.machine, core=Undecided(self.machine))
        backfill = Backfill(self.machine, self.sidecar.know)
        self.sidecar.last_cycle = lambda: backfill.last
        self.machine.at(BEGIN_S, self.sidecar.begin)
        self.machine.run(QUIET_S)

    def request(self, *nodes: int, time_limit_s: float = HOUR_S) -> list[str]:
        """Ask for pilots on these nodes; return their ids."""
        claims = [
            Claim(node=f"n{node:05d}", time_limit_s=time_limit_s, for_trainer="t1")
            for node in nodes
        ]
        before = set(self.sidecar.book.pilots)
        self.sidecar.carry_out(plan(claims=tuple(claims)))
        return sorted(self.sidecar.book.pilots.keys() - before)

    def release(self, *pilot_ids: str) -> None:
        """Ask these pilots to leave."""
        nodes = {p: self.sidecar.book.pilots[p].record.node for p in pilot_ids}
        releases = [
            Release(pilot_id=pilot_id, node=node, reason="A test.")
            for pilot_id, node in nodes.items()
        ]
        self.sidecar.carry_out(plan(releases=tuple(releases)))

    def wait(self, seconds: float) -> None:
        self.machine.run(self.machine.now_s + seconds)

    @property
    def n_cancels(self) -> int:
        return self.sidecar.core.slurm.request_counts().get("cancel", 0)

    @property
    def looks(self) -> int:
        return self.sidecar.core.pace.looks


def plan(claims: tuple[Claim, ...] = (), releases: tuple[Release, ...] = ()) -> Plan:
    return Plan(
        assignment={},
        claims=claims,
        releases=releases,
        pool=(),
        not_used={},
        reserve=(),
        allocation=None,
        memory=Memory(),
    )


def test_a_cancel_does_not_wait_for_submissions() -> None:
    """Both had one queue; the daemon has a thread for each."""
    site = QuietSite()
    first, *_ = site.request(*range(N_NODES))
    site.wait(1.5 * ORDER_S)  # the first is submitted
    assert first in site.machine.preemptable
    site.release(first)
    site.wait(1.5 * ORDER_S)
    assert first not in site.machine.preemptable


def test_a_pilot_that_is_released_before_its_turn_is_never_submitted() -> None:
    """It was counted as submitted, and its job, which there was not, was cancelled."""
    site = QuietSite()
    pilot_ids = site.request(*range(N_NODES))
    *_, last = pilot_ids
    site.release(last)
    site.wait(2 * N_NODES * ORDER_S)
    assert site.sidecar.n_submissions == N_NODES - 1
    assert site.n_cancels == 0
    assert last not in site.sidecar.book.pilots


def test_a_burst_of_cancels_is_two_orders() -> None:
    """Each was an order of its own; the daemon collects those that come during one."""
    site = QuietSite()
    pilot_ids = site.request(*range(N_NODES))
    site.wait(1.5 * N_NODES * ORDER_S)
    for pilot_id in pilot_ids:
        site.release(pilot_id)
    site.wait(3 * ORDER_S)
    assert site.n_cancels == 2
    assert not site.machine.preemptable


def test_an_agent_that_was_told_holds_its_node_until_it_has_left() -> None:
    """It was no agent any more as soon as it was told."""
    site = QuietSite()
    (pilot_id,) = site.request(0)
    site.wait(60.0)
    site.release(pilot_id)
    (view,) = site.sidecar.views()
    assert (view.is_held, view.is_leaving) == (True, True)
    site.wait(2 * LEAVE_S)
    (view,) = site.sidecar.views()
    assert (view.is_held, view.is_leaving) == (False, True)
    assert site.n_cancels == 0


def test_a_job_of_srun_is_looked_for_as_soon_as_any_other() -> None:
    """It was looked for a second later."""
    site = QuietSite()
    before = site.looks
    job = JobSpec(number=1, submit_s=QUIET_S, n_nodes=1, limit_s=HOUR_S, run_s=HOUR_S, kind="srun")
    site.machine.load([job])
    site.wait(SOON_S)
    assert site.looks == before + 1


def test_pilots_that_do_not_start_are_looked_for() -> None:
    """Nobody looked before the next regular time, a minute or two later."""
    site = QuietSite()
    everything = JobSpec(number=1, submit_s=QUIET_S, n_nodes=N_NODES, limit_s=HOUR_S, run_s=HOUR_S)
    site.machine.load([everything])
    site.wait(5.0)
    site.request(0)
    before = site.looks
    site.wait(6.0 + SOON_S + LOOK_S)
    assert site.looks == before + 1


def test_a_pilot_is_seen_as_the_same_object_while_nothing_of_it_changes() -> None:
    site = QuietSite()
    site.request(0)
    site.wait(60.0)
    (before,), (after,) = site.sidecar.views(), site.sidecar.views()
    assert before is after
    site.release(before.pilot_id)
    (after,) = site.sidecar.views()
    assert after.is_leaving


# ---- requests that are refused or in vain ------------------------------------------------------


def test_a_trainer_pauses_whose_pilots_end_before_a_step() -> None:
    """It asked for pilots for ever."""
    site = QuietSite()
    for _ in range(TIMES):
        (pilot_id,) = site.request(0)
        site.wait(60.0)
        assert site.sidecar.book.pilots[pilot_id].has_started  # its worker never does
        site.release(pilot_id)
        site.wait(5.0)
    assert site.request(0) == []
    assert site.sidecar.core.refusals.n_vain == 1
    site.wait(40.0)
    (trial,) = site.request(0, 1)
    assert trial


def test_a_trainer_that_trains_does_not_pause() -> None:
    """Its pilots were used: a step counts from each end on."""
    machine, sidecar = served_site()
    machine.run(HELD_S)
    for _ in range(TIMES + 1):
        machine.preempt(list(machine.preemptable.values())[:2])
        machine.run(machine.now_s + 10.0)
    assert sidecar.core.refusals.n_vain == 0
    (trainer,) = sidecar.core.records.values()
    assert trainer.progress.step > 0


def test_what_slurm_has_no_job_for_is_refused_and_requests_pause() -> None:
    """It was passed over without a word."""
    site = QuietSite()
    (pilot_id,) = site.request(0, time_limit_s=30.0)
    site.wait(2 * ORDER_S)
    assert pilot_id not in site.sidecar.book.pilots
    assert "Slurm has no job of 30 s." in site.sidecar.core.refusals.why
    assert site.request(1) == []
    site.wait(3.0)
    site.request(1)
    site.wait(2 * ORDER_S)
    assert site.sidecar.core.refusals.why == ""


def test_a_look_tells_how_long_the_shortest_job_of_slurm_is() -> None:
    """A decision claimed nodes for half a minute, which the real adapter never shows as free."""
    machine, sidecar = served_site()
    machine.run(HELD_S)
    assert sidecar.core.snapshot is not None
    assert sidecar.core.snapshot.shortest_limit_s == SHORTEST_LIMIT_S


# ---- hand-overs ------------------------------------------------------------------------------

N_SERVED = 40
CLEANED_S = 30.0  # by an epilog: who had to preempt starts so much later
APART_S = 100.0  # jobs of srun, which run on
JOB_NODES = (2, 4, 6)  # each more than the reserve, which is as many as the last one had
HELD_S = 100.0  # by then the daemon has what it can


def served_site(*, gives_back: bool = True, **slurm: float) -> tuple[Machine, Sidecar]:
    """A machine of idle nodes, and a daemon beside it that decides by itself."""
    machine = Machine(SchedulerSettings(n_nodes=N_SERVED, **slurm))  # type: ignore[arg-type]  # numbers
    MainScheduler(machine)
    sidecar = Sidecar(machine, core=Core(machine, policy_values={"give_back": gives_back}))
    backfill = Backfill(machine, sidecar.know)
    sidecar.last_cycle = lambda: backfill.last
    machine.at(BEGIN_S, sidecar.begin)
    return machine, sidecar


def preempting_jobs() -> list[JobSpec]:
    """Jobs of srun, which preempt before any word of them can be heard."""
    jobs = []
    for number, n_nodes in enumerate(JOB_NODES, 1):
        job = JobSpec(
            number=number,
            submit_s=HELD_S + APART_S * number,
            n_nodes=n_nodes,
            limit_s=HOUR_S,
            run_s=HOUR_S,
            kind="srun",
        )
        jobs.append(job)
    return jobs


def held_after_preemptions(*, gives_back: bool) -> int:
    """Return how many nodes are held when all these jobs have preempted, and started late."""
    machine, _ = served_site(gives_back=gives_back, end_cost_s=CLEANED_S)
    machine.load(preempting_jobs())
    machine.run(HELD_S + APART_S * (len(JOB_NODES) + 1))
    assert machine.n_preempted >= len(JOB_NODES)
    return machine.held.bit_count()


def test_the_daemon_holds_half_where_hand_overs_are_late() -> None:
    """It held what the jobs left, as one that promises nothing."""
    n_all = N_SERVED - 1  # but for the reserve
    assert held_after_preemptions(gives_back=True) == n_all // 2
    assert held_after_preemptions(gives_back=False) > n_all // 2


def test_a_job_that_was_given_nodes_is_looked_for_until_it_has_them() -> None:
    """Nobody looked before the next regular time."""
    machine, sidecar = served_site(sched_min_interval_s=60.0)  # it waits for backfill
    submit_s = 90.3
    job = JobSpec(number=1, submit_s=submit_s, n_nodes=4, limit_s=HOUR_S, run_s=HOUR_S)
    machine.load([job])
    machine.run(submit_s + 1.0)
    assert sidecar.core.given_back
    before = sidecar.core.pace.looks
    machine.run(submit_s + 9.0)
    assert sidecar.core.pace.looks == before + 3  # 1, 2 and 4 s after another


def test_slurm_says_which_pilots_it_preempted() -> None:
    """It said nothing of how a pilot had ended."""
    machine, sidecar = served_site()
    machine.run(HELD_S)
    cancelled, preempted, *_ = machine.preemptable.values()
    machine.cancel_preemptable(cancelled)
    machine.preempt([preempted])
    job_ids = [job_id_of(cancelled.name), job_id_of(preempted.name)]
    states = sidecar.core.slurm.pilot_states(job_ids).values()
    assert [state.ended_by for state in states] == [EndedBy.CANCELLED, EndedBy.PREEMPTED]
