"""The ledger over random histories of hosts that jobs and pilots share, against what happened.

Between two looks one thing happens, so that it is known who got what: a job has first what is free,
and takes parts only for what lacks then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from bftrainer.daemon.harm.ledger import (
    Farewell,
    HandOver,
    HarmRecords,
    Ledger,
    Taken,
    Vain,
    Why,
    farewell,
    fold,
)
from bftrainer.decide.decision import decide
from bftrainer.model.cluster import FREE, Job, Node, node_of
from bftrainer.model.decision import DecisionInput, PilotView, Plan, Settings
from bftrainer.model.parts import NodePart
from tests.property.test_harm_ledger import STEPS
from tests.property.test_harm_ledger import World as WholeNodes
from tests.support.examples import examples
from tests.support.part_story import (
    N_GPUS,
    PartStory,
    a_part,
    asking,
    host,
    of_part,
    pilot_job,
    runs,
)
from tests.support.snapshots import ExactPolicy, record

Settled = TypeVar("Settled", HandOver, Vain, Taken)
HOSTS = ("n1", "n2")
LOOK_S = 10.0
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["pilot", "pilot", "job", "release", "end", "quit"]),
        st.sampled_from(HOSTS),
        st.integers(1, 3),
        st.booleans(),
    ),
    max_size=30,
)


@dataclass(slots=True)
class World:
    """Two hosts of four GPUs, and the ledger; ``truth``: part -> job."""

    story: PartStory = field(default_factory=PartStory)
    now_s: float = 0.0
    parts: dict[str, NodePart] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    n_jobs: int = 0
    truth: list[tuple[str, str]] = field(default_factory=list)
    n_vain: int = 0
    gone: dict[str, NodePart] = field(default_factory=dict)

    def free(self, name: str) -> int:
        held = sum(part.gpus for part in self.parts.values() if part.node == name)
        used = sum(job.gpus_per_node for job in self.jobs.values() if name in job.nodes)
        return N_GPUS - held - used

    def look(self, *waiting: Job, releases: dict[str, str] | None = None) -> None:
        self.now_s += LOOK_S
        nodes: list[Node] = [host(name, self.free(name)) for name in HOSTS]
        jobs = [*map(pilot_job, self.parts.values()), *self.jobs.values(), *waiting]
        self.story.look(
            self.now_s, nodes, jobs, list(map(of_part, self.parts.values())), releases=releases
        )

    def happens(self, what: str, name: str, gpus: int, is_seen: bool) -> None:
        here = [part.name for part in self.parts.values() if part.node == name]
        if what == "pilot" and self.free(name) >= min(gpus, 2):
            number = next(k for k in range(N_GPUS) if f"{name}/{k}" not in self.parts)
            self.parts[f"{name}/{number}"] = a_part(f"{name}/{number}", min(gpus, 2))
        elif what == "end":
            ending = [job_id for job_id, job in self.jobs.items() if name in job.nodes]
            for job_id in ending[:1]:
                del self.jobs[job_id]
        elif what == "quit" and here:
            self._goes(here[0], "lease")
        elif what in ("job", "release"):
            self._starts(what, name, gpus, here, is_seen=is_seen)

    def _starts(self, what: str, name: str, gpus: int, here: list[str], *, is_seen: bool) -> None:
        had = self.free(name)
        goes = self._enough(here, gpus - had)
        if goes is None:
            return
        self.n_jobs += 1
        job = asking(f"{self.n_jobs}", gpus)
        job = replace(job, submit_s=(job.submit_s or 0.0) + self.now_s)
        n_more = 0
        if what == "release":
            spare = [part for part in here if part not in goes][:1]
            n_more = len(spare)
            self.look(job, releases=dict.fromkeys([*goes, *spare], job.job_id))
            for part in (*goes, *spare):
                self._goes(part, "told")
        else:
            if is_seen:
                self.look(job)
            for part in goes:
                self._goes(part, "signal")
        self.jobs[job.job_id] = runs(job, name, start_s=self.now_s + 1.0)
        if not n_more:
            self.truth += [(part, job.job_id) for part in goes]
            return
        self.look()  # which of them was one too many is not to be known
        news = self.story.hand_overs[len(self.truth) :]
        assert {done.job_id for done in news} <= {job.job_id}
        assert sum(done.gpus for done in news) >= gpus - had
        self.truth += [(done.node, done.job_id) for done in news]
        self.n_vain += len(goes) + n_more - len(news)

    def _goes(self, part: str, reason: str) -> None:
        self.gone[part] = self.parts.pop(part)
        self.story.says(part, reason, self.now_s + 0.5, self.now_s + 0.6)

    def _enough(self, here: list[str], lack: int) -> list[str] | None:
        """Return parts of which none is too many; None: there are not as many GPUs."""
        goes: list[str] = []
        for part in here:
            if sum(self.parts[name].gpus for name in goes) < lack:
                goes.append(part)
        n_gone = sum(self.parts[name].gpus for name in goes)
        if n_gone < lack:
            return None
        for part in list(goes):
            if n_gone - self.parts[part].gpus >= lack:
                n_gone -= self.parts[part].gpus
                goes.remove(part)
        return goes


@settings(max_examples=examples(240), deadline=None)
@given(events=EVENTS)
def test_each_job_is_told_to_have_the_parts_that_it_took(
    events: list[tuple[str, str, int, bool]],
) -> None:
    world = World()
    world.look()
    for what, name, gpus, is_seen in events:
        world.happens(what, name, gpus, is_seen)
        world.look()
        told = [(done.node, done.job_id) for done in world.story.hand_overs]
        assert sorted(told) == sorted(world.truth)
        assert len(world.story.vain) == world.n_vain
        assert {vain.why for vain in world.story.vain} <= {Why.STARTED_ELSEWHERE}
    assert world.story.ledger.ends == {}
    assert not world.story.taken


# ---- a part that is the whole node ------------------------------------------------------


@dataclass(slots=True)
class Twice(WholeNodes):
    """Every node as it is, and beside it as a part with all GPUs, for jobs with all GPUs."""

    of_parts: Ledger = field(default_factory=Ledger)
    records_of_parts: list[HarmRecords] = field(default_factory=list)

    def decide(self) -> None:
        cluster = self.cluster
        seen = DecisionInput(
            now_s=cluster.now_s,
            snapshot=cluster.snapshot(),
            is_new_snapshot=True,
            pilots=cluster.views(),
            trainers=(record(n_min=1),),
            settings=Settings(reserve_nodes_per_type=0, cycle_s=30.0),
            memory=self.memory,
        )
        plan = decide(seen, ExactPolicy())
        self.memory = plan.memory
        self.ledger, settled = fold(self.ledger, seen, plan, 0.001)
        self.records.append(settled)
        self.of_parts, settled = fold(self.of_parts, *_as_parts(seen, plan), 0.001)
        self.records_of_parts.append(settled)
        cluster.carry_out(plan)

    def _went(self, pilot_id: str, node: str, reason: str) -> None:
        now_s = self.cluster.now_s
        if self.is_polite:
            said = Farewell(pilot_id=pilot_id, node=node, reason=reason, told_s=now_s, left_s=now_s)
            self.ledger = farewell(self.ledger, said)
            self.of_parts = farewell(self.of_parts, replace(said, node=_part_of(node)))


def _part_of(node: str) -> str:
    return f"{node}/0"


def _as_parts(given: DecisionInput, plan: Plan) -> tuple[DecisionInput, Plan]:
    """Return the same where each pilot has a part with all GPUs of its node, and each job all."""
    nodes: list[Node] = []
    for one in given.snapshot.nodes or ():
        n_free = N_GPUS if one.state in FREE else 0
        nodes.append(host(one.name, n_free, state=one.state))
    jobs = [
        replace(job, gpus_per_node=N_GPUS) if job.is_ordinary else job
        for job in given.snapshot.jobs or ()
    ]
    views: list[PilotView] = []
    for view in given.pilots:
        name = _part_of(view.node)
        views.append(replace(view, node=name, part=a_part(name, N_GPUS)))
    releases = [replace(one, node=_part_of(one.node)) for one in plan.releases]
    held_off = {_part_of(node): at_s for node, at_s in plan.memory.held_off.items()}
    snapshot = replace(given.snapshot, nodes=tuple(nodes), jobs=tuple(jobs))
    return (
        replace(given, snapshot=snapshot, pilots=tuple(views)),
        replace(plan, releases=tuple(releases), memory=replace(plan.memory, held_off=held_off)),
    )


def _as_nodes(records: HarmRecords) -> HarmRecords:
    """Return records of parts as those of nodes, in the order of pilots."""

    def of_nodes(settled: Sequence[Settled]) -> tuple[Settled, ...]:
        ordered = sorted(settled, key=lambda one: one.pilot_id)
        return tuple(replace(one, node=node_of(one.node), gpus=0, gpu_type="") for one in ordered)

    return HarmRecords(
        hand_overs=of_nodes(records.hand_overs),
        vain=of_nodes(records.vain),
        taken=of_nodes(records.taken),
    )


@settings(max_examples=examples(8), deadline=None)
@given(steps=STEPS, is_polite=st.booleans())
def test_a_part_that_is_the_whole_node_is_handed_over_as_the_node(
    steps: list[tuple[str, int, float]], is_polite: bool
) -> None:
    world = Twice(is_polite=is_polite)
    cluster = world.cluster
    cycles = 2  # pilots on all nodes
    for what, number, value in [("cycle", cycles, 0.0), *steps]:
        if what in ("submit", "hopeless"):
            cluster.submit(number, value, is_hopeless=what == "hopeless")
        elif what == "wait":
            world.let_pass(value)
        elif what == "preempt":
            world.preempt(number)
        elif what == "cycle":
            for _ in range(number):
                cluster.cycle()
                cluster.connect_agents()
                world.decide()
                world.let_pass(30.0)
        world.decide()
    for of_nodes, of_parts in zip(world.records, world.records_of_parts, strict=True):
        assert _as_nodes(of_parts) == _as_nodes(of_nodes)
