"""Runs the demonstration.

Returns a ``Summary`` and writes summary.json and timeline.png to the output directory. All
processes that it starts are ended in any case. Called by ``cli demo``.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bftrainer.demo.clusters import Cluster, local_cluster
from bftrainer.demo.journal_facts import JournalFacts, collect
from bftrainer.demo.models import DemoTrainer, demo_trainers, require_extras
from bftrainer.demo.picture import Story, draw
from bftrainer.demo.reference import References, accuracy_in
from bftrainer.demo.report import as_document, subtitle
from bftrainer.demo.samples import ActivitySpan, Use, node_seconds, spans
from bftrainer.demo.sidecar import DaemonProcess
from bftrainer.demo.stage import interruptible, make_output_directory, scratch_directory
from bftrainer.demo.summary import Summary, TrainerResult, summarise
from bftrainer.demo.watch import LiveFrame, LiveView
from bftrainer.demo.workload import demo_workload
from bftrainer.local.workload import JobWorkload
from bftrainer.model.trainer import TrainerRecord
from bftrainer.poll.batch_system import load_batch_system

LOOK_INTERVAL_S = 0.2
FIXED_RUN_PATIENCE_S = 120.0
POLICY = """\
# Everything is faster than on a real cluster: idle spans last seconds here.
objective: scaling-efficiency
t_fwd_s: 20
reserve_nodes_per_type: 0
idle_confirmations: 1
min_gap_s: {min_gap_s}
gap_margin_s: 2
pilot_time_limit_s: 600
hold_idle_s: 2
join_window_s: 0.5
poll_interval_s: {poll_interval_s}
"""
LOCAL_POLICY = POLICY.format(min_gap_s=25, poll_interval_s=0.25)
# Slurm's shortest time limit is a minute.
SLURM_POLICY = POLICY.format(min_gap_s=62, poll_interval_s=0.5) + "requests_per_minute: 1000\n"
See = Callable[[LiveFrame], None]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What the command line says."""

    out: Path
    n_nodes: int = 6
    seconds: float = 60.0
    run_out_s: float = 15.0  # without ordinary jobs, for trainers that are not done by then
    epochs: int = 15
    seed: int = 1
    is_slurm: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePart:
    """The samples of the whole run."""

    batch_system: str
    spans: tuple[ActivitySpan, ...]
    start_s: float
    end_s: float
    preemptions: int
    records: tuple[TrainerRecord, ...]


def run_demo(options: DemoOptions, see: See, say: Say) -> Summary:
    """Run everything; ``see`` gets every frame, ``say`` a sentence now and then.

    Raises:
        BftError: something failed; the temporary directory is kept, and its path printed.
    """
    require_extras()
    trainers = demo_trainers(options.epochs)
    make_output_directory(options.out)
    with interruptible(), scratch_directory() as scratch:
        return _run(options, trainers, scratch, see, say)


def _run(
    options: DemoOptions, trainers: tuple[DemoTrainer, ...], scratch: Path, see: See, say: Say
) -> Summary:
    workload = demo_workload(options.n_nodes, options.seconds, options.seed)
    references = References(trainers, scratch / "fixed")
    with contextlib.closing(references):
        say(f"Starting {'Slurm' if options.is_slurm else 'a local batch system'} and the daemon.")
        with _cluster(options, scratch / "cluster", workload) as cluster:
            daemon = DaemonProcess(
                scratch / "state",
                batch_system=cluster.batch_system,
                batch_options=cluster.batch_options,
                policy=SLURM_POLICY if options.is_slurm else LOCAL_POLICY,
            )
            try:
                daemon.start()
                live = _live(options, trainers, scratch, cluster, daemon, references, see)
                ordinary = cluster.background()
            finally:
                say("Stopping the daemon, its pilots and the batch system.")
                daemon.stop()
            facts = collect(daemon.entries())
        _finish(references, say)
    summary = summarise(
        batch_system=live.batch_system,
        n_nodes=options.n_nodes,
        seed=options.seed,
        live_s=live.end_s - live.start_s,
        spans=live.spans,
        facts=facts,
        preemptions=live.preemptions,
        trainers=[
            _result(record, trainer, live, facts, references, scratch)
            for record, trainer in zip(live.records, trainers, strict=True)
        ],
        ordinary=ordinary,
    )
    _write(options.out, summary, live, facts)
    return summary


