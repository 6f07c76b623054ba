"""The stages of a study: how many trials train how many units each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Trials between two comparisons."""

    trials: int
    units: int  # epochs or samples, of one trial in this stage


Experiment = tuple[Stage, ...]


def sha_stages(trials: int, least: int, most: int, eta: int) -> Experiment:
    """Return SHA(n, r, R, eta) as the paper has it (section 3.1, Fig. 6).

    Stage k adds least * eta**k units to each of floor(trials / eta**k) trials; the last stage adds
    what is missing to ``most``. (``ladder`` is the usual rule, in which these are the sums.)

    Raises:
        ValueError: an argument is out of its range.
    """
    if trials < 1 or least < 1 or most < least or eta < 2:
        raise ValueError("trials >= 1, 1 <= least <= most and eta >= 2 are required")
    stages: list[Stage] = []
    left, step, done = trials, least, 0
    while left >= 1 and done < most:
        is_last = left // eta < 1
        units = most - done if is_last else min(step, most - done)
        stages.append(Stage(trials=left, units=units))
        left, step, done = left // eta, step * eta, done + units
    return tuple(stages)
