"""Two trainings side by side: what is the same, what differs, what cannot be compared."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bftrainer.elastic.checkpoints import checkpoint
from bftrainer.ground import files
from bftrainer.lab.try_comparison import (
    Comparison,
    TrainingOutcome,
    comparison_text,
    loss_difference,
    outcome,
    parameter_difference,
)
from bftrainer.lab.try_figures import Deviation, FirstDifference

ONE = TrainingOutcome(seconds=31.4, updates=250, samples=4000, loss=0.25, metric=None)


def saved(directory: Path, *parameters: torch.Tensor, layout: int = 1) -> Path:
    """Write a checkpoint of these parameters, a buffer and an optimizer's moment."""
    directory.mkdir()
    rest = {"trained": [True] * len(parameters), "moment": torch.ones(3)}
    structure, tensors = checkpoint.encode(rest)
    header = {"layout": layout, "counters": {"step": 7, "samples": 70}, "structure": structure}
    name = directory / "step-000000000007-0.bft"
    checkpoint.write(name, header, [*parameters, torch.full((2,), float(layout)), *tensors])
    return directory


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_largest_difference_is_found_in_any_type(tmp_path: Path, dtype: torch.dtype) -> None:
    zeros, values = torch.zeros(2, dtype=dtype), torch.tensor([[1.0, -4.0], [0.5, 2.0]]).to(dtype)
    empty = torch.empty(0, dtype=dtype)
    one = saved(tmp_path / "one", zeros, empty, values)
    changed = values.clone()
    changed[0, 1] = -3.0
    other = saved(tmp_path / "other", zeros, empty, changed)
    assert parameter_difference(one, one) == 0.0
    assert parameter_difference(other, one) == 0.25
    changed[1, 1] = math.nan
    broken = saved(tmp_path / "nan", zeros, empty, changed)
    assert parameter_difference(broken, one) == parameter_difference(one, broken) == math.inf
    assert math.isnan(parameter_difference(broken, broken) or 0.0)
    assert outcome(one, 1.0, {3: 2.0, 7: 1.5}, 0.5) == TrainingOutcome(
        seconds=1.0, updates=7, samples=70, loss=1.5, metric=0.5
    )


def test_a_sharded_model_is_compared_as_a_whole(tmp_path: Path) -> None:
    """Rows 0 and 1 in one part, row 2 in the other, a parameter that is whole in both."""
    values, whole = torch.arange(6.0).view(3, 2), torch.ones(2)
    one = saved(tmp_path / "one", values, whole)
    (path,) = (other := saved(tmp_path / "other", values, whole)).iterdir()
    header, tensors = checkpoint.read(path)
    for part, rows in enumerate([(0, 2), (2, 3)]):
        box = [[3, 2], [rows[1] - rows[0], 2], [rows[0], 0]]
        told = {**header, "part": part, "parts": 2, "boxes": [box, *[None] * (len(tensors) - 1)]}
        own = [values[slice(*rows)] + (part == 1), *tensors[1:]]
        checkpoint.write(files.part_of(path, part), told, own)
    assert parameter_difference(one, one) == 0.0
    assert parameter_difference(other, one) == pytest.approx(1 / 5)
    assert parameter_difference(one, other) == pytest.approx(1 / 6)


def test_other_models_and_nothing_saved_cannot_be_compared(tmp_path: Path) -> None:
    one = saved(tmp_path / "one", torch.ones(2))
    assert parameter_difference(one, saved(tmp_path / "other", torch.ones(2), layout=2)) is None
    assert parameter_difference(one, tmp_path) is None
    integers = saved(tmp_path / "integers", torch.ones(2, dtype=torch.int32))
    assert parameter_difference(integers, integers) is None


def test_losses_are_compared_where_both_have_them() -> None:
    assert loss_difference({1: 4.0, 2: 1.5, 3: 9.0}, {1: 4.0, 2: 1.0}) == 0.125
    assert loss_difference({}, {1: 4.0}) is None
    assert loss_difference({1: math.nan}, {1: 4.0}) == math.inf
    assert loss_difference({1: 4.0}, {1: math.inf}) == math.inf
    assert loss_difference({1: 4.0, 2: math.nan}, {1: 3.0, 2: math.nan}) == pytest.approx(1 / 3)
    assert loss_difference({1: math.nan}, {1: math.nan}) is None


@pytest.mark.parametrize(
    ("parameters", "losses", "said"),
    [
        (1e-7, 2e-8, "nothing but the order of sums: parameters differ by 1.0e-07"),
        (0.5, 0.1, "changed something: parameters differ by 5.0e-01"),
        (1e-7, 0.1, "changed something"),
        (math.inf, None, "changed something"),
        (math.nan, None, "final parameters of both runs are NaN or infinite: the script itself"),
        (None, None, "cannot be compared"),
    ],
)
def test_the_page_says_what_it_means(
    parameters: float | None, losses: float | None, said: str
) -> None:
    found = Comparison(elastic=ONE, alone=ONE, parameters=parameters, losses=losses)
    text = "\n".join(comparison_text(found))
    assert said in text
    assert "250" in text
    assert "reported" not in text


FIRST = FirstDifference(
    update=16,
    size=3,
    deviations=(Deviation(kind="options", text="lr is 0.125 on rank 1, alone 0.25"),),
    before=2e-8,
    likely="a schedule.",
)


def told(**changes: Any) -> str:
    same = {"parameters": 1e-7, "losses": 2e-8}
    return " ".join(comparison_text(Comparison(elastic=ONE, alone=ONE, **(same | changes))))


def test_the_page_names_the_first_update_that_differs() -> None:
    text = told(parameters=0.5, first=FIRST)
    assert "changed something: parameters differ by 5.0e-01" in text
    assert "The first difference is in update 16, of 3 workers: lr is 0.125 on rank 1" in text
    assert "Likely: a schedule." in text
    assert "changed something" in told(first=FIRST), "small at the end, but no rounding"
    assert "nothing but the order" in told(first=replace(FIRST, is_jump=False))
    assert "No update stands out" in told(parameters=0.5)


@pytest.mark.parametrize(
    ("changes", "said", "unsaid"),
    [
        (
            {"nan_elastic": 12, "nan_alone": 12},
            (
                "The losses of both runs are NaN or infinite, from update 12 on: the script itself"
                " diverges (lower the learning rate, clip gradients). Until then elastic training"
                " changed nothing but the order of sums."
            ),
            "inf of",
        ),
        (
            {"nan_elastic": 20, "nan_alone": 22, "first": FIRST},
            "from update 20 on in the elastic run, from update 22 on alone",
            "Until then",
        ),
        (
            {"nan_elastic": 20, "first": FIRST},
            (
                "loss of the elastic run is NaN or infinite from update 20 on, not the run alone's."
                "     The first difference is in update 16"
            ),
            "nothing",
        ),
        ({"nan_alone": 20}, "loss of the run alone is NaN or infinite from update 20", "inf of"),
    ],
)
def test_losses_that_are_no_numbers_are_told_by_their_first_update(
    changes: dict[str, Any], said: str, unsaid: str
) -> None:
    text = told(parameters=math.nan, losses=math.inf, **changes)
    assert said in text
    assert unsaid not in text
