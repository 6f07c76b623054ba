"""Waits of jobs as ``whatif --harm`` tells them: seconds, their intervals, a sentence. Pure."""

from __future__ import annotations

from bftrainer.lab.harm.findings import PartitionHarm, WaitChange


def share(part: float, whole: float) -> str:
    """Return a part of a whole in hundredths."""
    return f"{part / whole:.0%}" if whole else "0%"


def noticed(harm: PartitionHarm, jobs: str = "Jobs") -> str:
    """Return what a partition's jobs notice, in a sentence or two that begin with ``jobs``."""
    difference, chance = harm.added, harm.by_chance
    if difference.low_s is None or difference.high_s is None:
        return f"Of partition {harm.partition} too few jobs were played to tell what they notice."
    direction = "shorter" if difference.mean_s < 0.0 else "longer"
    wait = f"{seconds(abs(difference.mean_s))} {direction}"
    if not float(f"{difference.mean_s:.2f}"):
        wait = "as long"
    most_s = max(abs(chance.low_s or 0.0), abs(chance.high_s or 0.0))
    verdict = "That is no more than chance does."
    if harm.is_beyond_chance:
        verdict = "That is more than chance does."
    elif abs(difference.mean_s) > most_s:
        verdict = "Zero lies in the interval: it may be none. More hours (--play) tell."
    return (
        f"{jobs} of partition {harm.partition} would wait {wait}"
        f" (95%: {seconds(difference.low_s)} to {seconds(difference.high_s)}), in the mean of"
        f" {seconds(harm.wait_s)}; two runs without bftrainer differ by up to {seconds(most_s)}."
        f" {verdict}"
    )


def seconds(value: float) -> str:
    """Return seconds of a wait: two digits behind the point below ten, none from a hundred on."""
    decimals = 2 if abs(value) < 10.0 else 1
    if abs(value) >= 100.0:
        decimals = 0
    text = f"{value:,.{decimals}f} s"
    is_zero = not text.strip("-0. s")
    return text.removeprefix("-") if is_zero else text


def interval(change: WaitChange) -> str:
    """Return the interval of a change."""
    if change.low_s is None or change.high_s is None:
        return "-"
    return f"{seconds(change.low_s).removesuffix(' s')} to {seconds(change.high_s)}"
