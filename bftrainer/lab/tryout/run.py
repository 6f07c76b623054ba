"""Runs a user's script on a small site that gives and takes nodes, and kills one worker.

Returns a ``TryReport``. Everything that it starts is ended in any case. Called by ``cli.tryout``.
"""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bftrainer.batch.local.workload import JobWorkload
from bftrainer.lab.demo.local_site import LocalSite, laptop_site, scratch_directory, workload_of
from bftrainer.lab.demo.summary import collect
from bftrainer.lab.demo.watch import Use, Watch
from bftrainer.lab.tryout.records import Records, epochs, has_committed, losses, newest, speeds
from bftrainer.lab.tryout.report import (
    Comparison,
    TrainingOutcome,
    TryReport,
    WorkerKill,
    as_text,
    loss_difference,
    outcome,
    parameter_difference,
    wrong,
)
from bftrainer.model.columns import shown
from bftrainer.model.trainer import TrainerRecord, TrainerSpec, TrainerState, with_place

RECORD_VARIABLE = "BFT_RECORD_SAMPLES"  # bftrainer/elastic/run_info.py
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
Say = Callable[[str], None]


def run_try(
    spec: TrainerSpec, n_nodes: int, limit_s: float | None, say: Say, *, compares: bool = False
) -> TryReport:
    """Run everything; ``say`` is called with each line to print.

    ``compares``: run the script in one process as well, before.

    Raises:
        BftError: BFT-1053 to BFT-1055 after the report was printed, or something else failed; the
            temporary directory is kept, and its path in the message.
    """
    with scratch_directory("bft-try-") as scratch:
        alone = None
        if compares:
            (scratch / "alone").mkdir()
            one = dataclasses.replace(spec, workers_per_node=1)
            alone = _tried(one, 1, scratch / "alone", limit_s, say)
            if problem := wrong(alone.report):
                say(f"\nAlone: {as_text(alone.report)}")
                raise problem
        elastic = _tried(spec, n_nodes, scratch, limit_s, say)
        report = elastic.report
        if alone is not None and wrong(report) is None:
            report = dataclasses.replace(report, comparison=_compared(elastic, alone))
        say(f"\n{as_text(report)}")
        if problem := wrong(report):
            raise problem
    return report


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Tried:
    """A script that was run, and where its last state is."""

    report: TryReport
    losses: dict[int, float]
    metric: float | None
    checkpoints: Path

    def outcome(self) -> TrainingOutcome:
        return outcome(self.checkpoints, self.report.seconds, self.losses, self.metric)


def _tried(
    spec: TrainerSpec, n_nodes: int, scratch: Path, limit_s: float | None, say: Say
) -> _Tried:
    """Run a script on so many nodes; on one it is left alone."""
    nodes = f"{n_nodes} nodes" if n_nodes > 1 else "one node"
    say(f"Starting {nodes} on this machine, and a daemon for {'them' if n_nodes > 1 else 'it'}.")
    is_shared = spec.runtime == "torch" and spec.interpreter == sys.executable
    with laptop_site(
        scratch, n_nodes=n_nodes, policy=POLICY, warm=() if is_shared else None
    ) as site:
        if is_shared:
            say("Importing torch, once for all of them.")
            site.server.await_warm()
        return _Try(site, _placed(spec, n_nodes, scratch), say).run(limit_s)


def _compared(elastic: _Tried, alone: _Tried) -> Comparison:
    return Comparison(
        elastic=elastic.outcome(),
        alone=alone.outcome(),
        parameters=parameter_difference(elastic.checkpoints, alone.checkpoints),
        losses=loss_difference(elastic.losses, alone.losses),
    )


