"""Watches the demonstration: polls cluster and daemon, samples node use, shows a page, sums up.

The snapshots are the demonstration's own, so that offered and harvested time is not measured by
the daemon, which is being judged. The other facts are from its journal. ``docs/reference/cli.md``
defines the figures.
"""

from __future__ import annotations

import enum
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from bftrainer.journal.projection import JournalEntry
from bftrainer.lab.demo.local_site import DemoSite
from bftrainer.lab.report_page import ReportPage, Section
from bftrainer.model.cluster import Job, JobState, Node, NodeState, Snapshot
from bftrainer.model.colours import colour_of
from bftrainer.model.columns import TextTable
from bftrainer.model.quantities import quantity
from bftrainer.model.views import TrainerView

NEXT = """\
What to do next
  your own script   docs/tutorial.md: change five lines, then  bftrainer try train.py
  your own cluster  bftrainer up --partition NAME, if one is preemptable: bftrainer help own-daemon
  your site         bftrainer help slurm-site: a service for all users"""
# By ``Use``, in rich's words; others are dim.
OTHER_STYLES = {"ordinary": "grey58", "away": "red"}
NODE_HEADERS = ("NODE", "NOW")
TRAINER_HEADERS = ("TRAINER", "STATE", ">NODES", ">EPOCH", ">SAMPLES/S", ">RESCALES")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescale:
    """A generation that became complete."""

    trainer_id: str
    at_s: float
    size_before: int  # 0: a start or a resume
    size: int
    pause_s: float  # worst of all survivors


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveBack:
    """A node handed back because an ordinary job could start on it."""

    at_s: float
    node: str
    job_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalFacts:
    """Everything of interest in a journal, each list in order of time."""

    generations: tuple[Rescale, ...] = ()
    give_backs: tuple[GiveBack, ...] = ()
    worker_failures: tuple[str, ...] = ()

    @property
    def rescales(self) -> tuple[Rescale, ...]:
        """Changes of size of trainers that were running."""
        return tuple(rescale for rescale in self.generations if rescale.size_before > 0)


