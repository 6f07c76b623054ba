"""Runs the demonstration.

Returns a ``Summary`` and writes summary.json and timeline.png to the output directory. All
processes that it starts are ended in any case. Called by ``cli.demo``.
"""

from __future__ import annotations

import importlib
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from bftrainer.api.documents import document
from bftrainer.lab.demo.local_site import (
    POLICY,
    DemoSite,
    demo_workload,
    laptop_site,
    scratch_directory,
)
from bftrainer.lab.demo.summary import (
    NEXT,
    JournalFacts,
    Summary,
    TrainerResult,
    account,
    collect,
    sentences,
)
from bftrainer.lab.demo.trainers import DemoTrainer, References, accuracy_in, demo_trainers
from bftrainer.lab.demo.watch import Use, Watch, node_seconds
from bftrainer.model.errors import BftError, UsageError
from bftrainer.model.trainer import TrainerState

LOOK_INTERVAL_S = 0.2
LIMIT_S = 180.0  # for the trainers, on a machine that is busy with other things
FIXED_LIMIT_S = 120.0
WARM = ("sklearn.datasets",)
See = Callable[[Watch], None]
Say = Callable[[str], None]


def run_demo(out: Path, n_nodes: int, see: See, say: Say, *, on_lsf: bool = False) -> Summary:
    """Run everything; ``see`` is called after every look, ``say`` a sentence now and then.

    ``on_lsf``: on a stand-in of LSF instead of the embedded batch system.

    Raises:
        BftError: something failed; the temporary directory is kept, and its path printed.
    """
    trainers = demo_trainers()
    make_output_directory(out)
    with scratch_directory("bft-demo-") as scratch:
        what = "a stand-in of LSF" if on_lsf else "one process that imports torch"
        say(f"Starting a small batch system, a daemon, and {what}.")
        with _site(scratch, n_nodes, on_lsf=on_lsf) as site:
            importlib.import_module("bftrainer.lab.demo.picture")  # slow, as is what we wait for
            site.await_ready()
            fixed = References(site, scratch / "fixed", trainers)

            watch = _live(site, trainers, scratch / "trainers", fixed, see)
            delays_s = site.delays_s()
            if not fixed.advance():
                say("Waiting for the same scripts without bftrainer.")
                fixed.finish(FIXED_LIMIT_S)
        facts = collect(site.sidecar.entries())
        summary = _summary(watch, facts, trainers, scratch, delays_s, is_wait=on_lsf)
    (out / "summary.json").write_text(json.dumps(document("demo", summary), indent=2) + "\n")
    _draw(watch, facts, summary, out / "timeline.png")
    return summary


def _site(scratch: Path, n_nodes: int, *, on_lsf: bool) -> AbstractContextManager[DemoSite]:
    if on_lsf:
        from bftrainer.lab.demo.lsf_site import lsf_site  # noqa: PLC0415 - only this needs LSF

        return lsf_site(scratch, n_nodes=n_nodes, policy=POLICY)
    return laptop_site(scratch, n_nodes=n_nodes, warm=WARM)


def _live(
    site: DemoSite,
    trainers: Sequence[DemoTrainer],
    checkpoints: Path,
    fixed: References,
    see: See,
) -> Watch:
    """Submit everything and sample until the trainers are done or the time is up."""
    watch = Watch(site)
    site.start_workload(demo_workload(site.n_nodes))
    for trainer in trainers:
        (checkpoints / trainer.name).mkdir(parents=True)
        site.client.submit(trainer.spec(checkpoints, n_nodes=site.n_nodes))
    while not watch.is_over and watch.elapsed_s < LIMIT_S:
        time.sleep(LOOK_INTERVAL_S)
        watch.look()
        for view in watch.status.trainers:
            if view.record.state is TrainerState.FAILED:
                raise BftError(
                    "BFT-1024",
                    f"The trainer {view.record.spec.name} failed: {view.record.reason}",
                    "Read the logs in the directory named below.",
                )
        see(watch)
        fixed.advance()
    return watch


def _summary(
    watch: Watch,
    facts: JournalFacts,
    trainers: Sequence[DemoTrainer],
    scratch: Path,
    delays_s: tuple[float, ...],
    *,
    is_wait: bool,
) -> Summary:
    all_spans = watch.timeline.spans()
    split = account(all_spans, facts)
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
        for view, trainer in zip(watch.status.trainers, trainers, strict=True)
    ]
    return Summary(
        nodes=len(watch.timeline.now()),
        live_s=watch.elapsed_s,
        node_seconds=split,
        utilisation=split.harvested / split.offered,
        rescales=len(facts.rescales),
        pauses_s=tuple(r.pause_s for r in facts.rescales),
        give_backs=len(facts.give_backs),
        preemptions=watch.status.preemptions,
        job_delays_s=delays_s,
        worker_failures=facts.worker_failures,
        trainers=tuple(results),
        is_wait=is_wait,
    )


def _draw(watch: Watch, facts: JournalFacts, summary: Summary, path: Path) -> None:
    from bftrainer.lab.demo.picture import Story, draw  # noqa: PLC0415 - matplotlib

    story = Story(
        title=f"Three networks learn on what ordinary jobs leave idle of {summary.nodes} nodes",
        words="\n".join((*sentences(summary), NEXT)),
        start_s=watch.started_s,
        spans=watch.timeline.spans(),
        trainers={t.trainer_id: t.name for t in summary.trainers},
        give_backs=facts.give_backs,
    )
    draw(story, path)


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
