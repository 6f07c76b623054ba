"""``bftrainer try``: a user's script on a small site that gives and takes nodes and kills a worker.

The findings follow from the records of its workers, which ``bftrainer/elastic/sample_record.py``
writes, and are held against the same script in one process. Everything that is started is ended in
any case.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import signal
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bftrainer.batch.local.workload import JobWorkload
from bftrainer.elastic import files
from bftrainer.lab.demo.local_site import (
    LocalSite,
    demo_page,
    laptop_site,
    scratch_directory,
    workload_of,
)
from bftrainer.lab.demo.watch import Use, Watch, collect
from bftrainer.model.columns import shown
from bftrainer.model.errors import BftError, ExitCode
from bftrainer.model.trainer import TrainerRecord, TrainerSpec, TrainerState, with_place

Line = Mapping[str, Any]
Key = tuple[int, int]  # generation, attempt
MOST_NAMED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochUse:
    """The use of an epoch's samples by its updates."""

    epoch: int
    of: int  # samples that the epoch has
    used: int = 0  # places of the epoch that were used
    missed: int = 0  # places before the last used one that were not
    repeated: int = 0  # uses of a place beyond the first
    twice: tuple[int, ...] = ()  # indices at more than one place, the first few

    @property
    def is_once(self) -> bool:
        """Return whether each sample so far was used exactly once."""
        return not (self.missed or self.repeated or self.twice)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedBySize:
    """Throughput of all generations of one size."""

    size: int  # in workers
    samples_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatePlace:
    """The worker that made the newest update, and that update."""

    pid: int
    rank: int
    size: int
    step: int
    of_generation: int  # updates of its generation


class Records:
    """The lines of each process, read as they come."""

    def __init__(self, directory: Path) -> None:
        self.processes: dict[str, list[Line]] = {}  # by host and process id, "n1-4711"
        self._directory = directory
        self._read_bytes: dict[Path, int] = {}

    def look(self) -> bool:
        """Read what was added and return whether anything was.

        The last line of a killed process may be cut.
        """
        is_more = False
        for path in sorted(self._directory.glob("samples-*.jsonl")):
            with path.open("rb") as stream:
                stream.seek(self._read_bytes.get(path, 0))
                whole = stream.read().rpartition(b"\n")[0]
            if whole:
                self._read_bytes[path] = self._read_bytes.get(path, 0) + len(whole) + 1
                lines = self.processes.setdefault(path.stem.partition("-")[2], [])
                lines += [json.loads(line) for line in whole.split(b"\n")]
                is_more = True
        return is_more


def epochs(processes: Mapping[str, Sequence[Line]]) -> list[EpochUse]:
    """Return the use of each epoch."""
    counted = _committed(line for lines in processes.values() for line in lines)
    spans: dict[int, list[Line]] = defaultdict(list)
    for lines in processes.values():
        # A batch that was handed out again in the same step counts as of the last time.
        last = {(_key(x), x["step"], x["number"]): x for x in lines if x["kind"] == "handed"}
        for (key, step, _), line in last.items():
            if (key, step + 1) in counted:
                spans[line["epoch"]].append(line)
    return [_use(epoch, spans[epoch]) for epoch in sorted(spans)]


def _key(line: Line) -> Key:
    return (line["generation"], line["attempt"])


def _committed(lines: Iterable[Line]) -> set[tuple[Key, int]]:
    """Return the updates, by generation and step, whose results the run kept.

    A generation that begins after step n drops what earlier ones did after it.
    """
    begins: dict[Key, int] = {}
    steps: set[tuple[Key, int]] = set()
    for line in lines:
        if line["kind"] == "entered":
            begins[_key(line)] = line["step"]
        elif line["kind"] == "committed":
            steps.add((_key(line), line["step"]))
    return {
        (key, step)
        for key, step in steps
        if all(step <= first for later, first in begins.items() if later > key)
    }


def _use(epoch: int, lines: Sequence[Line]) -> EpochUse:
    used = missed = repeated = end = 0
    times: Counter[int] = Counter()
    for line in sorted(lines, key=lambda x: int(x["at"])):
        first, last = line["at"], line["at"] + len(line["indices"])
        missed += max(0, first - end)
        repeated += max(0, min(end, last) - first)
        used += max(0, last - max(first, end))
        end = max(end, last)
        if not line.get("may_repeat"):  # as the script's own order may
            times.update(line["indices"])
    twice = sorted(index for index, count in times.items() if count > 1)
    return EpochUse(
        epoch=epoch,
        of=max(line["of"] for line in lines),
        used=used,
        missed=missed,
        repeated=repeated,
        twice=tuple(twice[:MOST_NAMED]),
    )


