"""Waits of jobs as ``whatif --harm`` tells them: seconds, their intervals, a sentence. Pure."""

from __future__ import annotations

from bftrainer.lab.harm.findings import PartitionHarm, WaitChange


def share(part: float, whole: float) -> str:
    """Return a part of a whole in hundredths."""
    return f"{part / whole:.0%}" if whole else "0%"


def noticed(harm: PartitionHarm, jobs: str = "Jobs") -> str:
    """Return what a partition's jobs notice, in a sentence or two that begin with ``jobs``."""
    added, chance = harm.added, harm.by_chance
    if added.low_s is None or added.high_s is None:
        return f"Of partition {harm.partition} too few jobs were played to tell what they notice."
    direction = "shorter" if added.mean_s < 0.0 else "longer"
    changed = f"{seconds(abs(added.mean_s))} {direction}"
    if not float(f"{added.mean_s:.2f}"):
        changed = "as long"
    most_s = max(abs(chance.low_s or 0.0), abs(chance.high_s or 0.0))
    verdict = "That is no more than chance does."
    if harm.is_beyond_chance:
        verdict = "That is more than chance does."
    elif abs(added.mean_s) > most_s:
        verdict = "Zero lies in the interval: it may be none. More hours (--play) tell."
    return (
        f"{jobs} of partition {harm.partition} would wait {changed}"
        f" (95%: {seconds(added.low_s)} to {seconds(added.high_s)}), in the mean of"
        f" {seconds(harm.wait_s)}; two runs without bftrainer differ by up to {seconds(most_s)}."
        f" {verdict}"
    )


def seconds(value: float) -> str:
    """Return seconds of a wait: two digits behind the point below ten, none from a hundred on."""
    decimals = 2 if abs(value) < 10.0 else 1
    if abs(value) >= 100.0:
        decimals = 0
    text = f"{value:,.{decimals}f} s"
    return text.removeprefix("-") if text.strip("-0. s") == "" else text


def interval(change: WaitChange) -> str:
    """Return the interval of a change."""
    if change.low_s is None or change.high_s is None:
        return "-"
    return f"{seconds(change.low_s).removesuffix(' s')} to {seconds(change.high_s)}"