def _cluster(
    options: DemoOptions, directory: Path, workload: JobWorkload
) -> contextlib.AbstractContextManager[Cluster]:
    if not options.is_slurm:
        return local_cluster(directory, options.n_nodes, workload)
    from bftrainer.demo.slurm import slurm_cluster  # noqa: PLC0415 - only where it is wanted

    return slurm_cluster(directory, options.n_nodes, workload)


def _live(
    options: DemoOptions,
    trainers: tuple[DemoTrainer, ...],
    scratch: Path,
    cluster: Cluster,
    daemon: DaemonProcess,
    references: References,
    see: See,
) -> LivePart:
    checkpoints = scratch / "trainers"
    for trainer in trainers:
        (checkpoints / trainer.name).mkdir(parents=True)
        daemon.client.submit(trainer.spec(checkpoints, n_max=options.n_nodes))
    with contextlib.closing(
        load_batch_system(cluster.batch_system, dict(cluster.batch_options))
    ) as system:
        watch = LiveView(daemon, system, options.seconds)
        cluster.start_workload()
        frame = _follow(watch, options.seconds, references, see)
        cluster.stop_workload()
        if not frame.is_over():
            frame = _follow(watch, options.run_out_s, references, see)
        end_s = time.time()
    for view in frame.status.trainers:
        if not view.record.state.is_final:
            daemon.client.cancel(view.record.trainer_id, now=True)
    return LivePart(
        batch_system=cluster.batch_system,
        spans=spans(watch.samples, end_s),
        start_s=watch.samples[0].at_s if watch.samples else end_s,
        end_s=end_s,
        preemptions=frame.status.preemptions,
        records=tuple(view.record for view in daemon.client.trainers()),
    )


def _follow(watch: LiveView, seconds: float, references: References, see: See) -> LiveFrame:
    """Sample until the trainers are done or the time is up."""
    deadline = time.monotonic() + seconds
    while True:
        started = time.monotonic()
        frame = watch.look()
        see(frame)
        references.advance()
        if frame.is_over() or time.monotonic() >= deadline:
            return frame
        time.sleep(max(0.02, LOOK_INTERVAL_S - (time.monotonic() - started)))


def _finish(references: References, say: Say) -> None:
    """Wait for the fixed-size runs, if they are not done."""
    deadline = time.monotonic() + FIXED_RUN_PATIENCE_S
    if not references.advance(is_alone=True):
        say("Waiting for the fixed-size runs.")
    while not references.advance(is_alone=True) and time.monotonic() < deadline:
        time.sleep(0.05)


def _result(
    record: TrainerRecord,
    trainer: DemoTrainer,
    live: LivePart,
    facts: JournalFacts,
    references: References,
    scratch: Path,
) -> TrainerResult:
    own = [s for s in live.spans if s.trainer_id == record.trainer_id]
    fixed = references.done.get(trainer.name)
    return TrainerResult(
        trainer_id=record.trainer_id,
        name=trainer.name,
        state=record.state.value,
        reason=record.reason,
        epochs=record.progress.epoch,
        samples=record.progress.samples,
        finished_after_s=None if record.ended_s is None else record.ended_s - live.start_s,
        node_seconds=node_seconds(own, Use.TRAINING),
        rescales=sum(r.trainer_id == record.trainer_id for r in facts.rescales),
        parks=sum(p.trainer_id == record.trainer_id for p in facts.parks),
        accuracy=accuracy_in(scratch / "trainers" / trainer.name),
        fixed_accuracy=fixed.accuracy if fixed else None,
        fixed_wall_s=fixed.wall_s if fixed else None,
    )


def _write(out: Path, summary: Summary, live: LivePart, facts: JournalFacts) -> None:
    (out / "summary.json").write_text(json.dumps(as_document(summary), indent=2) + "\n")
    story = Story(
        title=f"Three trainers on the idle nodes of a {summary.nodes}-node cluster "
        f"({summary.batch_system})",
        subtitle=subtitle(summary),
        start_s=live.start_s,
        end_s=live.end_s,
        spans=live.spans,
        trainers={t.trainer_id: t.name for t in summary.trainers},
        give_backs=facts.give_backs,
    )
    draw(story, out / "timeline.png")
