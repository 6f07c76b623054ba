"""Runs the demonstration.

Returns a ``Summary`` and writes summary.json and timeline.png to the output directory. All
processes that it starts are ended in any case. Called by ``cli.demo``.
"""

from __future__ import annotations

import getpass
import importlib
import importlib.resources
import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from bftrainer.api.documents import document
from bftrainer.lab.demo.local_site import (
    POLICY,
    DemoSite,
    HasEnded,
    demo_workload,
    laptop_site,
    scratch_directory,
)
from bftrainer.lab.demo.page import RunPage
from bftrainer.lab.demo.watch import (
    NEXT,
    JournalFacts,
    Summary,
    TrainerResult,
    Use,
    Watch,
    account,
    collect,
    node_seconds,
    sentences,
)
from bftrainer.model.errors import BftError, UsageError
from bftrainer.model.trainer import TrainerSpec, TrainerState
from milp.problem import Curve

EPOCHS = 6
SIZES = (1, 2, 4, 8, 16)
LOOK_INTERVAL_S = 0.2
LIMIT_S = 180.0  # for the trainers, on a machine that is busy with other things
FIXED_LIMIT_S = 120.0
WARM = ("sklearn.datasets",)
See = Callable[[Watch], None]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoTrainer:
    """An example script and its throughput curve."""

    name: str
    script: Path
    efficiency: float  # each doubling of the size brings 2 * efficiency times the throughput

    @property
    def plain_arguments(self) -> tuple[str, ...]:
        """The script and its arguments."""
        return (str(self.script), "--epochs", str(EPOCHS))

    def spec(self, directory: Path, *, n_nodes: int) -> TrainerSpec:
        """Return what is submitted.

        A larger cluster has slower nodes, so that the demonstration takes as long on it.
        """
        ms_per_sample = 0.6 * n_nodes
        speed = 1000.0 / ms_per_sample  # samples per second on one node
        speeds = [speed * (2.0 * self.efficiency) ** doublings for doublings in range(len(SIZES))]
        return TrainerSpec(
            name=self.name,
            user=getpass.getuser(),
            script=str(Path(__file__).resolve().with_name("pace.py")),
            args=(str(ms_per_sample), *self.plain_arguments),
            cwd=str(directory),
            interpreter=sys.executable,
            n_min=1,
            n_max=n_nodes,
            epochs=EPOCHS,
            checkpoint_dir=str(directory / self.name),
            checkpoint_interval_s=2.0,
            curve=Curve(sizes=SIZES, samples_per_s=tuple(speeds)),
        )


def demo_trainers() -> tuple[DemoTrainer, ...]:
    """Return a convolutional net, which scales best, an MLP, which scales worst, a transformer.

    Raises:
        UsageError: BFT-1021, a package is missing.
    """
    packages = ("torch", "sklearn", "matplotlib")
    if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
        raise UsageError(
            "BFT-1021",
            f"The demonstration needs {', '.join(missing)}, which this Python does not have.",
            "Install it with: pip install 'bftrainer[torch,demo]'",
        )
    examples = Path(str(importlib.resources.files("trainers.examples")))
    return tuple(
        DemoTrainer(name=name, script=examples / f"digits_{name}.py", efficiency=efficiency)
        for name, efficiency in (("cnn", 0.92), ("mlp", 0.78), ("transformer", 0.90))
    )


class References:
    """A queue of scripts without bftrainer, one of which is running."""

    def __init__(self, site: DemoSite, directory: Path, trainers: Sequence[DemoTrainer]) -> None:
        self._site, self._directory = site, directory
        self._waiting = list(trainers)
        self._has_ended: HasEnded = lambda _: True

    def advance(self, wait_s: float = 0.001) -> bool:
        """Start the next script when the last has ended; return whether all have."""
        if not self._has_ended(wait_s):
            return False
        self._has_ended = lambda _: True
        if not self._waiting:
            return True
        trainer = self._waiting.pop(0)
        directory = self._directory / trainer.name
        directory.mkdir(parents=True)
        environment = {"BFT_CHECKPOINT_DIR": str(directory)}
        self._has_ended = self._site.run_plain(
            trainer.plain_arguments, environment, directory / "log.txt"
        )
        return False

    def finish(self, limit_s: float) -> None:
        """Run the rest; a script that takes too long has no result."""
        deadline = time.monotonic() + limit_s
        while not self.advance(1.0) and time.monotonic() < deadline:
            pass


def accuracy_in(directory: Path) -> float | None:
    """Return what a script wrote into its result.json, None if it did not."""
    try:
        return float(json.loads((directory / "result.json").read_text())["accuracy"])
    except (FileNotFoundError, ValueError):
        return None


def run_demo(
    out: Path, n_nodes: int, see: See, say: Say, page: RunPage, *, on_lsf: bool = False
) -> Summary:
    """Run everything; ``see`` is called after every look, ``say`` a sentence now and then.

    ``page`` shows the daemon meanwhile. ``on_lsf``: on a stand-in of LSF instead of the embedded
    batch system.

    Raises:
        BftError: something failed; the temporary directory is kept, and its path printed.
    """
    trainers = demo_trainers()
    make_output_directory(out)
    with scratch_directory("bft-demo-") as scratch:
        companion = "a stand-in of LSF" if on_lsf else "one process that imports torch"
        say(f"Starting a small batch system, a daemon, and {companion}.")
        with _site(scratch, n_nodes, on_lsf=on_lsf) as site:
            importlib.import_module("bftrainer.lab.demo.picture")  # slow, as is what we wait for
            site.await_ready()
            fixed = References(site, scratch / "fixed", trainers)

            with page.of(site.client):
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
    results = []
    for view, trainer in zip(watch.status.trainers, trainers, strict=True):
        record = view.record
        its_spans = [span for span in all_spans if span.trainer_id == record.trainer_id]
        result = TrainerResult(
            trainer_id=record.trainer_id,
            name=trainer.name,
            state=record.state.value,
            epochs=record.progress.epoch,
            node_seconds=node_seconds(its_spans, Use.TRAINING),
            rescales=record.rescales,
            accuracy=accuracy_in(scratch / "trainers" / trainer.name),
            fixed_accuracy=accuracy_in(scratch / "fixed" / trainer.name),
        )
        results.append(result)
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
