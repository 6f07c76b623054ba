"""What must hold after random faults, judged from what was recorded. Pure.

Each rule says what broke it, in one sentence each; nothing is said of a rule that held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from bftrainer.lab.try_records import EpochUse, Line, key_of, makers

FINISHED: Final = "finished"
MOST_OFF: Final = 1e-12  # relative, of the largest parameter: rounding, but no sample
STOP_S: Final = 65.0  # a minute beyond the policy's agent_timeout_s
MOST_NAMED: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """The nodes that trainers could have from a time on."""

    at_s: float  # since the epoch
    nodes: int  # with power and network, that Slurm calls usable and no ordinary job has
    has_daemon: bool = True  # a daemon ran, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What one trainer did."""

    trainer_id: str
    state: str  # at the end
    n_epochs: int  # that it was to train
    expected: tuple[float, ...]  # parameters of an undisturbed run
    parameters: Mapping[str, tuple[float, ...]]  # at the end, by the worker that wrote them
    epochs: tuple[EpochUse, ...]  # of the updates in the state that is kept
    updates_s: tuple[float, ...]  # of these, since the epoch
    ended_s: float  # when it had ended, or was no longer watched


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotJob:
    """A job of Slurm's that is a pilot."""

    job_id: str
    name: str
    node: str
    is_live: bool  # pending or running


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What there was to see of one run."""

    stories: tuple[Story, ...]
    free: tuple[Free, ...]
    jobs: tuple[PilotJob, ...]  # all that Slurm has known, when all faults were over
    pilots: Mapping[str, str]  # the daemon's at that time, by node
    left_jobs: tuple[str, ...]  # pilots' jobs after the daemon's end
    orphans: tuple[str, ...]  # processes after it
    verify: str  # what ``journal verify`` found; "": nothing
    replay: str  # what ``replay`` found


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that must hold."""

    name: str
    words: str


