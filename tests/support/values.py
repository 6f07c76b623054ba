"""Hypothesis strategies for the plain data that crosses packages.

Tests of the canonical encoding, the journal and whatever stores snapshots draw from here.
"""

from __future__ import annotations

from hypothesis import strategies as st

from bftrainer.model.cluster import (
    Job,
    JobState,
    Node,
    NodeState,
    Reservation,
    SchedulerCycle,
    Snapshot,
    Way,
)
from bftrainer.model.trainer import (
    MeasuredCosts,
    TrainerProgress,
    TrainerRecord,
    TrainerSpec,
    TrainerState,
)
from milp.problem import Curve

finite = st.floats(allow_nan=False, allow_infinity=False)
_words = st.text(max_size=8)
_tuples = st.lists(_words, max_size=3).map(tuple)


@st.composite
def _curves(draw: st.DrawFn) -> Curve:
    sizes = tuple(sorted(draw(st.sets(st.integers(1, 64), min_size=1, max_size=4))))
    return Curve(sizes=sizes, samples_per_s=tuple(draw(finite) for _ in sizes))


def snapshots() -> st.SearchStrategy[Snapshot]:
    """Return snapshots, complete ones and ones with sources that failed."""
    nodes = st.builds(
        Node, name=_words, state=st.sampled_from(NodeState), reason=_words, features=_tuples
    )
    jobs = st.builds(
        Job,
        job_id=_words,
        user=_words,
        partitions=_tuples,
        wants=st.sampled_from([(), (Way(everywhere=("a",), counted=((("b", "|", "c"), 2),)),)]),
        state=st.sampled_from(JobState),
        n_nodes=st.integers(0, 99),
        time_limit_s=st.none() | finite,
        start_s=st.none() | finite,
        planned_nodes=_tuples,
        pilot_id=st.none() | _words,
    )
    reservations = st.builds(Reservation, name=_words, start_s=finite, end_s=finite, nodes=_tuples)
    return st.builds(
        Snapshot,
        taken_at_s=finite,
        nodes=st.none() | st.lists(nodes, max_size=3).map(tuple),
        jobs=st.none() | st.lists(jobs, max_size=3).map(tuple),
        reservations=st.none() | st.lists(reservations, max_size=2).map(tuple),
        cycle=st.none() | st.builds(SchedulerCycle, ended_s=st.none() | finite),
        failures=_tuples,
    )


def trainer_records(
    trainer_ids: st.SearchStrategy[str] | None = None,
) -> st.SearchStrategy[TrainerRecord]:
    """Return trainers in any state, with curves and measured costs or without."""
    specs = st.builds(
        TrainerSpec,
        name=_words,
        user=_words,
        script=_words,
        args=_tuples,
        curve=st.none() | _curves(),
        environment=st.lists(st.tuples(_words, _words), max_size=2).map(tuple),
    )
    costs = st.builds(
        MeasuredCosts,
        rescale_up_s=st.none() | finite,
        samples_per_s_by_size=st.lists(st.tuples(st.integers(1, 9), finite), max_size=2).map(tuple),
    )
    return st.builds(
        TrainerRecord,
        trainer_id=trainer_ids or st.integers(1, 20).map(lambda n: f"t{n}"),
        spec=specs,
        state=st.sampled_from(TrainerState),
        submitted_s=finite,
        started_s=st.none() | finite,
        reason=_words,
        progress=st.builds(TrainerProgress, step=st.integers(0), samples_per_s=finite),
        costs=costs,
    )
