"""The summary of a demonstration: facts from the journal, figures, a page of text. Pure.

``docs/reference/cli.md`` defines the figures.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bftrainer.journal.projection import JournalEntry
from bftrainer.lab.demo.watch import Span, Use, node_seconds
from bftrainer.model.columns import columns


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
        return tuple(g for g in self.generations if g.size_before > 0)


def collect(entries: Iterable[JournalEntry]) -> JournalFacts:
    """Read the entries of one journal, oldest first."""
    generations: list[Rescale] = []
    give_backs: dict[str, GiveBack] = {}
    failures: list[str] = []
    for entry in entries:
        if entry.kind == "rescaled":
            payload = entry.plain()
            what = payload["what"]
            generations.append(
                Rescale(
                    trainer_id=payload["trainer_id"],
                    at_s=entry.at_s,
                    size_before=int(what["size_before"]),
                    size=int(what["size"]),
                    pause_s=float(what["pause_s"]),
                )
            )
        elif entry.kind == "worker-failed":
            failures.append(str(entry.plain()["what"]["cause"]))
        elif entry.kind == "decision":
            for release in entry.plain()["plan"]["releases"]:
                if job_id := release["for_job"]:
                    given = GiveBack(at_s=entry.at_s, node=release["node"], job_id=job_id)
                    # A second decision may still name a pilot while it leaves.
                    give_backs.setdefault(release["pilot_id"], given)
    return JournalFacts(
        generations=tuple(generations),
        give_backs=tuple(give_backs.values()),
        worker_failures=tuple(failures),
    )


NEXT = """\
What to do next
  your own script   docs/tutorial.md: change five lines, then  bftrainer try train.py
  your own cluster  docs/howto/slurm-site.md or lsf-site.md: a daemon on a login node"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeconds:
    """The use of the nodes' time, in node-seconds."""

    ordinary: float
    offered: float  # harvested + starting + pausing + held + unused
    harvested: float
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
    utilisation: float  # U = harvested / offered
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
    of them waited that long: the harvest is never overstated.
    """
    member = node_seconds(spans, Use.TRAINING)
    pausing = min(member, sum(r.pause_s * r.size for r in facts.rescales))
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
        f"networks trained in {split.harvested:.0f} of them: U = {summary.utilisation:.2f}."
    )
    given_back = (
        f"{_nodes(summary.give_backs)} given back before an ordinary job needed them, "
        f"{summary.preemptions} taken (preempted). Ordinary jobs started "
        f"{_median_and_most(summary.job_delays_s)} "
        f"{'after their submission' if summary.is_wait else 'later than without bftrainer'}."
    )
    rescales = (
        f"Trainers grew or shrank {summary.rescales} times without being restarted, and paused "
        f"{_median_and_most(summary.pauses_s)} for it."
    )
    return (idle, given_back, rescales)


def as_text(summary: Summary) -> str:
    """Return the page that is printed at the end."""
    split = summary.node_seconds
    rows = [
        (t.name, t.state, str(t.epochs), f"{t.node_seconds:.0f}", str(t.rescales),
         _percent(t.accuracy), _percent(t.fixed_accuracy))
        for t in summary.trainers
    ]  # fmt: skip
    lost = (
        f"Idle without training: workers starting {split.starting:.0f} node-seconds, pauses "
        f"{split.pausing:.1f}, held {split.held:.0f}, not held {split.unused:.0f}."
    )
    return "\n".join(
        (
            f"What you saw in {summary.live_s:.0f} s",
            *(f"  {sentence}" for sentence in sentences(summary)),
            f"  {lost}",
            "",
            columns(
                ("TRAINER", "STATE", ">EPOCHS", ">NODE-S", ">RESCALES", ">ACCURACY",
                 ">WITHOUT BFTRAINER"),
                rows,
            ),
            "",
            NEXT,
        )
    )  # fmt: skip


def _nodes(number: int) -> str:
    return "1 node was" if number == 1 else f"{number} nodes were"


def _median_and_most(seconds: Sequence[float]) -> str:
    if not seconds:
        return "0.0 s"
    return f"{statistics.median(seconds):.2f} s (at most {max(seconds):.2f} s)"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"
