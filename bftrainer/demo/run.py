"""Runs the demonstration.

Returns a ``Summary`` and writes summary.json and timeline.png to the output directory. All
processes that it starts are ended in any case. Called by ``cli demo``.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from bftrainer.api.documents import document
from bftrainer.demo.local_site import LocalSite
from bftrainer.demo.picture import Story, draw
from bftrainer.demo.reference import References, accuracy_in
from bftrainer.demo.samples import Use, node_seconds
from bftrainer.demo.summary import NEXT, Summary, TrainerResult, account, sentences
from bftrainer.demo.trainers import DemoTrainer, demo_trainers
from bftrainer.demo.watch import Frame, Watch
from bftrainer.demo.workload import demo_workload
from bftrainer.errors import BftError, UsageError
from bftrainer.local.replay import delays_s

LOOK_INTERVAL_S = 0.25
LIMIT_S = 180.0  # for the trainers, on a machine that is busy with other things
FIXED_LIMIT_S = 120.0
CYCLE_S = 4.0
OPTIONS = ("--preempt-in-cycles", "--warm", "sklearn.datasets")
POLICY = """\
# Everything is faster than on a real cluster: idle spans last seconds here.
objective: scaling-efficiency
t_fwd_s: 20
reserve_nodes_per_type: 0
idle_confirmations: 1
min_gap_s: 10
gap_margin_s: 2
pilot_time_limit_s: 600
hold_idle_s: 2
join_window_s: 0.5
poll_interval_s: 0.25
"""
See = Callable[[Frame], None]
Say = Callable[[str], None]


def run_demo(out: Path, n_nodes: int, see: See, say: Say) -> Summary:
    """Run everything; ``see`` gets every frame, ``say`` a sentence now and then.

    Raises:
        BftError: something failed; the temporary directory is kept, and its path printed.
    """
    trainers = demo_trainers()
    make_output_directory(out)
    with interruptible(), scratch_directory() as scratch:
        say("Starting a small batch system, a daemon, and one process that imports torch.")
        with LocalSite.open(
            scratch, n_nodes=n_nodes, policy=POLICY, cycle_s=CYCLE_S, options=OPTIONS
        ) as site:
            site.server.await_warm()
            fixed = References(site.server.template_path, scratch / "fixed", trainers)

            def each(frame: Frame) -> None:
                see(frame)
                fixed.advance()

            watch, frame = _live(site, trainers, scratch / "trainers", each)
            delays_s = _delays_s(site)
            if not fixed.advance():
                say("Waiting for the same scripts without bftrainer.")
                fixed.finish(FIXED_LIMIT_S)
        summary = _summary(watch, frame, trainers, scratch, delays_s)
    (out / "summary.json").write_text(json.dumps(document("demo", summary), indent=2) + "\n")
    _draw(watch, summary, out / "timeline.png")
    return summary


def _live(
    site: LocalSite, trainers: Sequence[DemoTrainer], checkpoints: Path, see: See
) -> tuple[Watch, Frame]:
    """Submit everything and sample until the trainers are done or the time is up."""
    site.server.client.start_workload(demo_workload(site.n_nodes))
    for trainer in trainers:
        (checkpoints / trainer.name).mkdir(parents=True)
        site.client.submit(trainer.spec(checkpoints, n_nodes=site.n_nodes))
    watch = Watch(site)
    while True:
        started = time.monotonic()
        frame = watch.look()
        see(frame)
        if frame.is_over or frame.elapsed_s >= LIMIT_S:
            return watch, frame
        time.sleep(max(0.05, LOOK_INTERVAL_S - (time.monotonic() - started)))


def _delays_s(site: LocalSite) -> tuple[float, ...]:
    """How much later each ordinary job started than it would have without bftrainer."""
    client = site.server.client
    cycle = client.snapshot()["cycle"]
    found = delays_s(
        client.history(),
        n_nodes=site.n_nodes,
        cycle_s=CYCLE_S,
        cycle_at_s=cycle["ended_s"] or 0.0,
    )
    return tuple(max(0.0, delay_s) for delay_s in found.values())


def _summary(
    watch: Watch,
    frame: Frame,
    trainers: Sequence[DemoTrainer],
    scratch: Path,
    delays_s: tuple[float, ...],
) -> Summary:
    all_spans = watch.timeline.spans()
    split = account(all_spans, watch.facts)
    results = [
        TrainerResult(
            trainer_id=view.record.trainer_id,
            name=trainer.name,
            state=view.record.state.value,
            epochs=view.record.progress.epoch,
            node_seconds=node_seconds(
                [s for s in all_spans if s.trainer_id == view.record.trainer_id], Use.TRAINING
            ),
            rescales=view.record.rescales,
            accuracy=accuracy_in(scratch / "trainers" / trainer.name),
            fixed_accuracy=accuracy_in(scratch / "fixed" / trainer.name),
        )
        for view, trainer in zip(frame.status.trainers, trainers, strict=True)
    ]
    return Summary(
        nodes=len(frame.nodes),
        live_s=frame.elapsed_s,
        node_seconds=split,
        utilisation=split.harvested / split.offered,
        rescales=len(watch.facts.rescales),
        pauses_s=tuple(r.pause_s for r in watch.facts.rescales),
        give_backs=len(watch.facts.give_backs),
        preemptions=frame.status.preemptions,
        job_delays_s=delays_s,
        worker_failures=watch.facts.worker_failures,
        trainers=tuple(results),
    )


def _draw(watch: Watch, summary: Summary, path: Path) -> None:
    story = Story(
        title=f"Three networks learn on what ordinary jobs leave idle of {summary.nodes} nodes",
        words="\n".join((*sentences(summary), NEXT)),
        start_s=watch.started_s,
        spans=watch.timeline.spans(),
        trainers={t.trainer_id: t.name for t in summary.trainers},
        give_backs=watch.facts.give_backs,
    )
    draw(story, path)


# -- the directories of a run, and its orderly end by signals --------------------------------


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Turn the first signal into KeyboardInterrupt; the clean-up that follows is not disturbed."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    """Make a directory that is removed at the end, and kept and named after a failure."""
    path = Path(tempfile.mkdtemp(prefix="bft-demo-"))  # short: sockets are made in it
    try:
        yield path
    except BftError as problem:
        raise BftError(
            problem.code,
            problem.cause,
            f"{problem.next_step} Logs are kept in {path}.",
            exit_code=problem.exit_code,
        ) from problem
    except Exception as problem:
        problem.add_note(f"Logs are kept in {path}.")
        raise
    except BaseException:  # interrupted: nobody will look
        shutil.rmtree(path, ignore_errors=True)
        raise
    shutil.rmtree(path)


def make_output_directory(path: Path) -> None:
    """Make the directory for picture and summary, or say why not (BFT-1026)."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as problem:
        raise UsageError(
            "BFT-1026",
            f"Nothing can be written to {path}: {problem.strerror}.",
            "Choose another directory with --out.",
        ) from problem
