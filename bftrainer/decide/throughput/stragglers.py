"""Finds nodes of a trainer that are persistently slower than the others, from workers' reports.

Source: Or, Zhang and Freedman, "Resource Elasticity in Distributed Deep Learning" (MLSys
2020), section 5, algorithm 1: a moving average (EWMA) of each worker's throughput as a
fraction of the median; below a threshold the worker is a straggler. Here the median is that of the
*other* workers, so that two can be told apart, too, and a verdict is revoked only some way above
the threshold. A report covers the last steps of a worker (their median), so one report counts as
one step does there. Pure: called by ``fleet.trainers.speeds`` and by a reproduction of the paper.

A worker reports its own part of a step, in seconds, and its share of the batch. Shares differ by
rounding, and part of a step costs the same however small the share is: a worker counts as slow only
if it is slower both by the step and by the sample.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

ALPHA = 0.1  # weight of the newest report, as in the paper
SETTLE_REPORTS = 2  # of a worker in a new generation, to warm caches and buffers
FEWEST_REPORTS = 3  # before a verdict
CLEAR_REPORTS = 12  # before a node that was slow elsewhere counts as not slow
CLEAR_ABOVE = 0.05  # a verdict ends this far above the threshold
TOLD_STEP = 0.05  # smallest change of the average that is published
LONGEST_S, MOST_SAMPLES = 1e6, 10**12  # of a step; shortest: 1 / LONGEST_S; else ignored


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """A worker's last report in this generation."""

    own_s: float  # its part of a step
    share: int  # samples in that step
    reports: int = 1  # in this generation


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSlowness:
    """The state of a node in this trainer, over its generations."""

    fraction: float = 1.0  # average throughput relative to the others'
    reports: int = 0
    is_slow: bool = False
    told: float = 1.0  # fraction published to decisions; 1: not slow


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """The workers of one trainer, by node, for comparison."""

    generation: int = 0
    latest: Mapping[str, Own] = field(default_factory=dict)
    heard: frozenset[str] = frozenset()  # nodes that reported since the last comparison
    standings: Mapping[str, NodeSlowness] = field(default_factory=dict)

    def slow(self) -> dict[str, float]:
        """Return the persistently slow nodes, with their published fractions."""
        return {n: s.told for n, s in self.standings.items() if s.is_slow}

    def is_uneven(self, threshold: float) -> bool:
        """Return whether some node may be slow: the trainer's pace is not typical of its size."""
        doubt = _doubt(threshold)
        return any(s.is_slow or s.fraction < doubt for s in self.standings.values())

    def quick(self, threshold: float) -> set[str]:
        """Return nodes measured for a while and well above the threshold."""
        doubt, quick_nodes = _doubt(threshold), set[str]()
        for node, standing in self.standings.items():
            is_measured = standing.reports >= CLEAR_REPORTS
            if is_measured and not standing.is_slow and standing.fraction >= doubt:
                quick_nodes.add(node)
        return quick_nodes


def _doubt(threshold: float) -> float:
    return 0.5 * (1.0 + threshold)


def entered(workers: Field, generation: int, nodes: Collection[str]) -> Field:
    """Begin a generation: members keep their standing, steps are timed anew."""
    standings = {n: s for n, s in workers.standings.items() if n in nodes}
    return Field(generation=generation, standings=standings)


def record_report(
    workers: Field, node: str, *, generation: int, own_s: float, share: int, threshold: float
) -> Field:
    """Process a report of the worker on ``node``; its second one ends a round of comparison.

    Args:
        workers: state so far.
        node: of the worker.
        generation: of the report; others than the current one are ignored.
        own_s: its own part of a step, s; 0: not measured.
        share: its samples in that step.
        threshold: fraction below which it is slow, in (0, 1).
    """
    if generation != workers.generation:
        return workers
    if not (1.0 / LONGEST_S <= own_s <= LONGEST_S and 1 <= share <= MOST_SAMPLES):
        return workers
    if node in workers.heard:
        workers = _compared(workers, threshold)
    before = workers.latest.get(node)
    report = Own(own_s=own_s, share=share, reports=1 if before is None else before.reports + 1)
    return replace(workers, latest={**workers.latest, node: report}, heard=workers.heard | {node})


def _compared(workers: Field, threshold: float) -> Field:
    """Judge all nodes that reported in this round."""
    now = fractions_of({n: o for n, o in workers.latest.items() if o.reports > SETTLE_REPORTS})
    standings = dict(workers.standings)
    for node in workers.heard & now.keys():
        standings[node] = _judged(standings.get(node, NodeSlowness()), now[node], threshold)
    return replace(workers, heard=frozenset(), standings=standings)


def fractions_of(latest: Mapping[str, Own]) -> dict[str, float]:
    """Each worker's throughput relative to the median of the others; empty for a single one."""
    if len(latest) < 2:
        return {}
    by_step: list[float] = []
    by_sample: list[float] = []
    for report in latest.values():
        by_step.append(1.0 / report.own_s)
        by_sample.append(report.share / report.own_s)
    by_step.sort()
    by_sample.sort()
    fractions: dict[str, float] = {}
    for node, report in latest.items():
        steps_per_s, samples_per_s = 1.0 / report.own_s, report.share / report.own_s
        fractions[node] = max(
            steps_per_s / _median_without(by_step, steps_per_s),
            samples_per_s / _median_without(by_sample, samples_per_s),
        )
    return fractions


def _median_without(ordered: list[float], value: float) -> float:
    """The median of the other values; at least two, ``value`` among them."""
    at, n_others = bisect_left(ordered, value), len(ordered) - 1

    def other(i: int) -> float:
        if i >= at:
            return ordered[i + 1]
        return ordered[i]

    return 0.5 * (other((n_others - 1) // 2) + other(n_others // 2))


def _judged(standing: NodeSlowness, now: float, threshold: float) -> NodeSlowness:
    # Being faster than the others is capped: no credit against being slow later.
    capped = min(now, 1.0 / threshold)
    average = ALPHA * capped + (1.0 - ALPHA) * standing.fraction
    reports = standing.reports + 1
    limit = threshold
    if standing.is_slow:
        limit = threshold + CLEAR_ABOVE
    is_slow = average < limit and reports >= FEWEST_REPORTS
    published = standing.told
    if not is_slow:
        published = 1.0
    elif not standing.is_slow or abs(average - published) > TOLD_STEP:
        published = min(round(average, 2), threshold)
    return NodeSlowness(fraction=average, reports=reports, is_slow=is_slow, told=published)