def _placed(spec: TrainerSpec, n_nodes: int, scratch: Path) -> TrainerSpec:
    """Return the spec with sizes, directories and the record of a try."""
    records, checkpoints = scratch / "samples", scratch / "checkpoints"
    records.mkdir()
    checkpoints.mkdir()
    return dataclasses.replace(
        spec,
        n_min=1,
        n_max=n_nodes,
        checkpoint_dir=str(checkpoints),
        checkpoint_interval_s=CHECKPOINT_INTERVAL_S,
        environment=(*spec.environment, (RECORD_VARIABLE, str(records))),
    )


def _workload(n_nodes: int) -> JobWorkload:
    """Return jobs that come for one node, then for all but one, again and again."""
    return workload_of((3.0, 1, 4.0, "alice"), (11.0, n_nodes - 1, 4.0, "alice"), repeat_s=22.0)


class _Try:
    """One script under way."""

    def __init__(self, site: LocalSite, spec: TrainerSpec, say: Say) -> None:
        self._site, self._spec, self._say = site, spec, say
        self._records = Records(Path(dict(spec.environment)[RECORD_VARIABLE]))
        self._watch = Watch(site)
        self._kill: WorkerKill | None = None
        self._said: object = None
        self._said_s = 0.0
        self._has_trained = False
        self._failures = 0  # those that were told

    def run(self, limit_s: float | None) -> _Tried:
        """Submit it and wait for its end, or for the end of the time."""
        self._trainer_id = self._site.client.submit(self._spec).record.trainer_id
        self._watch.look()
        while not (self._watch.is_over or self._has_failed_at_once() or self._is_late(limit_s)):
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
        reports = self._watch.status.trainers[0].record.reports
        return _Tried(
            report=self._report(),
            losses=losses(self._records.processes),
            metric=reports[-1].value if reports else None,
            checkpoints=Path(self._spec.checkpoint_dir),
        )

    def _end(self) -> None:
        """End the script if it has not ended; read the records when nobody writes any more."""
        if not self._watch.is_over:
            self._site.client.cancel(self._trainer_id, now=True)
        quiet_looks, deadline = 0, time.monotonic() + END_LIMIT_S
        while quiet_looks < QUIET_LOOKS and time.monotonic() < deadline:
            time.sleep(LOOK_INTERVAL_S)
            quiet_looks = 0 if self._records.look() else quiet_looks + 1

    def _has_failed_at_once(self) -> bool:
        """Return whether a worker failed before any update; the daemon would try again."""
        return bool(self._watch.status.trainers[0].trouble) and not self._has_trained

    def _is_late(self, limit_s: float | None) -> bool:
        return limit_s is not None and self._watch.elapsed_s > limit_s

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
            self._say(f"{kill.at_s:6.1f} s  killed the worker of rank {kill.rank}")
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
        done = f"epoch {record.progress.epoch}, {record.progress.samples} samples"
        self._say(f"{elapsed_s:6.1f} s  {record.state}{doing}; nodes: {nodes or 'idle'}; {done}")
        if record.failures > self._failures:
            self._failures = record.failures
            what = _last_failure(record) or "it got further since"
            self._say(f"{elapsed_s:6.1f} s  failure {self._failures}: {what}")

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
        state, reason = view.record.state, view.record.reason
        if not state.is_final and self._has_failed_at_once():
            state, reason = TrainerState.FAILED, _last_failure(view.record)
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
            last_lines=self._last_lines(LAST_LINES[state is TrainerState.FAILED]),
        )

    def _last_lines(self, most: int) -> tuple[str, ...]:
        """Return the end of the newest log, without our own lines."""
        paths = [Path(file.path) for file in self._site.client.logs(self._trainer_id)]
        written = [path for path in paths if path.exists() and path.stat().st_size]
        for path in sorted(written, key=lambda p: p.stat().st_mtime, reverse=True):
            lines = path.read_text(errors="replace").splitlines()
            own = [line for line in lines if not _OURS.match(line)]
            if own:
                return tuple(map(shown, own[-most:]))
        return ()


def _last_failure(record: TrainerRecord) -> str:
    return with_place(record.failing.cause, record.failing.place)
