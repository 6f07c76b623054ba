"""Sections 2, 3.6 and 5.1: what the paper counts in two weeks of Summit, and all trials."""

from __future__ import annotations

from bftrainer.lab.papers.bftrainer.diverse import hours_to_the_end
from bftrainer.lab.papers.bftrainer.machine import MachineCount
from bftrainer.lab.papers.bftrainer.replays import PaperReplay
from bftrainer.lab.papers.bftrainer.scenario import NO_TWO_WEEKS, Sweeps
from bftrainer.lab.papers.findings import Finding, percent
from bftrainer.lab.papers.paper import Steps


def two_weeks(finding: Finding, _: Sweeps) -> Steps:
    """Events, node-time and fragments of all nodes."""
    machine = yield MachineCount()
    if machine is None:
        finding.skip(NO_TWO_WEEKS)
        return
    numbers = {"events": machine.events, "joins": machine.joins, "leaves": machine.leaves}
    for key, number in numbers.items():
        finding.line(key, number)
    for key, number in numbers.items():
        finding.line(f"{key} per h", machine.per_hour(number))
    share = percent(machine.n_eq / machine.nodes)
    # Whole node-hours and nodes are printed.
    finding.line("node-hours", machine.node_h)
    for key in ("nodes", "nodes, rounded", "two months: nodes"):
        finding.line(key, machine.n_eq)
    for key in ("share", "share, rounded", "observation 1", "two months: share"):
        finding.line(key, share)
    finding.line("short", percent(machine.short_count))
    finding.line("short, time", percent(machine.short_time))
    finding.line("two months: increases", machine.per_hour(machine.joins))
    finding.line("two months: decreases", machine.per_hour(machine.leaves))


def trials(finding: Finding, extent: Sweeps) -> Steps:
    """Log time until all trials of ShuffleNet are complete."""
    if not extent.is_to_the_end:
        yield ()
        finding.skip("more hours than a shortened run plays")
        return
    record = yield PaperReplay(is_to_the_end=True)
    if record is None:
        finding.skip(NO_TWO_WEEKS)
        return
    finding.line("all", hours_to_the_end(record))
