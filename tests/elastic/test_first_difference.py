"""Two real workers beside the same script alone: the first update that differs, and what in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bftrainer.lab import try_records
from bftrainer.lab.try_figures import (
    FirstDifference,
    UpdateHistory,
    first_difference,
    not_finite_from,
    read_figures,
)
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess
from tests.elastic.test_members_alike import KINDS

ALIKE, OPAQUE = SCRIPTS / "train_alike.py", SCRIPTS / "train_opaque.py"


def trained(
    directory: Path, template: TemplateProcess, script: Path, argument: str, count: int
) -> UpdateHistory:
    """Train with so many workers; return what they noted."""
    notes = directory / "notes"
    notes.mkdir(parents=True)
    variables = {
        "BFT_TEST_DIR": str(directory),
        "OMP_NUM_THREADS": "1",
        "BFT_RECORD_SAMPLES": str(notes),
        "BFT_RECORD_UPDATES": "1",
        "BFT_NAN_UPDATES": "0",
    }
    with Controller(directory, template) as c:
        c.begin(script, [argument], count=count, environment=tuple(variables.items()))
        c.finished()
    records = try_records.Records(notes)
    records.look()
    made_by = try_records.makers(records.processes)
    figures, model = read_figures(notes, made_by)
    return UpdateHistory(
        losses=try_records.losses(records.processes),
        samples=try_records.samples(records.processes),
        figures=figures,
        model=model,
    )


def compared(
    directory: Path, template: TemplateProcess, script: Path, argument: str
) -> tuple[FirstDifference | None, UpdateHistory, UpdateHistory]:
    """Compare two workers with one."""
    elastic = trained(directory / "elastic", template, script, argument, 2)
    alone = trained(directory / "alone", template, script, argument, 1)
    return first_difference(elastic, alone), elastic, alone


# Twelve updates an epoch, three epochs. From update 16 on the second worker does otherwise.
ODD: dict[str, Any] = {"since": 15, "equal": "off"}


@pytest.mark.parametrize(
    ("settings", "update", "kind", "said", "likely"),
    [
        pytest.param(
            {**ODD, "mutation": "branch"},
            16,
            "options",
            "optimizer.param_groups[0].weight_decay is 0.02 on rank 1, alone 0",
            "same-on-all-workers.md",
            marks=pytest.mark.long,
        ),
        (
            {**ODD, "mutation": "schedule", "schedule": "step"},
            16,
            "options",
            # It steps every fifth time, by 0.8, the second worker once less: 0.05 * 0.8**2, 0.8**3.
            "optimizer.param_groups[0].lr is 0.032 on rank 1, alone 0.0256; scheduler",
            "run.step_count",
        ),
        pytest.param(
            {**ODD, "mutation": "seed"},
            16,
            "parameters",
            "parameter 0.weight on rank 1 differs by ",
            "beside run.step()",
            marks=pytest.mark.long,
        ),
        pytest.param(
            {"network": "dropout"},
            1,
            "loss",
            "its loss is",
            "layer 1 (Dropout) draws other random",
            marks=pytest.mark.long,
        ),
        pytest.param(
            {"network": "norm"},
            1,
            "loss",
            "its loss is",
            "layer 1 (BatchNorm1d) normalises by each",
            marks=pytest.mark.long,
        ),
    ],
    ids=["option", "schedule", "parameters", "dropout", "batch normalisation"],
)
def test_the_first_update_that_differs_is_named_with_what_differs_and_why(
    tmp_path: Path,
    template: TemplateProcess,
    settings: dict[str, Any],
    update: int,
    kind: str,
    said: str,
    likely: str,
) -> None:
    first, elastic, alone = compared(tmp_path, template, ALIKE, json.dumps(settings))
    assert len(elastic.losses) == len(alone.losses) == 36
    assert first is not None
    assert (first.update, first.size, first.is_jump) == (update, 2, True)
    assert first.deviations[0].kind == kind, first.text
    assert f"The first difference is in update {update}, of 2 workers: {said}" in first.text
    assert likely in first.likely


def test_a_sum_taken_for_a_mean_is_told_by_its_half(
    tmp_path: Path, template: TemplateProcess
) -> None:
    """The loss over eight samples is the sum of both shares', and their mean is half of it."""
    first, elastic, alone = compared(tmp_path, template, OPAQUE, "0")
    assert first is not None
    assert (first.update, first.deviations[0].kind) == (1, "loss")
    assert elastic.losses[1] == pytest.approx(alone.losses[1] / 2)
    assert "with 2 workers it is 1/2 of that alone, so a sum was taken for a mean" in first.likely
    assert 'loss="sum"' in first.likely


@pytest.mark.long
def test_losses_that_are_nan_in_both_are_told_from_their_first(
    tmp_path: Path, template: TemplateProcess
) -> None:
    alone = trained(tmp_path / "alone", template, OPAQUE, "12", 1)
    again = trained(tmp_path / "again", template, OPAQUE, "12", 1)
    assert not_finite_from(alone.losses) == not_finite_from(again.losses) == 12
    assert first_difference(again, alone) is None


EQUAL = [k for k, (script, _) in KINDS.items() if script.get("network") not in ("dropout", "norm")]


@pytest.mark.parametrize(
    "kind", [k if k == "mixed step" else pytest.param(k, marks=pytest.mark.long) for k in EQUAL]
)
def test_workers_that_do_as_one_alone_differ_in_nothing(
    tmp_path: Path, template: TemplateProcess, kind: str
) -> None:
    settings, _ = KINDS[kind]
    first, elastic, alone = compared(tmp_path, template, ALIKE, json.dumps(settings))
    assert first is None, f"{first}"
    assert elastic.figures.keys() == alone.figures.keys() == set(range(1, 37))