def collect(entries: Iterable[JournalEntry]) -> JournalFacts:
    """Read the entries of one journal, oldest first."""
    generations: list[Rescale] = []
    give_backs: dict[str, GiveBack] = {}
    failures: list[str] = []
    for entry in entries:
        if entry.kind == "rescaled":
            payload = entry.payload
            rescale = payload["what"]
            generations.append(
                Rescale(
                    trainer_id=payload["trainer_id"],
                    at_s=entry.at_s,
                    size_before=int(rescale["size_before"]),
                    size=int(rescale["size"]),
                    pause_s=float(rescale["pause_s"]),
                )
            )
        elif entry.kind == "worker-failed":
            failures.append(str(entry.payload["what"]["cause"]))
        elif entry.kind == "decision":
            for release in entry.payload["plan"]["releases"]:
                if job_id := release["for_job"]:
                    give_back = GiveBack(at_s=entry.at_s, node=release["node"], job_id=job_id)
                    # A second decision may still name a pilot while it leaves.
                    give_backs.setdefault(release["pilot_id"], give_back)
    return JournalFacts(
        generations=tuple(generations),
        give_backs=tuple(give_backs.values()),
        worker_failures=tuple(failures),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeconds:
    """The use of the nodes' time, in node-seconds."""

    ordinary: float
    offered: float  # harvested + starting + pausing + held + unused
    harvested: float  # a trainer trained; the name is older than the word (glossary)
    starting: float
    pausing: float
    held: float
    unused: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerResult:
    """The result of one trainer."""

    trainer_id: str
    name: str
    state: str
    epochs: int
    node_seconds: float
    rescales: int
    accuracy: float | None
    fixed_accuracy: float | None  # the same script without bftrainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All results of the demonstration."""

    nodes: int
    live_s: float
    node_seconds: NodeSeconds
    utilisation: float  # the share of the offered time in which a trainer trained
    rescales: int
    pauses_s: tuple[float, ...]
    give_backs: int
    preemptions: int
    # Of ordinary jobs, against a replay without bftrainer, or (is_wait) from their submission.
    job_delays_s: tuple[float, ...]
    worker_failures: tuple[str, ...]
    trainers: tuple[TrainerResult, ...]
    is_wait: bool = False


def account(spans: Sequence[Span], facts: JournalFacts) -> NodeSeconds:
    """Split the time of all nodes; pauses are taken off what was harvested.

    A pause is counted for every member of the new generation although only the worst
    of them waited that long: what was trained is never overstated.
    """
    member = node_seconds(spans, Use.TRAINING)
    pausing = min(member, sum(rescale.pause_s * rescale.size for rescale in facts.rescales))
    return NodeSeconds(
        ordinary=node_seconds(spans, Use.ORDINARY, Use.AWAY),
        offered=sum(span.length_s for span in spans if span.use.is_offered),
        harvested=member - pausing,
        starting=node_seconds(spans, Use.STARTING),
        pausing=pausing,
        held=node_seconds(spans, Use.HELD),
        unused=node_seconds(spans, Use.FREE),
    )


def sentences(summary: Summary) -> tuple[str, ...]:
    """Say in plain words what was seen."""
    split = summary.node_seconds
    idle = (
        f"Ordinary jobs left {split.offered:.0f} node-seconds of {summary.nodes} nodes idle. Three "
        f"networks trained in {split.harvested:.0f} of them ({summary.utilisation:.0%})."
    )
    since = "after their submission" if summary.is_wait else "later than without bftrainer"
    given_back = (
        f"{_nodes(summary.give_backs)} given back before an ordinary job needed them, "
        f"{summary.preemptions} taken (preempted). Ordinary jobs started "
        f"{_median_and_most(summary.job_delays_s)} {since}."
    )
    rescales = (
        f"Trainers grew or shrank {summary.rescales} times without being restarted, and paused "
        f"{_median_and_most(summary.pauses_s)} for it."
    )
    return (idle, given_back, rescales)


def report_of(summary: Summary) -> ReportPage:
    """Return what is printed at the end."""
    split = summary.node_seconds
    rows = tuple(map(_row, summary.trainers))
    idle = (
        f"Idle without training: workers starting {split.starting:.0f} node-seconds, pauses "
        f"{split.pausing:.1f}, held {split.held:.0f}, not held {split.unused:.0f}."
    )
    headers = (
        "TRAINER", "STATE", ">EPOCHS", ">NODE-S", ">RESCALES", ">ACCURACY", ">WITHOUT BFTRAINER",
    )  # fmt: skip
    return ReportPage(
        title="bftrainer demo",
        answers=(f"What you saw in {summary.live_s:.0f} s", *sentences(summary)),
        more=(idle,),
        sections=(Section(tables=(TextTable(headers=headers, rows=rows),)),),
    )


def _row(trainer: TrainerResult) -> tuple[str, ...]:
    return (
        trainer.name,
        trainer.state,
        str(trainer.epochs),
        quantity(trainer.node_seconds),
        str(trainer.rescales),
        _percent(trainer.accuracy),
        _percent(trainer.fixed_accuracy),
    )


def _nodes(number: int) -> str:
    if number == 1:
        return "1 node was"
    return f"{number} nodes were"


def _median_and_most(seconds: Sequence[float]) -> str:
    if not seconds:
        return "0.0 s"
    return f"{statistics.median(seconds):.2f} s (at most {max(seconds):.2f} s)"


def _percent(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{100 * value:.1f}%"


class Use(enum.StrEnum):
    """The use of a node at an instant; all but the first two count as offered."""

    ORDINARY = "ordinary"  # somebody else's job is on it
    AWAY = "away"  # down, drained, reserved or unknown
    TRAINING = "training"  # a member of a trainer's generation
    STARTING = "starting"  # held, and its worker is on its way in
    HELD = "held"  # held without a worker: just come, or leaving
    FREE = "free"  # idle and not ours

    @property
    def is_offered(self) -> bool:
        """Return whether no ordinary job has the node and it is not away."""
        return self not in (Use.ORDINARY, Use.AWAY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of time in which a node did the same thing."""

    node: str
    use: Use
    trainer_id: str = ""
    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """The length of the span."""
        return self.end_s - self.start_s


class NodeTimeline:
    """The use of every node from the first sample to the last; each sample holds until the next."""

    def __init__(self) -> None:
        self._rows: dict[str, list[Span]] = {}

    def add(self, snapshot: Snapshot, trainers: Sequence[TrainerView]) -> None:
        """Take a sample, unless the batch system did not say."""
        if snapshot.nodes is None or snapshot.jobs is None:
            return
        on_node: dict[str, Job] = {}
        for job in sorted(snapshot.jobs, key=lambda job: job.is_ordinary):  # ordinary jobs win
            if job.state in (JobState.RUNNING, JobState.COMPLETING):
                on_node |= dict.fromkeys(job.nodes, job)
        member: dict[str, str] = {}  # node -> trainer
        joining: dict[str, str] = {}
        for trainer in trainers:
            member |= dict.fromkeys(trainer.observed_nodes, trainer.record.trainer_id)
            joining |= dict.fromkeys(trainer.requested_nodes, trainer.record.trainer_id)
        now_s = snapshot.taken_at_s
        for node in snapshot.nodes:
            row = self._rows.setdefault(node.name, [])
            use, trainer_id = _use(node, on_node.get(node.name), member, joining)
            if row:
                row[-1] = replace(row[-1], end_s=now_s)
            if not row or (row[-1].use, row[-1].trainer_id) != (use, trainer_id):
                row.append(
                    Span(node=node.name, use=use, trainer_id=trainer_id, start_s=now_s, end_s=now_s)
                )

    def now(self) -> tuple[Span, ...]:
        """Return the last span of every node."""
        return tuple(row[-1] for row in self._rows.values())

    def spans(self) -> tuple[Span, ...]:
        """Return all spans, by node and by time."""
        return tuple(chain.from_iterable(self._rows.values()))


def _use(
    node: Node, job: Job | None, member: Mapping[str, str], joining: Mapping[str, str]
) -> tuple[Use, str]:
    """Return what a node does and for which trainer."""
    name = node.name
    if job is not None and job.is_ordinary:
        return Use.ORDINARY, ""
    if job is not None:
        if name in member:
            return Use.TRAINING, member[name]
        if name in joining:
            return Use.STARTING, joining[name]
        return Use.HELD, ""
    if node.state in (NodeState.IDLE, NodeState.PLANNED):
        return Use.FREE, ""
    # Occupied by something that is not in the queue (any more): nothing we could use.
    is_busy = node.state in (NodeState.ALLOCATED, NodeState.COMPLETING)
    return (Use.ORDINARY if is_busy else Use.AWAY), ""


def node_seconds(spans: Sequence[Span], *uses: Use) -> float:
    """Add up the spans of the given uses."""
    return sum(span.length_s for span in spans if span.use in uses)


class Watch:
    """The state of cluster and daemon as of the last ``look``."""

    def __init__(self, site: DemoSite) -> None:
        self._site = site
        self.started_s = time.time()
        self.timeline = NodeTimeline()
        self.look()

    def look(self) -> None:
        """Poll once.

        Raises:
            BftError: the daemon does not answer.
        """
        self.status = self._site.client.status()
        self.timeline.add(self._site.look(), self.status.trainers)
        self.elapsed_s = time.time() - self.started_s

    @property
    def is_over(self) -> bool:
        """Return whether every trainer has ended."""
        states = [view.record.state for view in self.status.trainers]
        return bool(states) and all(state.is_final for state in states)


def line(watch: Watch) -> str:
    """Return it in one line, for logs and pipes."""
    names = _names(watch)
    nodes = " ".join(f"{span.node}={_what(span, names)}" for span in watch.timeline.now())
    sizes = " ".join(map(_size, watch.status.trainers))
    return f"{watch.elapsed_s:5.1f} s  {nodes}  |  {sizes}  |  {_counters(watch)}"


def _size(view: TrainerView) -> str:
    record = view.record
    return f"{record.spec.name}:{len(view.observed_nodes)}@{record.progress.epoch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchPage:
    """Everything at a glance, for who draws it."""

    title: str
    nodes: TextTable
    trainers: TextTable
    counters: str
    styles: Mapping[str, str]  # of cells, by what is in them; in rich's words


def page(watch: Watch) -> WatchPage:
    """Return everything at a glance."""
    names = _names(watch)
    colours, styles = {}, {}
    for trainer_id, name in names.items():
        colours[trainer_id] = styles[name] = colour_of(trainer_id)
    nodes = []
    for node in watch.timeline.now():
        does = _what(node, names)
        nodes.append((node.node, does))
        if node.use is not Use.TRAINING:
            style = colours.get(node.trainer_id, OTHER_STYLES.get(node.use, "dim"))
            styles[does] = f"dim {style}" if node.use is Use.STARTING else style
    trainers = tuple((view.record.spec.name, *_cells(view)) for view in watch.status.trainers)
    return WatchPage(
        title=f"bftrainer demo, {watch.elapsed_s:.0f} s",
        nodes=TextTable(headers=NODE_HEADERS, rows=tuple(nodes)),
        trainers=TextTable(headers=TRAINER_HEADERS, rows=trainers),
        counters=_counters(watch),
        styles=styles,
    )


def _names(watch: Watch) -> dict[str, str]:
    views = watch.status.trainers
    return {view.record.trainer_id: view.record.spec.name for view in views}


def _what(node: Span, names: dict[str, str]) -> str:
    name = names.get(node.trainer_id, "")
    match node.use:
        case Use.TRAINING:
            return name
        case Use.STARTING:
            return f"{name}(starting)"
        case Use.ORDINARY:
            return "job"
        case use:
            return use.value


def _cells(view: TrainerView) -> tuple[str, ...]:
    record = view.record
    return (
        record.state.value,
        str(len(view.observed_nodes)),
        f"{record.progress.epoch}/{record.spec.epochs}",
        quantity(record.progress.samples_per_s),
        str(record.rescales),
    )


def _counters(watch: Watch) -> str:
    status = watch.status
    return (
        f"rescales {status.rescales}  given back {status.give_backs}  "
        f"preempted {status.preemptions}"
    )