def speeds(processes: Mapping[str, Sequence[Line]]) -> list[SpeedBySize]:
    """Return the throughput at each size, from entering a generation to its last update."""
    spans: dict[Key, list[Line]] = defaultdict(list)
    for lines in processes.values():
        for line in lines:
            if line["kind"] in ("entered", "committed"):
                spans[_key(line)].append(line)
    totals: dict[int, tuple[int, float]] = {}
    for lines in spans.values():
        first = min(lines, key=lambda x: (x["samples"], x["at_s"]))
        last = max(lines, key=lambda x: (x["samples"], -x["at_s"]))
        samples, seconds = totals.get(first["size"], (0, 0.0))
        samples += last["samples"] - first["samples"]
        totals[first["size"]] = samples, seconds + max(0.0, last["at_s"] - first["at_s"])
    return [
        SpeedBySize(size=size, samples_per_s=samples / seconds)
        for size, (samples, seconds) in sorted(totals.items())
        if samples and seconds
    ]


def has_committed(processes: Mapping[str, Sequence[Line]]) -> bool:
    """Return whether any update was made."""
    return any(line["kind"] == "committed" for lines in processes.values() for line in lines)


def losses(processes: Mapping[str, Sequence[Line]]) -> dict[int, float]:
    """Return the loss of each update that the run kept, over its whole batch."""
    counted = _committed(line for lines in processes.values() for line in lines)
    shares: dict[int, dict[tuple[str, int], tuple[float, float]]] = defaultdict(dict)
    kind = ""  # found out in the first update of several parts
    for name, lines in processes.items():
        for line in lines:
            if line["kind"] != "loss" or (_key(line), line["step"] + 1) not in counted:
                continue
            of, share = shares[line["step"] + 1], (name, line["number"])
            of[share] = of.get(share, (0.0, 0.0))[0] + line["loss"], line["weight"]
            kind = line["reduction"] or kind
    return {
        step: sum(x for x, _ in of.values())
        if kind == "sum"
        else sum(x * w for x, w in of.values() if w) / (sum(w for _, w in of.values()) or 1.0)
        for step, of in sorted(shares.items())
    }


def newest(processes: Mapping[str, Sequence[Line]], *, rank: int = 0) -> UpdatePlace | None:
    """Return the process of ``rank`` in the newest generation, if it has made an update there."""
    lines = [(int(n.rpartition("-")[2]), line) for n, of in processes.items() for line in of]
    begun = [_key(line) for _, line in lines if line["kind"] == "entered"]
    made = [
        (pid, line)
        for pid, line in lines
        if line["kind"] == "committed" and _key(line) == max(begun) and line["rank"] == rank
    ]
    if not made:
        return None
    pid, line = made[-1]
    return UpdatePlace(
        pid=pid, rank=rank, size=line["size"], step=line["step"], of_generation=len(made)
    )


