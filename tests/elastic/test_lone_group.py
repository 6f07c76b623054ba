"""What synchronises over torch's default process group, which elastic workers do not share."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
import torch.distributed as dist
from torch import nn

from bftrainer.batch import process
from bftrainer.elastic.network import lone_group
from bftrainer.elastic.network.lone_group import COLLECTIVES, refuse_layers
from bftrainer.ground.errors import ElasticError
from bftrainer.ground.protocol import Remarked
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess

GATHERING = SCRIPTS / "gathering.py"
PLACE = r"gathering\.py:\d+"


class SyncBatchNormOfALibrary(nn.BatchNorm1d):
    """As apex and others have one."""


@pytest.mark.parametrize("kind", [nn.SyncBatchNorm, SyncBatchNormOfALibrary])
def test_a_layer_that_would_not_synchronise_is_refused_by_name(kind: type[nn.Module]) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(kind(2)))
    with pytest.raises(ElasticError, match=rf"'1\.0' is a {kind.__name__}") as refused:
        refuse_layers(model)
    assert refused.value.code == "BFT-1401"
    assert "GroupNorm" in refused.value.next_step
    refuse_layers(nn.Sequential(nn.BatchNorm1d(2), nn.GroupNorm(1, 2)))


def test_every_collective_of_torch_is_watched() -> None:
    """But those that move numbers from one member to others that ask for them."""
    stems = r"(all_|broadcast|gather|reduce)"
    theirs = {n for n in dir(dist) if re.match(stems, n) and callable(getattr(dist, n))}
    assert theirs == {name for name in COLLECTIVES if hasattr(dist, name)}


def test_afterwards_torch_is_as_it_was() -> None:
    before = {name: getattr(dist, name) for name in (*COLLECTIVES, "is_initialized")}
    end = lone_group.watch()
    assert all(getattr(dist, name) is not before[name] for name in before)
    end()
    assert {name: getattr(dist, name) for name in before} == before


@pytest.mark.parametrize(
    ("case", "code", "cause"),
    [
        ("layer", "BFT-1401", r"'1' is a SyncBatchNorm"),
        pytest.param(
            "gather", "BFT-1424", rf"distributed\.all_gather was called at .*{PLACE} in a process"
        ),
        pytest.param(
            "reduce", "BFT-1424", rf"all_reduce was called at .*{PLACE}", marks=pytest.mark.long
        ),
        pytest.param(
            "functional", "BFT-1424", rf"all_gather_tensor .*{PLACE}", marks=pytest.mark.long
        ),
        pytest.param(
            "metric in a group", "BFT-1424", "was called at .*torchmetrics", marks=pytest.mark.long
        ),
        pytest.param(
            "no group", "BFT-1424", "Default process group has not been", marks=pytest.mark.long
        ),
    ],
)
def test_what_would_be_of_one_worker_alone_is_refused(
    tmp_path: Path, template: TemplateProcess, case: str, code: str, cause: str
) -> None:
    with Controller(tmp_path, template) as c:
        ids = c.start(GATHERING, [case])
        failed = c.failed(ids[0])
    assert failed.code == code
    assert re.search(cause, failed.cause)


@pytest.mark.parametrize(
    ("case", "who"),
    [("asks", PLACE), pytest.param("metric", "torchmetrics", marks=pytest.mark.long)],
)
def test_who_asks_for_a_group_is_told_once_that_there_is_none(
    tmp_path: Path, template: TemplateProcess, case: str, who: str
) -> None:
    with Controller(tmp_path, template) as c:
        ids = c.begin(GATHERING, [case])
        c.finished()
        log = c.workers[ids[0]].log.read_text()
        [remark] = c.workers[ids[0]].all(Remarked)
    assert re.match(rf"group .*{who}", remark.kind)
    assert f"warning: {remark.cause}" in log
    assert len(re.findall(rf"{who} asks whether torch\.distributed is initialized", log)) == 1
    assert log.count("BFT-1424") == 1
    assert "trained 6" in log


@pytest.mark.long
def test_before_and_after_the_loops_the_group_is_the_scripts_own(
    tmp_path: Path, template: TemplateProcess
) -> None:
    with Controller(tmp_path, template) as c:
        ids = c.begin(GATHERING, ["outside"])
        c.finished()
        assert "trained 6" in c.workers[ids[0]].log.read_text()


@pytest.mark.parametrize("case", ["layer", "reduce"])
@pytest.mark.long
def test_in_one_process_a_group_of_one_is_right(tmp_path: Path, case: str) -> None:
    done = process.run(
        [sys.executable, str(GATHERING), case],
        timeout_s=300,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.is_ok, done.stderr
    assert "trained 6" in done.stdout
