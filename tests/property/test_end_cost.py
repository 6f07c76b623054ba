"""Random plans and costs of ends: whoever is planned on a node of ours gets it in time."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from bftrainer.decide.end_cost import LEAST_S
from bftrainer.model.cluster import Job, Node, NodeState, Snapshot
from bftrainer.model.decision import Ends, Memory, PilotView, Plan, Settings
from tests.support.examples import examples
from tests.support.snapshots import T0, Fold, node, pending, pilot, record, snapshot

NAMES = tuple(f"n{k}" for k in range(6))
COSTS = st.lists(st.floats(0.0, 300.0), max_size=5).map(tuple)
END_S = T0 + 3600.0


@st.composite
def plans(draw: st.DrawFn) -> tuple[Snapshot, tuple[PilotView, ...]]:
    """Six nodes, ours or idle, and jobs that are planned on some of them."""
    ours = draw(st.frozensets(st.sampled_from(NAMES)))
    jobs: list[Job] = []
    for k in range(draw(st.integers(0, 4))):
        names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
        start_s = T0 + draw(st.integers(1, 900))
        jobs.append(pending(f"{k}", len(names), start_s=start_s, planned=tuple(names)))
    nodes: list[Node] = [
        node(n, NodeState.ALLOCATED if n in ours else NodeState.IDLE) for n in NAMES
    ]
    return snapshot(nodes, jobs), tuple(pilot(n, end_s=END_S) for n in sorted(ours))


def _decided(
    drawn: tuple[Snapshot, tuple[PilotView, ...]], took_s: tuple[float, ...], rules: Settings
) -> Plan:
    seen, pilots = drawn
    fold = Fold(settings=rules, memory=Memory(ends=Ends(took_s=took_s)))
    return fold.decide(seen, pilots, [record(n_max=6)])


def _cost_s(took_s: tuple[float, ...]) -> float:
    """The one in the middle; of two the mean."""
    ordered, middle = sorted(took_s), len(took_s) // 2
    if not ordered:
        return 0.0
    return (ordered[middle] + ordered[-middle - 1]) / 2


@settings(max_examples=examples(200), deadline=None)
@given(plans(), COSTS, st.floats(0.0, 100.0))
def test_pilots_leave_and_end_so_early_that_their_end_fits_before_a_planned_start(
    drawn: tuple[Snapshot, tuple[PilotView, ...]], took_s: tuple[float, ...], margin_s: float
) -> None:
    rules = Settings(reserve_nodes_per_type=0, gap_margin_s=margin_s, min_gap_s=0.0)
    plan, cost_s = _decided(drawn, took_s, rules), _cost_s(took_s)
    if cost_s < LEAST_S:
        cost_s = 0.0
    gone = {release.node for release in plan.releases}
    for job in drawn[0].jobs or ():
        assert job.start_s is not None
        off_s = job.start_s - margin_s - cost_s
        for name in job.planned_nodes:
            if name in {p.node for p in drawn[1]} and off_s <= T0:
                assert name in gone
            assert all(c.time_limit_s <= off_s - T0 for c in plan.claims if c.node == name)
            assert all(
                n.usable_until_s is not None and n.usable_until_s <= off_s + 1e-6
                for n in plan.pool
                if n.name == name
            )


@settings(max_examples=examples(100), deadline=None)
@given(plans(), COSTS)
def test_what_costs_nothing_changes_nothing(
    drawn: tuple[Snapshot, tuple[PilotView, ...]], took_s: tuple[float, ...]
) -> None:
    cheap = tuple(t / 301.0 for t in took_s)
    plain = _decided(drawn, (), Settings())
    plan = _decided(drawn, cheap, Settings())
    assert replace(plan, memory=plain.memory) == plain
