"""``bftrainer try``: a user's script on a small site that gives and takes nodes and kills a worker.

The findings follow from the records of its workers (``try_records``) and are held against the same
script in one process (``try_comparison``). Everything that is started is ended in any case.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import bftrainer
from bftrainer.batch.local.workload import JobWorkload
from bftrainer.lab.demo.local_site import (
    LocalSite,
    laptop_site,
    scratch_directory,
    workload_of,
)
from bftrainer.lab.demo.page import RunPage
from bftrainer.lab.demo.watch import Use, Watch, collect
from bftrainer.lab.try_comparison import (
    Comparison,
    TrainingOutcome,
    comparison_text,
    loss_difference,
    outcome,
    parameter_difference,
)
from bftrainer.lab.try_figures import (
    UpdateHistory,
    first_difference,
    not_finite_from,
    read_figures,
)
from bftrainer.lab.try_records import (
    EpochUse,
    Records,
    SpeedBySize,
    epochs,
    has_committed,
    losses,
    makers,
    newest,
    samples,
    speeds,
)
from bftrainer.model.columns import counted, shown
from bftrainer.model.errors import BftError, ExitCode
from bftrainer.model.trainer import TrainerRecord, TrainerSpec, TrainerState, with_place

NOT_ELASTIC = "BFT-1423"  # the worker's error
FULL_DISK = "BFT-1455"  # likewise
# What breaks beside the script: disks, bftrainer in its process, batch systems, agents, journals.
_NOT_THE_SCRIPTS = re.compile(r"^BFT-(?:145[56]|12[0-9]{2}|13(?!10|11)[0-9]{2}|2[0-9]{3})\b")
# bftrainer/elastic/loop/try_record.py
RECORD_VARIABLE, UPDATES_VARIABLE = "BFT_RECORD_SAMPLES", "BFT_RECORD_UPDATES"
# Nodes of one machine share its processors: measured speeds must not keep the script small.
POLICY = "policy: equal-share\nstraggler_threshold: 0\n"
LOOK_INTERVAL_S = 0.2
SAY_INTERVAL_S = 10.0  # while nothing changes
QUIET_LOOKS, END_LIMIT_S = 3, 10.0
KILL_AFTER_STEPS = 3  # of a generation
CHECKPOINT_INTERVAL_S = 5.0
LAST_LINES = (3, 20)  # of a script's output; the second if it failed
_USES = {
    Use.TRAINING: "training",
    Use.STARTING: "starting",
    Use.ORDINARY: "with an ordinary job",
}
_OURS = re.compile(r"bftrainer: |generation \d+\.\d+ ")  # lines of bftrainer.elastic
SEE_LOG = " What it printed is in the worker's log."  # a worker's words; here its end is shown
_FRAME = re.compile(r'  File "([^"]+)", line \d+')  # of a traceback
_STARTERS = (str(Path(bftrainer.__file__).parent), "<frozen runpy>")  # what runs scripts
SHARED = "(the nodes share this machine's processors: no forecast for a cluster's)"
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerKill:
    """The worker that was killed."""

    at_s: float  # since the submission
    rank: int
    size: int  # in workers
    step: int  # the newest that it had made


@dataclass(frozen=True, slots=True, kw_only=True)
class TryReport:
    """All results of a try."""

    script: str
    state: str
    reason: str
    seconds: float
    nodes: int
    failures: int  # the worker that was killed is one of them
    rescales: int
    pauses_s: tuple[float, ...]
    kill: WorkerKill | None
    speeds: tuple[SpeedBySize, ...]
    epochs: tuple[EpochUse, ...]
    last_lines: tuple[str, ...]  # that the script printed
    comparison: Comparison | None = None  # with one process
    warning: str = ""  # of a loss that is no finite number
    remarks: tuple[str, ...] = ()  # of workers that differ, as far as they may


def wrong(report: TryReport) -> BftError | None:
    """Return what a user must look at, None if the script finished and used all samples once."""
    if NOT_ELASTIC in report.reason:
        return BftError(
            "BFT-1057",
            f"{report.script} ended without training with bftrainer.elastic.",
            "Make its loop elastic: docs/howto/train-pytorch.md shows the five lines.",
        )
    if report.state == TrainerState.FAILED and (ours := _NOT_THE_SCRIPTS.search(report.reason)):
        next_step = (
            "The script need not change. Report it with the end of the log above: it is a "
            "defect of bftrainer, or trouble of this machine."
        )
        if ours[0] == FULL_DISK:
            next_step = "Make room there, or let TMPDIR name a directory on another disk."
        return BftError(
            "BFT-1457",
            f"{report.script} could not train, and not by a mistake of its own: {report.reason}",
            next_step,
        )
    if report.state == TrainerState.FAILED:
        return BftError(
            "BFT-1053",
            f"{report.script} failed: {report.reason.replace(SEE_LOG, '')}",
            "Correct the script and try again; the end of its log is above.",
        )
    is_finished = report.state == TrainerState.FINISHED
    problems = _uses(report.epochs)
    if is_finished and not report.epochs:
        problems = ["no update was recorded"]
    if problems:
        return BftError(
            "BFT-1054",
            f"Not every sample was used exactly once: {problems[0]}.",
            "If the script leaves its loop over run.batches() early, let it end the epoch;"
            " otherwise this is a defect of bftrainer: report it with the directory.",
            exit_code=ExitCode.VALIDATION_FAILED,
        )
    if not is_finished:
        return BftError(
            "BFT-1055",
            f"{report.script} had not finished after {report.seconds:.0f} s.",
            "Give more --seconds or fewer --epochs.",
            exit_code=ExitCode.TIMEOUT,
        )
    return None


def _uses(epochs: Sequence[EpochUse]) -> list[str]:
    """Return a sentence for each epoch that is not as it should be; the last may be cut."""
    sentences = []
    for use in epochs:
        name = f"epoch {use.epoch}"
        if use.twice:
            sentences.append(f"{name} used sample {use.twice[0]} more than once")
        elif not use.is_once:
            sentences.append(
                f"{name} used {counted(use.repeated, 'sample')} again and left out {use.missed}"
            )
        elif use is not epochs[-1] and use.used < use.of:
            sentences.append(f"{name} ended after {use.used} of its {counted(use.of, 'sample')}")
    return sentences


def as_text(report: TryReport) -> str:
    """Return the page that is printed at the end."""
    lines = [f"{report.script} {report.state} after {report.seconds:.0f} s, {report.nodes} nodes"]
    if (failures := report.failures - (report.kill is not None)) > 0:
        lines.append(f"  failures    {failures}")
    if report.epochs:
        rescales = "none; it ended before nodes came or went: more --epochs would show it"
        if report.rescales:
            median_s, most_s = statistics.median(report.pauses_s), max(report.pauses_s)
            rescales = f"{report.rescales}, pauses of {median_s:.2f} s (median) to {most_s:.2f} s"
        killed, kill = "nobody; two nodes never trained together for some updates", report.kill
        if kill is not None:
            killed = (
                f"rank {kill.rank} of {counted(kill.size, 'worker')} after step {kill.step}, at"
            )
            killed += f" {kill.at_s:.1f} s"
        speeds = ", ".join(
            f"{s.samples_per_s:.0f} with {s.size} worker{'s' * (s.size != 1)}"
            for s in report.speeds
        )
        lines += [f"  rescales    {rescales}", f"  killed      {killed}"]
        lines.append(f"  samples/s   {speeds}")
        if len(report.speeds) > 1:
            lines.append(f"              {SHARED}")
        lines.append(f"  samples     {_samples(report)}")
    lines += [f"  warning     {text}" for text in (report.warning, *report.remarks) if text]
    if report.comparison is not None:
        lines += comparison_text(report.comparison)
    if report.last_lines:
        lines += ["  it printed at last", *(f"    {line}" for line in report.last_lines)]
    return "\n".join(lines)


def _samples(report: TryReport) -> str:
    if sentences := _uses(report.epochs):
        return "; ".join(sentences[:3])
    last = report.epochs[-1]
    full = sum(use.used == use.of for use in report.epochs)
    parts = []
    if full:
        parts.append(f"every one exactly once in each of {counted(full, 'epoch')}")
    if last.used < last.of:
        parts.append(f"{last.used} of {last.of} in the last")
    return "; ".join(parts)


def run_try(
    spec: TrainerSpec,
    n_nodes: int,
    limit_s: float | None,
    say: Say,
    *,
    compares: bool = False,
    page: RunPage | None = None,
) -> TryReport:
    """Run everything; ``say`` is called with each line to print.

    ``compares``: run the script in one process as well, before. ``page`` shows the daemon.

    Raises:
        BftError: BFT-1053 to BFT-1055 after the report was printed, or something else failed; the
            temporary directory is kept, and its path in the message.
    """
    with scratch_directory("bft-try-") as scratch:
        alone = None
        if compares:
            (scratch / "alone").mkdir()
            single = dataclasses.replace(spec, workers_per_node=1)
            alone = _tried(single, 1, scratch / "alone", limit_s, say, compares=True)
            if problem := wrong(alone.report):
                say(f"\nAlone: {as_text(alone.report)}")
                raise problem
        elastic = _tried(*(spec, n_nodes, scratch, limit_s, say), compares=compares, page=page)
        report = elastic.report
        if alone is not None and wrong(report) is None:
            report = dataclasses.replace(report, comparison=_compared(elastic, alone))
        say(f"\n{as_text(report)}")
        if problem := wrong(report):
            raise problem
    return report


def _tried(
    spec: TrainerSpec,
    n_nodes: int,
    scratch: Path,
    limit_s: float | None,
    say: Say,
    *,
    compares: bool,
    page: RunPage | None = None,
) -> _Try:
    """Run a script on so many nodes; on one it is left alone."""
    if n_nodes > 1:
        say(f"Starting {n_nodes} nodes on this machine, and a daemon for them.")
    else:
        say("Starting one node on this machine, and a daemon for it.")
    is_shared = spec.runtime == "torch" and spec.interpreter == sys.executable
    with laptop_site(
        scratch, n_nodes=n_nodes, policy=POLICY, warm=() if is_shared else None
    ) as site:
        if is_shared:
            say("Importing torch, once for all of them.")
            site.await_ready()
        trial = _Try(site, _placed(spec, n_nodes, scratch, compares=compares), say)
        with page.of(site.client) if page is not None else nullcontext():
            trial.run(limit_s)
        return trial


def _compared(elastic: _Try, alone: _Try) -> Comparison:
    places = elastic.checkpoints, alone.checkpoints
    histories = elastic.history(), alone.history()
    return Comparison(
        elastic=elastic.outcome(),
        alone=alone.outcome(),
        parameters=parameter_difference(*places),
        losses=loss_difference(elastic.losses, alone.losses),
        first=first_difference(*histories),
        nan_elastic=not_finite_from(elastic.losses),
        nan_alone=not_finite_from(alone.losses),
    )


def _placed(spec: TrainerSpec, n_nodes: int, scratch: Path, *, compares: bool) -> TrainerSpec:
    """Return the spec with sizes, directories and the record of a try."""
    records, checkpoints = scratch / "samples", scratch / "checkpoints"
    records.mkdir()
    checkpoints.mkdir()
    variables = [(RECORD_VARIABLE, str(records))]
    if compares:
        variables.append((UPDATES_VARIABLE, "1"))
    return dataclasses.replace(
        spec,
        n_min=1,
        n_max=n_nodes,
        checkpoint_dir=str(checkpoints),
        checkpoint_interval_s=CHECKPOINT_INTERVAL_S,
        environment=(*spec.environment, *variables),
    )


def _workload(n_nodes: int) -> JobWorkload:
    """Return jobs that come for one node, then for all but one, again and again."""
    return workload_of((3.0, 1, 4.0, "alice"), (11.0, n_nodes - 1, 4.0, "alice"), repeat_s=22.0)


class _Try:
    """One script under way, then its report, and where its last state is."""

    report: TryReport
    losses: Mapping[int, float]

    def __init__(self, site: LocalSite, spec: TrainerSpec, say: Say) -> None:
        self._site, self._spec, self._say = site, spec, say
        self.checkpoints = Path(spec.checkpoint_dir)
        self._records = Records(Path(dict(spec.environment)[RECORD_VARIABLE]))
        self._watch = Watch(site)
        self._kill: WorkerKill | None = None
        self._said: object = None
        self._said_s = 0.0
        self._has_trained = False
        self._failures = 0  # those that were told
        self._told = ""  # the last cause of them

    def run(self, limit_s: float | None) -> None:
        """Submit it and wait for its end, or for the end of the time."""
        self._trainer_id = self._site.client.submit(self._spec).record.trainer_id
        self._watch.look()
        most_s = math.inf if limit_s is None else limit_s
        while not (
            self._watch.is_over or self._has_failed_at_once() or self._watch.elapsed_s > most_s
        ):
            time.sleep(LOOK_INTERVAL_S)
            self._watch.look()
            self._records.look()
            if not self._has_trained and has_committed(self._records.processes):
                self._has_trained = True  # before, jobs would take the nodes of what is to fail
                if self._site.n_nodes > 1:
                    self._site.server.client.start_workload(_workload(self._site.n_nodes))
            self._kill = self._kill or self._kill_one()
            self._tell()
        self._end()
        self.report, self.losses = self._report(), losses(self._records.processes)

    def history(self) -> UpdateHistory:
        """Return all updates."""
        processes = self._records.processes
        figures, model = read_figures(self._records.directory, makers(processes))
        return UpdateHistory(
            losses=self.losses, samples=samples(processes), figures=figures, model=model
        )

    def outcome(self) -> TrainingOutcome:
        """Return the result of the training."""
        reports = self._watch.status.trainers[0].record.reports
        metric = reports[-1].value if reports else None
        return outcome(self.checkpoints, self.report.seconds, self.losses, metric)

    def _end(self) -> None:
        """End the script if it has not ended; read the records when nobody writes any more."""
        if not self._watch.is_over:
            self._site.client.cancel(self._trainer_id, now=True)
        quiet_looks, deadline = 0, time.monotonic() + END_LIMIT_S
        while quiet_looks < QUIET_LOOKS and time.monotonic() < deadline:
            time.sleep(LOOK_INTERVAL_S)
            quiet_looks += 1
            if self._records.look():
                quiet_looks = 0

    def _has_failed_at_once(self) -> bool:
        """Return whether a worker failed before any update; the daemon would try again."""
        view = self._watch.status.trainers[0]
        is_remark = bool(view.record.remark_sentences) and not view.record.failing.count
        return bool(view.trouble) and not is_remark and not self._has_trained

    def _kill_one(self) -> WorkerKill | None:
        """Kill rank 0 once several nodes train; it has the most to lose."""
        place, team = newest(self._records.processes), self._spec.workers_per_node
        if place is None or place.size <= team or place.of_generation < KILL_AFTER_STEPS:
            return None
        with suppress(ProcessLookupError):
            os.kill(place.pid, signal.SIGKILL)
            kill = WorkerKill(
                at_s=self._watch.elapsed_s, rank=place.rank, size=place.size, step=place.step
            )
            self._failures += 1  # nothing to tell of it
            self._say(f"{kill.at_s:6.1f} s  killed the worker of rank {kill.rank}, as a test")
            return kill
        return None

    def _tell(self) -> None:
        """Print what the nodes do, when it changes or after a while."""
        counts = Counter(span.use for span in self._watch.timeline.now())
        record = self._watch.status.trainers[0].record
        elapsed_s = self._watch.elapsed_s
        doing = self._doing(bool(counts[Use.STARTING]))
        state = (counts, record.state, record.failures, doing)
        if state == self._said and elapsed_s - self._said_s < SAY_INTERVAL_S:
            return
        self._said, self._said_s = state, elapsed_s
        nodes = ", ".join(f"{counts[use]} {name}" for use, name in _USES.items() if counts[use])
        progress = f"epoch {record.progress.epoch}, {counted(record.progress.samples, 'sample')}"
        self._say(
            f"{elapsed_s:6.1f} s  {record.state}{doing}; nodes: {nodes or 'idle'}; {progress}"
        )
        is_end = record.state.is_final or self._has_failed_at_once()
        if record.failures > self._failures and not is_end:  # the report tells the last one
            self._failures = record.failures
            cause = _last_failure(record) or "it got further since"
            again = "as before" if cause == self._told else cause
            self._told = cause
            self._say(f"{elapsed_s:6.1f} s  failure {self._failures}: {again}")

    def _doing(self, is_starting: bool) -> str:
        """Say what nodes that start are busy with before the first batch; "": nothing."""
        if self._records.processes or not is_starting:
            return ""
        if self._site.client.logs(self._trainer_id):  # a worker's first act is to open its log
            return ": running the script up to its first batch"
        return ": importing torch"

    def _report(self) -> TryReport:
        view = self._watch.status.trainers[0]
        facts = collect(self._site.sidecar.entries())
        state, reason, warning = view.record.state, view.record.reason, ""
        if not state.is_final and self._has_failed_at_once():
            state, reason = TrainerState.FAILED, _last_failure(view.record)
        if view.record.diverged:
            warning = view.record.diverged.cause
        return TryReport(
            script=Path(self._spec.script).name,
            state=state.value,
            reason=reason,
            seconds=self._watch.elapsed_s,
            nodes=self._site.n_nodes,
            failures=view.record.failures,
            rescales=len(facts.rescales),
            pauses_s=tuple(r.pause_s for r in facts.rescales),
            kill=self._kill,
            speeds=tuple(speeds(self._records.processes)),
            epochs=tuple(epochs(self._records.processes)),
            last_lines=self._last_lines(LAST_LINES[state is TrainerState.FAILED], reason),
            warning=warning,
            remarks=view.record.remark_sentences,
        )

    def _last_lines(self, max_lines: int, reason: str) -> tuple[str, ...]:
        """Return the end of the newest log, without our own lines and what ``reason`` says."""
        paths = [Path(file.path) for file in self._site.client.logs(self._trainer_id)]
        with_lines = [path for path in paths if path.exists() and path.stat().st_size]
        for path in sorted(with_lines, key=lambda p: p.stat().st_mtime, reverse=True):
            lines = path.read_text(errors="replace").splitlines()
            script_lines = evidence([line for line in lines if not _OURS.match(line)], reason)
            if script_lines:
                return tuple(map(shown, script_lines[-max_lines:]))
        return ()


def evidence(lines: Sequence[str], reason: str) -> list[str]:
    """Return what a script printed without what starts it, and without what ``reason`` repeats.

    Of tracebacks the frames of bftrainer and runpy are left out, and the exception, which the
    reason names.
    """
    script_lines, is_starter = list[str](), False
    for line in lines:
        if frame := _FRAME.match(line):
            is_starter = frame[1].startswith(_STARTERS)
        elif not line.startswith("    "):
            is_starter = False
        if not is_starter:
            script_lines.append(line)
    if script_lines and script_lines[-1].strip() and script_lines[-1].strip().rstrip(".") in reason:
        script_lines.pop()
    return script_lines


def _last_failure(record: TrainerRecord) -> str:
    return with_place(record.failing.cause, record.failing.place)