END: Final = Rule(name="end", words="trainers that do not finish")
PARAMETERS: Final = Rule(name="parameters", words="parameters unlike those of an undisturbed run")
SAMPLES: Final = Rule(name="samples", words="epochs with a sample not used once")
PILOTS: Final = Rule(name="pilots", words="pilots lost or doubled")
ORPHANS: Final = Rule(name="orphans", words="processes and jobs left at the end")
VERIFY: Final = Rule(name="verify", words="journals that are damaged")
REPLAY: Final = Rule(name="replay", words="journals that repeat otherwise")
STOP: Final = Rule(name="stop", words=f"stops of more than {STOP_S:g} s")
RULES: Final = (END, PARAMETERS, SAMPLES, PILOTS, ORPHANS, VERIFY, REPLAY, STOP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """A rule that did not hold, and why."""

    rule: str  # its name
    why: str


def judge(recorded: Recorded) -> tuple[Breach, ...]:
    """Return what did not hold."""
    breaches = [
        *((END, why) for why in _ends(recorded)),
        *((PARAMETERS, why) for story in recorded.stories for why in _parameters(story)),
        *((SAMPLES, why) for story in recorded.stories for why in _samples(story)),
        *((PILOTS, why) for why in pilot_breaches(recorded.jobs, recorded.pilots)),
        *((ORPHANS, why) for why in (*recorded.left_jobs, *recorded.orphans)),
        *((VERIFY, why) for why in (recorded.verify,) if why),
        *((REPLAY, why) for why in (recorded.replay,) if why),
        *((STOP, why) for why in _stops(recorded)),
    ]
    return tuple(Breach(rule=rule.name, why=why) for rule, why in breaches)


def _ends(recorded: Recorded) -> Iterator[str]:
    for story in recorded.stories:
        if story.state != FINISHED:
            yield f"{story.trainer_id} is {story.state or 'unknown'}"


def _parameters(story: Story) -> Iterator[str]:
    if not story.parameters:
        yield f"{story.trainer_id} has written none"
    for worker, parameters in story.parameters.items():
        off = distance(parameters, story.expected)
        if not off <= MOST_OFF:  # neither is NaN
            yield f"{story.trainer_id}, of {worker}: {off:.2g} off"


def distance(found: Sequence[float], expected: Sequence[float]) -> float:
    """Return the largest difference, as a part of the largest expected value."""
    if len(found) != len(expected):
        return float("inf")
    largest = max(abs(x) for x in expected)
    off = [abs(x - y) / largest for x, y in zip(found, expected, strict=True)]
    return max(off) if all(x == x for x in off) else float("nan")  # noqa: PLR0124 - NaN


def _samples(story: Story) -> Iterator[str]:
    uses = {use.epoch: use for use in story.epochs}
    last = max(uses, default=-1)
    n_epochs = story.n_epochs if story.state == FINISHED else last
    missing = [epoch for epoch in range(n_epochs) if epoch not in uses]
    if missing:
        yield f"{story.trainer_id}: no samples of epochs {missing[:MOST_NAMED]}"
    for epoch, use in uses.items():
        is_cut_short = use.used != use.of and epoch < n_epochs
        if is_cut_short or not use.is_once:
            yield (
                f"{story.trainer_id}, epoch {epoch}: {use.used} of {use.of} used, {use.missed}"
                f" missed, {use.repeated} repeated, twice: {list(use.twice)}"
            )


def pilot_breaches(jobs: Sequence[PilotJob], pilots: Mapping[str, str]) -> list[str]:
    """Say which pilots are lost or doubled, by Slurm's jobs and by the daemon's pilots of nodes."""
    return [*_doubled(jobs), *_lost(jobs, pilots)]


def _doubled(jobs: Sequence[PilotJob]) -> Iterator[str]:
    times = Counter(job.name for job in jobs)
    for name, count in times.items():
        if count > 1:
            numbers = ", ".join(job.job_id for job in jobs if job.name == name)
            yield f"doubled: {name} is {count} jobs, {numbers}"
    live = [job for job in jobs if job.is_live]
    for node, count in Counter(job.node for job in live if job.node).items():
        if count > 1:
            yield f"doubled: {count} pilots run on {node}"


def _lost(jobs: Sequence[PilotJob], pilots: Mapping[str, str]) -> Iterator[str]:
    live = [job for job in jobs if job.is_live]
    of_daemon = set(pilots.values())
    for job in live:
        if pilot_of(job.name) not in of_daemon:
            where = f"job {job.job_id}, {job.name}, on {job.node or 'no node'}"
            yield f"lost: the daemon does not have {where}"
    of_jobs = {pilot_of(job.name) for job in live}
    for node, pilot in pilots.items():
        if pilot not in of_jobs:
            yield f"lost: the daemon's {pilot} on {node} has no job"


def pilot_of(job_name: str) -> str:
    """Return the pilot's id of its job's name."""
    return job_name.partition(".")[0]


def _stops(recorded: Recorded) -> Iterator[str]:
    n_trainers = len(recorded.stories)  # each trains on one node at least
    for story in recorded.stories:
        stop_s, at_s = longest_stop(story.updates_s, story.ended_s, recorded.free, n_trainers)
        if stop_s > STOP_S:
            alone_s = without_daemon_s(at_s, at_s + stop_s, recorded.free)
            yield (
                f"{story.trainer_id}: {stop_s:.1f} s without an update, from {at_s:.1f}; no daemon"
                f" ran for {alone_s:.1f} s of it"
            )


def without_daemon_s(begin_s: float, end_s: float, free: Sequence[Free]) -> float:
    """Return for how much of a time no daemon ran; it counts, but its user had to start one."""
    return sum(
        max(0.0, min(end_s, later.at_s) - max(begin_s, look.at_s))
        for look, later in pairwise(free)
        if not look.has_daemon
    )


def longest_stop(
    updates_s: Sequence[float], ended_s: float, free: Sequence[Free], needed: int
) -> tuple[float, float]:
    """Return the longest time between two updates, and when it began.

    Time in which fewer nodes were free than are needed does not count.
    """
    times = [*sorted(updates_s), ended_s]
    scarce = _scarce(free, needed)
    stops = [(0.0, ended_s)]
    for begin_s, end_s in pairwise(times):
        excused_s = sum(
            max(0.0, min(end_s, last_s) - max(begin_s, first_s)) for first_s, last_s in scarce
        )
        stops.append((end_s - begin_s - excused_s, begin_s))
    return max(stops)


def _scarce(free: Sequence[Free], needed: int) -> list[tuple[float, float]]:
    """Return the times in which too few nodes were free."""
    times = []
    for look, later in pairwise([*free, *free[-1:]]):
        if look.nodes < needed:
            times.append((look.at_s, later.at_s))
    return times


def kept_updates_s(processes: Mapping[str, Sequence[Line]]) -> tuple[float, ...]:
    """Return when the updates were made that the last state of a run contains."""
    made_by = makers(processes)
    first: dict[int, float] = {}
    for lines in processes.values():
        for line in lines:
            if line["kind"] != "committed":
                continue
            step = line["step"]
            if made_by.get(step) == key_of(line):
                first[step] = min(line["at_s"], first.get(step, line["at_s"]))
    return tuple(sorted(first.values()))
