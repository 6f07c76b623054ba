"""A decision is the same whatever was decided before it: in order, and again from the last back."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from bftrainer.decide.decision import decide
from bftrainer.model.cluster import Job, Node
from bftrainer.model.decision import DecisionInput, Memory, PilotView, Plan, Settings
from tests.support.examples import examples
from tests.support.gpu_hosts import gpu_host, gpu_job, ordinary, part_pilot, pilot_job
from tests.support.snapshots import T0, snapshot

N_GPUS = 4
N_HOSTS = 3
SETTINGS = Settings(reserve_nodes_per_type=0, cycle_s=30.0)
CHANGES = ("host", "arrival", "arrival", "departure", "leaving", "nothing")


class Site:
    """Hosts, jobs and pilots of ours, of which a step changes one."""

    def __init__(self) -> None:
        self.hosts: dict[str, Node] = {}
        self.running: dict[str, Job] = {}  # by host
        self.queue: list[Job] = []
        self.n_submitted = 0
        self.pilots: list[PilotView] = []
        self.pilot_jobs: list[Job] = []
        for k in range(1, N_HOSTS + 1):
            self.set_host(f"n{k}", n_ordinary=k % 2, n_ours=2)

    def set_host(self, host: str, *, n_ordinary: int, n_ours: int) -> None:
        """Put other jobs and pilots on a host."""
        self.hosts[host] = gpu_host(host, ordinary=n_ordinary, ours=n_ours)
        self.running.pop(host, None)
        if n_ordinary:
            self.running[host] = ordinary(f"r{host}", host, n_ordinary)
        self.pilots = [pilot for pilot in self.pilots if not pilot.node.startswith(f"{host}/")]
        names = [f"{host}/{number}" for number in range(n_ours)]
        self.pilots += [part_pilot(name) for name in names]
        self.pilot_jobs = [pilot_job(pilot.node) for pilot in self.pilots]

    def change(self, what: str, number: int) -> None:
        """Change one thing; ``number`` says which, or how much."""
        if what == "host":
            n_ordinary = number % (N_GPUS + 1)
            n_ours = number % (N_GPUS + 1 - n_ordinary)
            self.set_host(f"n{number % N_HOSTS + 1}", n_ordinary=n_ordinary, n_ours=n_ours)
        elif what == "arrival":
            self.n_submitted += 1
            self.queue.append(gpu_job(str(100 + self.n_submitted), number % N_GPUS + 1))
        elif what == "departure" and self.queue:
            del self.queue[number % len(self.queue)]
        elif what == "leaving" and self.pilots:
            at = number % len(self.pilots)
            self.pilots[at] = replace(self.pilots[at], is_leaving=True)

    def input(self, step: int, memory: Memory) -> DecisionInput:
        """Return what is decided on; jobs that came last are last."""
        jobs = [*self.running.values(), *self.pilot_jobs, *self.queue]
        return DecisionInput(
            now_s=T0 + 5.0 * step,
            snapshot=replace(snapshot(list(self.hosts.values()), jobs), taken_at_s=T0),
            is_new_snapshot=step % 3 == 0,
            pilots=tuple(self.pilots),
            trainers=(),
            settings=SETTINGS,
            memory=memory,
        )


@settings(max_examples=examples(100), deadline=None)
@given(
    history=st.lists(
        st.tuples(st.sampled_from(CHANGES), st.integers(0, 1000), st.booleans()), max_size=10
    )
)
def test_a_decision_is_the_same_whatever_was_decided_before(
    history: list[tuple[str, int, bool]],
) -> None:
    site, memory = Site(), Memory()
    decisions: list[tuple[DecisionInput, Plan]] = []
    for step, (what, number, is_hasty) in enumerate(history):
        site.change(what, number)
        seen = replace(site.input(step, memory), gives_back_only=is_hasty)
        plan = decide(seen, None)
        decisions.append((seen, plan))
        memory = plan.memory
    for seen, plan in reversed(decisions):
        assert decide(deepcopy(seen), None) == plan  # equal, but none of the objects of before