ROUNDING = 1e-3  # differences below come from the order of sums in float32, and grow with updates
_KINDS = {"float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}
_MOST = 1 << 22  # elements compared at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOutcome:
    """The result of one way of training."""

    seconds: float
    updates: int
    samples: int
    loss: float | None  # of the last update
    metric: float | None  # reported last


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Both ways, and how far they are apart."""

    elastic: TrainingOutcome
    alone: TrainingOutcome
    # Largest difference of a parameter to the largest of its tensor; None: not comparable.
    parameters: float | None
    losses: float | None  # the same of the updates' losses to the largest of them


def outcome(
    directory: Path, seconds: float, losses: Mapping[int, float], metric: float | None
) -> TrainingOutcome:
    """Return the outcome of a training whose last checkpoint is in ``directory``."""
    found = files.newest_first(directory)
    counters = files.peek(found[0])["counters"] if found else {}
    return TrainingOutcome(
        seconds=seconds,
        updates=counters.get("step", 0),
        samples=counters.get("samples", 0),
        loss=losses[max(losses)] if losses else None,
        metric=metric,
    )


def loss_difference(one: Mapping[int, float], other: Mapping[int, float]) -> float | None:
    """Return the largest difference of an update's loss, relative to the largest loss."""
    both = one.keys() & other.keys()
    largest = max((abs(other[step]) for step in both), default=0.0)
    return max(abs(one[step] - other[step]) for step in both) / largest if largest else None


def parameter_difference(one: Path, other: Path) -> float | None:
    """Return how far the last checkpoints in two directories are apart; None: not comparable."""
    newest = [path for directory in (one, other) for path in files.newest_first(directory)[:1]]
    headers = [files.peek(path) for path in newest]
    if len(newest) < 2 or headers[0]["layout"] != headers[1]["layout"]:
        return None
    largest = 0.0
    if not all(name in _KINDS for name, _ in _described(headers[0])):
        return None
    for a, b in zip(*map(_parameters, newest, headers), strict=True):
        scale = difference = 0.0
        for first in range(0, len(a), _MOST):
            x, y = (_values(each[first : first + _MOST]) for each in (a, b))
            apart = float(np.abs(x - y).max())
            if not math.isfinite(apart):
                return math.inf
            scale, difference = max(scale, float(np.abs(y).max())), max(difference, apart)
        largest = max(largest, difference / scale if scale else difference)
    return largest


def _described(header: Mapping[str, Any]) -> list[tuple[str, list[int]]]:
    """Return type and shape of each parameter; they come first."""
    rest = dict(header["structure"]["d"])
    return [(name, shape) for name, shape in header["tensors"][: len(rest["trained"]["l"])]]


def _parameters(path: Path, header: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the numbers of each parameter of a checkpoint, of a sharded model's put together."""
    parts = [files.part_of(path, number) for number in range(header.get("parts", 1))]
    headers = [header, *map(files.peek, parts[1:])]
    columns = map(_stored, parts, headers)
    for i, pieces in enumerate(zip(*columns, strict=True)):
        boxes: list[Any] = [told["boxes"][i] if "boxes" in told else None for told in headers]
        found = pieces[0]
        if boxes[0] is not None:
            found = np.empty(boxes[0][0], dtype=found.dtype)
            for piece, (_, shape, offset) in zip(pieces, boxes, strict=True):
                place = tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))
                found[place] = piece.reshape(shape)
        if found.size:
            yield found.reshape(-1)


