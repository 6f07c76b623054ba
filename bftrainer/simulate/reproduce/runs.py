"""Replays that results ask for: each is played once, as many at a time as there are cores.

``PaperReplay`` says what to play, ``Record`` is what came of it: plain data, sent between processes
that share nothing. Results ask for runs by value, so those that ask alike share one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass

from bftrainer.decide.policies.base import AllocationPolicy, load_policy
from bftrainer.simulate.metrics import Metrics, measure
from bftrainer.simulate.paper import PaperModel
from bftrainer.simulate.replay import Replay
from bftrainer.simulate.reproduce import replayer_share
from bftrainer.simulate.reproduce.any_node import AnyNode
from bftrainer.simulate.reproduce.scene import Scene, first_hours, network_name, workload_of
from bftrainer.simulate.reproduce.series import PlanRecorder, Series
from bftrainer.simulate.session import Choices, settings_of
from bftrainer.simulate.tally import Tally
from milp.problem import Objective

REPLAYER_SHARE = replayer_share.POLICY.name
SEED = 1


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PaperReplay:
    """One replay with the paper's bookkeeping."""

    workload: str = "shufflenet"
    policy: str = "milp"
    objective: Objective = Objective.THROUGHPUT
    t_fwd_s: float = 120.0
    p_jmax: int = 10
    cost_factor: float = 1.0
    hours: float | None = None  # None: all of the scene
    is_any_node: bool = False  # nodes at random, not by name


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerEnd:
    """How far one trainer came."""

    network: str
    started_s: float | None
    finished_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a run left."""

    run: PaperReplay
    metrics: Metrics
    series: Series
    trainers: tuple[TrainerEnd, ...]


def _policy(run: PaperReplay) -> AllocationPolicy:
    # The replayer's share is not a policy for sites, so it is not among the plug-ins.
    is_replayers = run.policy == REPLAYER_SHARE
    policy = replayer_share.POLICY if is_replayers else load_policy(run.policy)
    return AnyNode(policy, seed=SEED) if run.is_any_node else policy


def play_run(scene: Scene, run: PaperReplay) -> Record:
    """Play one run."""
    trace = scene.trace if run.hours is None else first_hours(scene.trace, run.hours)
    workload = workload_of(scene, run.workload, run.cost_factor)
    choices = Choices(objective=run.objective, t_fwd_s=run.t_fwd_s, p_jmax=run.p_jmax)
    watch = PlanRecorder()
    outcome = Replay(
        trace,
        workload,
        settings=settings_of(choices),
        policy=_policy(run),
        books=PaperModel(Tally()),
        on_plan=watch,
    ).run()
    return Record(
        run=run,
        metrics=measure(outcome),
        series=watch.series(trace.span_s[1], outcome.trainers),
        trainers=tuple(
            TrainerEnd(
                network=network_name(t.submission.network),
                started_s=t.started_s,
                finished_s=t.finished_s,
            )
            for t in outcome.trainers
        ),
    )


def play_all(
    scene: Scene,
    runs: Iterable[PaperReplay],
    *,
    processes: int,
    on_progress: Callable[[float], None] = lambda _: None,
) -> Mapping[PaperReplay, Record]:
    """Play every run once; the records are the same for any number of processes."""
    # The longest first, so that none is left alone at the end.
    todo = sorted(set(runs), key=lambda run: (-(run.hours or 1e9), -run.p_jmax, run))
    records: dict[PaperReplay, Record] = {}
    if processes == 1:
        for run in todo:
            records[run] = play_run(scene, run)
            on_progress(len(records) / len(todo))
        return records
    with ProcessPoolExecutor(max_workers=processes) as pool:
        futures = [pool.submit(play_run, scene, run) for run in todo]
        try:
            for future in as_completed(futures):
                record = future.result()
                records[record.run] = record
                on_progress(len(records) / len(todo))
        except BaseException:
            pool.shutdown(cancel_futures=True)  # else the rest is played for nobody
            raise
    return records
