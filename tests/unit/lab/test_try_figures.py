"""The first update that differs, from figures made by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bftrainer.elastic.loop import try_record
from bftrainer.elastic.state.state import State
from bftrainer.lab.try_figures import (
    FirstDifference,
    ModelFacts,
    UpdateFigures,
    UpdateHistory,
    first_difference,
    not_finite_from,
)

MODEL = ModelFacts(names=("weight", "bias"), types=("float32", "float32"))
NORMS, WEIGHTS = (3.0, 4.0), ((6.0, 8.0), (1.0,))  # their norms are 5, 10 and 1


def figures(
    *,
    size: int = 1,
    batch: int = 8,
    leaves: Mapping[str, Any] | None = None,
    norms: Sequence[float] = NORMS,
    weights: Sequence[Sequence[float]] = WEIGHTS,
) -> UpdateFigures:
    return UpdateFigures(
        size=size,
        batch=batch,
        leaves={"optimizer.param_groups[0].lr": 0.1} if leaves is None else leaves,
        norms=np.array(norms),
        sketches=[np.array(x) for x in weights],
    )


def history(
    losses: Sequence[float], changes: Mapping[int, UpdateFigures] | None = None, **more: Any
) -> UpdateHistory:
    numbers = range(1, 1 + len(losses))
    noted = {n: {0: figures()} for n in numbers} | {n: {0: f} for n, f in (changes or {}).items()}
    values = dict(zip(numbers, losses, strict=True))
    return UpdateHistory(**{"losses": values, "figures": noted, "model": MODEL, **more})


FLAT = [2.0] * 12


def first(losses: Sequence[float], changes: Mapping[int, UpdateFigures]) -> FirstDifference | None:
    return first_difference(history(losses, changes), history(FLAT))


def test_differences_of_rounding_are_none() -> None:
    near = figures(norms=(3.0 + 4e-6, 4.0), weights=((6.0, 8.0 + 1e-5), (1.0 - 1e-6,)))
    assert first([2.0 + 4e-6] * 12, dict.fromkeys(range(1, 13), near)) is None


@pytest.mark.parametrize(
    ("changed", "kind", "said"),
    [
        (
            figures(leaves={"optimizer.param_groups[0].lr": 0.05}),
            "options",
            "optimizer.param_groups[0].lr is 0.05, alone 0.1",
        ),
        (figures(leaves={}), "options", "lr is None, alone 0.1"),
        (figures(batch=16, size=2), "batch", "its batch has 16 samples, alone 8"),
        (
            figures(norms=(3.0, 5.0)),  # apart by 1 of 5
            "gradients",
            "the gradients' norm is 5.83095, alone 5 (most in bias: 5, alone 4)",
        ),
        (
            figures(weights=((6.0, 8.0), (1.25,))),
            "parameters",
            "parameter bias differs by 2.5e-01 of its norm before it",
        ),
        (
            figures(weights=((6.0, 9.0), (1.25,))),
            "parameters",
            "parameter bias differs by 2.5e-01 of its norm before it, parameter weight differs",
        ),
    ],
    ids=["rate", "no rate", "batch", "gradient", "parameter", "two parameters"],
)
def test_what_differs_first_is_named(changed: UpdateFigures, kind: str, said: str) -> None:
    found = first([*FLAT[:8], *[9.0] * 4], {7: changed})
    assert found is not None
    assert (found.update, found.deviations[0].kind) == (7, kind)
    assert said in found.text
    assert found.likely


def test_a_loss_that_jumps_is_told_from_one_that_drifts_apart() -> None:
    jumps = first([*FLAT[:4], 2.2, *FLAT[5:]], {})
    assert jumps is not None
    assert (jumps.update, jumps.before, jumps.is_jump) == (5, 0.0, True)
    assert "its loss is 2.2, alone 2" in jumps.text
    assert "random numbers" in jumps.likely
    drifts = first([2.0 * (1 + 1e-6 * 2.0**n) for n in range(12)], {})
    assert drifts is not None
    # 1e-6 * 2**9 is the first above 3.45e-4, the root of 2**-23.
    assert (drifts.update, drifts.is_jump) == (10, False)
    assert "rounding" in drifts.likely


@pytest.mark.parametrize(
    ("loss", "size", "said"),
    [
        (
            6.0,
            3,
            '3 times that alone, so a mean was taken for a sum: declare Run(..., loss="mean")',
        ),
        (2.0 / 3, 3, "1/3 of that alone, so a sum was taken for a mean"),
        (2.5, 3, "not made of each sample's own"),
        (2.5, 1, "random numbers that the script"),
    ],
)
def test_a_loss_tells_what_it_is(loss: float, size: int, said: str) -> None:
    found = first([2.0, loss, *FLAT[2:]], {2: figures(size=size)})
    assert found is not None
    assert said in found.likely


def test_layers_that_are_random_or_look_at_the_batch_are_named() -> None:
    model = ModelFacts(
        names=MODEL.names, types=MODEL.types, random=("drop (Dropout)",), over_batch=("bn (B)", "c")
    )
    apart = [2.5, *FLAT[1:]]
    found = first_difference(
        history(apart, {1: figures(size=2)}, model=model), history(FLAT, model=model)
    )
    assert found is not None
    assert "layer drop (Dropout) draws other random numbers" in found.likely
    assert "layer bn (B) and 1 more normalises by each worker's share" in found.likely


def test_numbers_that_are_nan_in_both_are_equal_and_in_one_are_not() -> None:
    broken = [*FLAT[:5], *[math.nan] * 7]
    lost = dict.fromkeys(
        range(7, 13), figures(norms=(math.nan,) * 2, weights=((math.nan,) * 2, (1.0,)))
    )
    assert first_difference(history(broken, lost), history(broken, lost)) is None
    found = first_difference(history(broken), history(FLAT))
    assert found is not None
    assert (found.update, found.is_jump) == (6, True)
    assert "its loss is nan, alone 2" in found.text
    json.dumps(asdict(found), allow_nan=False)
    assert not_finite_from(dict(enumerate(broken, 1))) == 6
    assert not_finite_from({1: math.inf, 2: 1.0}) is None, "it got over it"
    assert not_finite_from({}) is None


def test_a_parameter_whose_gradient_is_rounding_alone_may_differ() -> None:
    """As a bias before a normalisation: Adam makes whole steps of it."""
    noise = {n: figures(norms=(5.0, 1e-6)) for n in range(1, 13)}
    apart = {n: figures(norms=(5.0, 2e-6), weights=((6.0, 8.0), (1.0 + n,))) for n in range(2, 13)}
    assert first_difference(history(FLAT, {1: noise[1], **apart}), history(FLAT, noise)) is None
    frozen = {n: figures(norms=(5.0, math.nan)) for n in range(1, 13)}
    moved = {**frozen, 3: figures(norms=(5.0, math.nan), weights=((6.0, 8.0), (1.5,)))}
    found = first_difference(history(FLAT, moved), history(FLAT, frozen))
    assert found is not None, "the script changed a frozen one"
    assert found.update == 3


def test_other_samples_come_before_all_they_cause() -> None:
    ours, theirs = {1: [0, 1], 2: [2, 5]}, {1: [1, 0], 2: [2, 3]}
    apart = [2.0, 3.0, *FLAT[2:]]
    found = first_difference(history(apart, samples=ours), history(FLAT, samples=theirs))
    assert found is not None
    assert found.update == 2
    assert "it took sample 5, not 3; its loss is 3, alone 2" in found.text
    assert "Samplers" in found.likely


# ---- what a worker notes -----------------------------------------------------------------


@pytest.fixture
def notes(tmp_path: Path) -> Iterator[try_record.UpdateRecord]:
    """Return what a worker notes of a small model."""
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    record = try_record.UpdateRecord(tmp_path, State(model, optimizer, None, {}), dict)
    yield record
    record._out.close()


def test_sketches_are_as_far_apart_as_their_tensors(notes: try_record.UpdateRecord) -> None:
    drawn = torch.Generator().manual_seed(5)
    one = torch.randn(4999, generator=drawn)
    changed = one.clone()
    changed[4321] += 0.5
    apart = notes._sketch(changed) - notes._sketch(one)
    assert float(apart.norm()) == pytest.approx(0.5, rel=1e-4), "any one element counts in full"
    noise = torch.randn(4999, generator=drawn)
    ratio = float((notes._sketch(one + noise) - notes._sketch(one)).norm() / noise.norm())
    assert 0.5 < ratio < 1.5
    small = torch.tensor([[1.0, -2.0], [3.0, 0.5]])
    assert notes._sketch(small).tolist() == [1.0, -2.0, 3.0, 0.5]


def test_notes_end_where_they_would_be_too_many(
    tmp_path: Path, notes: try_record.UpdateRecord
) -> None:
    notes._left_bytes = 2000
    where = {"rank": 0, "size": 1, "step": 0}
    for _ in range(100):
        notes.note(where, 8)
    [path] = tmp_path.iterdir()
    assert 1500 < path.stat().st_size < 2500
