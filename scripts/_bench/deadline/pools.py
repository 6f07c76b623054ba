"""What the model is told of, and what it is asked about: parts of traces."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from bftrainer.batch.traces import read_trace
from bftrainer.batch.traces.fragments import HOUR_S, Fragments
from bftrainer.batch.traces.generator import GeneratorParameters, generate

SUMMIT: Final = "summit-2021-02-10_17-idle-fragments.npz"
FIT_H: Final = 72.0
LIKE_SUMMIT: Final = GeneratorParameters(n_nodes=1024, hours=188.0, seed=11)
BURSTS: Final = replace(
    LIKE_SUMMIT,
    seed=12,
    holes_per_hour=12.0,
    hole_gap_sigma=2.0,
    hole_median_nodes=12.0,
    hole_sigma=1.0,
    load_sigma=0.5,
    length_scale_s=2400.0,
    length_shape=0.8,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A history and what came later, or elsewhere."""

    name: str
    fit: Fragments
    test: Fragments


def pools(data: str | None, *, is_quick: bool) -> list[Pool]:
    """Return the pools; those of Summit if its trace is in the folder ``data``."""
    made = {"generated": LIKE_SUMMIT, "generated bursts": BURSTS}
    found = [_later(name, generate(parameters)) for name, parameters in made.items()]
    path = Path(data or ".") / SUMMIT
    if not path.is_file():
        return found
    summit = read_trace(path)
    some, others = _halves(summit)
    real = [
        _later("later days", summit),
        Pool(name="later days, other nodes", fit=_first(some), test=_rest(others)),
        Pool(name="same days, other nodes", fit=_first(some), test=_first(others)),
    ]
    return [*real[: 2 if is_quick else 3], *found]


def _later(name: str, trace: Fragments) -> Pool:
    return Pool(name=name, fit=_first(trace), test=_rest(trace))


def _first(trace: Fragments) -> Fragments:
    return trace.restrict(hours=FIT_H)


def _rest(trace: Fragments) -> Fragments:
    hours = trace.duration_s / HOUR_S - FIT_H
    return trace.restrict(start_s=trace.span_s[0] + FIT_H * HOUR_S, hours=hours)


def _halves(trace: Fragments) -> tuple[Fragments, Fragments]:
    """Return two random halves of the nodes."""
    chance = np.random.Generator(np.random.PCG64(1))
    is_first = chance.permutation(len(trace.names)) < len(trace.names) // 2
    keep = is_first[trace.node]
    return trace.where(keep), trace.where(~keep)