def _stored(path: Path, header: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the numbers of each parameter in one file."""
    with path.open("rb") as file:
        file.seek(len(files.MAGIC))
        start = len(files.MAGIC) + 8 + int.from_bytes(file.read(8), "little")
    for name, shape in _described(header):
        kind, count = np.dtype(_KINDS[name]), math.prod(shape)
        if count:
            yield np.memmap(path, dtype=kind, mode="r", offset=start, shape=(count,))
        else:
            yield np.empty(0, dtype=kind)
        start += count * kind.itemsize


def _values(stored: Any) -> Any:
    if stored.dtype == np.uint16:  # the upper half of a float32
        return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return stored.astype(np.float64)


def comparison_text(found: Comparison) -> list[str]:
    """Return the lines of the page."""
    lines = [f"    {'':12}{'elastic':>14}{'one process':>14}"]
    for label, name, form in (
        ("updates", "updates", "d"),
        ("samples", "samples", "d"),
        ("seconds", "seconds", ".0f"),
        ("last loss", "loss", ".7g"),
        ("reported", "metric", ".7g"),
    ):
        values = [getattr(one, name) for one in (found.elastic, found.alone)]
        texts = ["-" if value is None else format(value, form) for value in values]
        if texts != ["-", "-"]:
            lines.append(f"    {label:12}{texts[0]:>14}{texts[1]:>14}")
    return ["  compared", *lines, f"    {_verdict(found)}"]


def _verdict(found: Comparison) -> str:
    if found.parameters is None:
        return "The parameters cannot be compared: the models, or what was saved, differ."
    losses = "" if found.losses is None else f", losses by {found.losses:.1e}"
    apart = f"parameters differ by {found.parameters:.1e} of the largest{losses}"
    if all(x <= ROUNDING for x in (found.parameters, found.losses or 0.0)):
        return f"Elastic training changed nothing but the order of sums: {apart}."
    return (
        f"Elastic training changed something: {apart}. Dropout, noise and batch normalisation"
        " do; if there is none, see docs/howto/train-pytorch.md, Losses."
    )


NOT_ELASTIC = "BFT-1423"  # the worker's error


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


def wrong(report: TryReport) -> BftError | None:
    """Return what a user must look at, None if the script finished and used all samples once."""
    if NOT_ELASTIC in report.reason:
        return BftError(
            "BFT-1057",
            f"{report.script} ended without training with bftrainer.elastic.",
            "Make its loop elastic: docs/howto/train-pytorch.md shows the five lines.",
        )
    if report.state == TrainerState.FAILED:
        return BftError(
            "BFT-1053",
            f"{report.script} failed: {report.reason}",
            "Correct the script and try again; the end of its log is above.",
        )
    is_finished = report.state == TrainerState.FINISHED
    said = _uses(report.epochs)
    if is_finished and not report.epochs:
        said = ["no update was recorded"]
    if said:
        return BftError(
            "BFT-1054",
            f"Not every sample was used exactly once: {said[0]}.",
            "If the script leaves its loop over run.batches() early, let it end the epoch;"
            " otherwise this is a defect of bftrainer: report it with the directory.",
            exit_code=ExitCode.VALIDATION_FAILED,
        )
    if not is_finished:
        return BftError(
            "BFT-1055",
            f"{report.script} had not finished after {report.seconds:.0f} s.",
            "Give more --seconds or fewer --epochs.",
        )
    return None


def _uses(epochs: Sequence[EpochUse]) -> list[str]:
    """Return a sentence for each epoch that is not as it should be; the last may be cut."""
    said = []
    for use in epochs:
        name = f"epoch {use.epoch}"
        if use.twice:
            said.append(f"{name} used sample {use.twice[0]} more than once")
        elif not use.is_once:
            said.append(f"{name} used {use.repeated} samples again and left out {use.missed}")
        elif use is not epochs[-1] and use.used < use.of:
            said.append(f"{name} ended after {use.used} of its {use.of} samples")
    return said


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
            killed = f"rank {kill.rank} of {kill.size} workers after step {kill.step}, at"
            killed += f" {kill.at_s:.1f} s"
        speeds = ", ".join(
            f"{s.samples_per_s:.0f} with {s.size} worker{'s' * (s.size != 1)}"
            for s in report.speeds
        )
        lines += [f"  rescales    {rescales}", f"  killed      {killed}"]
        lines += [f"  samples/s   {speeds}", f"  samples     {_samples(report)}"]
    if report.warning:
        lines.append(f"  warning     {report.warning}")
    if report.comparison is not None:
        lines += comparison_text(report.comparison)
    if report.last_lines:
        lines += ["  it printed at last", *(f"    {line}" for line in report.last_lines)]
    return "\n".join(lines)


def _samples(report: TryReport) -> str:
    if said := _uses(report.epochs):
        return "; ".join(said[:3])
    last = report.epochs[-1]
    full = sum(use.used == use.of for use in report.epochs)
    text = f"every one exactly once in each of {full} epochs" if full else ""
    if last.used < last.of:
        cut = f"{last.used} of {last.of} in the last"
        text = f"{text}; {cut}" if text else cut
    return text


RECORD_VARIABLE = "BFT_RECORD_SAMPLES"  # bftrainer/elastic/sample_record.py
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
    spec: TrainerSpec,
    n_nodes: int,
    limit_s: float | None,
    say: Say,
    *,
    compares: bool = False,
    has_page: bool = False,
) -> TryReport:
    """Run everything; ``say`` is called with each line to print.

    ``compares``: run the script in one process as well, before. ``has_page``: serve the daemon's
    page meanwhile.

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
        elastic = _tried(spec, n_nodes, scratch, limit_s, say, has_page=has_page)
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
    has_page: bool = False,
) -> _Try:
    """Run a script on so many nodes; on one it is left alone."""
    nodes = f"{n_nodes} nodes" if n_nodes > 1 else "one node"
    say(f"Starting {nodes} on this machine, and a daemon for {'them' if n_nodes > 1 else 'it'}.")
    is_shared = spec.runtime == "torch" and spec.interpreter == sys.executable
    with laptop_site(
        scratch, n_nodes=n_nodes, policy=POLICY, warm=() if is_shared else None
    ) as site:
        if is_shared:
            say("Importing torch, once for all of them.")
            site.await_ready()
        found = _Try(site, _placed(spec, n_nodes, scratch), say)
        with demo_page(site.client, say) if has_page else nullcontext():
            found.run(limit_s)
        return found


def _compared(elastic: _Try, alone: _Try) -> Comparison:
    places = elastic.checkpoints, alone.checkpoints
    return Comparison(
        elastic=elastic.outcome(),
        alone=alone.outcome(),
        parameters=parameter_difference(*places),
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
            quiet_looks = 0 if self._records.look() else quiet_looks + 1

    def _has_failed_at_once(self) -> bool:
        """Return whether a worker failed before any update; the daemon would try again."""
        return bool(self._watch.status.trainers[0].trouble) and not self._has_trained

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
            warning=view.record.diverged.cause if view.record.diverged else "",
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
