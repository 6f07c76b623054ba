"""Members that are not alike, where a framework trains: found by name; and never where they are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bftrainer.ground.protocol import Failed, Finished, Remarked
from tests.elastic import journal
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess, holds_of
from tests.elastic.frameworks import Framework, start, template

__all__ = ["template"]

pytestmark = pytest.mark.long  # importing the library takes 6 s of processor time

# Until tensors are compared: from one second after the beginning on.
LONG: dict[str, Any] = {"epochs": 1000, "delay_s": 0.002}
# What is done otherwise -> settings, code, and what is named with each framework.
MUTATIONS: dict[str, tuple[dict[str, Any], str, dict[str, str]]] = {
    "seed": ({}, "BFT-1439", {"transformers": "embeddings", "lightning": "embedding.weight"}),
    "order": ({}, "BFT-1433", {"transformers": "sample 0 ", "lightning": "sample 0 "}),
    "data": ({}, "BFT-1433", {"transformers": "sample 0 ", "lightning": "sample 0 "}),
    "schedule": (
        {},
        "BFT-1438",
        {"transformers": r"scheduler\._step_count is", "lightning": r"scheduler-0\.\w+ is"},
    ),
    "scaling": (
        {"scaled": True},
        "BFT-1438",
        {"transformers": r"scaler\.scale is", "lightning": r"scaler\.scale is"},
    ),
    "evaluation": (
        {"plateau": True, "evaluate": True},
        "BFT-1438",
        {
            "transformers": r"scheduler\.(best|num_bad_epochs) is",
            "lightning": r"scheduler-0\.num_bad_epochs is|\.lr is",
        },
    ),
    "average": ({}, "BFT-1439", {"transformers": "weight", "lightning": "weight"}),
    "clipping": ({}, "BFT-1439", {"transformers": "weight", "lightning": "weight"}),
    "branch": (
        {},
        "BFT-1438",
        {
            "transformers": r"groups\[0\]\.weight_decay is 0\S* on rank 0, 0\.02 on rank 1",
            "lightning": r"groups\[0\]\.weight_decay is 0\S* on rank 0, 0\.02 on rank 1",
        },
    ),
    "stopping": (
        {"patience": 90, "evaluate": True},
        "BFT-1438",
        {
            "transformers": r"EarlyStoppingCallback\.early_stopping_patience_counter is",
            "lightning": r"EarlyStopping\.wait_count is",
        },
    ),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_worker_that_does_otherwise_ends_the_trainer_by_name(
    tmp_path: Path, template: TemplateProcess, framework: Framework, mutation: str
) -> None:
    settings, code, names = MUTATIONS[mutation]
    asked = {"mutation": mutation, **LONG, **settings}
    with Controller(tmp_path, template) as c:
        ids = [
            *start(c, framework, count=1, **asked),
            *start(c, framework, count=1, odd=True, **asked),
        ]
        c.warm(ids)
        c.commit_only(ids)
        c.until(lambda: all(c.workers[i].returncode is not None for i in ids), "they ended")
        failures = [failed for i in ids for failed in c.workers[i].all(Failed)]
    assert len(failures) == 2, "all members see it"
    for failed in failures:
        assert failed.code == code, failed
        assert re.search(names[framework.module], failed.cause), failed


def test_a_worker_that_ends_alone_is_told_so(
    tmp_path: Path, template: TemplateProcess, framework: Framework
) -> None:
    with Controller(tmp_path, template) as c:
        ids = start(c, framework, mutation="ending", samples=73, epochs=5)
        c.warm(ids)
        c.commit_only(ids)
        failed = c.failed(ids[1])
        assert c.workers[ids[1]].all(Finished) == []
    assert failed.code == "BFT-1434"
    assert re.search(r"Some workers are at an update .* at the end of their training", failed.cause)


# Joins, leaves and losses: ten changes of members.
SIZES = (2, 3, 1, -2, 3, 2, 1, 3, -2, 3, 2)
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "evaluated, stopping early": {"evaluate": True, "patience": 90},
    "plateau": {"plateau": True, "evaluate": True},
    "accumulated": {"batch": 4, "accumulate": 2},
    "half precision": {"bf16": True},
    "scaled": {"scaled": True},
    "with a counter": {"mutation": "none"},
}


@pytest.mark.parametrize("way", WAYS)
def test_workers_that_do_alike_are_never_told_apart(
    tmp_path: Path, template: TemplateProcess, framework: Framework, way: str
) -> None:
    holds = holds_of(SIZES, apart=3)
    settings = json.dumps({"samples": 73, "epochs": 5, "holds": holds, **WAYS[way]})
    with Controller(tmp_path, template) as c:
        c.through(SIZES, SCRIPTS / framework.script, [settings], apart=3)
        logs = c.logs()
        remarks = [said for worker in c.workers.values() for said in worker.all(Remarked)]
    assert "BFT-143" not in logs
    assert remarks == []
    assert journal.disagreements(tmp_path, "sums") == []
    assert journal.result(tmp_path)["steps"] == 50
