"""Scripts whose loop is a framework's: run without the hook, and run by a controller."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from tests.elastic import journal
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess

WARM = {  # what their scripts import, many seconds of work
    "transformers": ("transformers.trainer", "transformers.models.bert.modeling_bert"),
    "lightning": ("lightning",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """One of the libraries there are hooks for."""

    module: str
    script: str
    saved: frozenset[str]  # its own checkpoints, one per epoch


FRAMEWORKS = (
    Framework(
        module="transformers",
        script="hf_train.py",
        saved=frozenset({"checkpoint-10", "checkpoint-20", "checkpoint-30"}),
    ),
    Framework(
        module="lightning",
        script="lightning_train.py",
        saved=frozenset({"epoch=0.ckpt", "epoch=1.ckpt", "epoch=2.ckpt"}),
    ),
)


@pytest.fixture(scope="module")
def template(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TemplateProcess]:
    """Return a template with the libraries, too, that tests of the file ask for."""
    items = [item for item in request.session.items if item.path == request.path]
    asked = {FRAMEWORKS[0].module, *(_asked(item) for item in items)}
    available = [module for module in WARM if module in asked and find_spec(module)]
    modules = [name for module in available for name in WARM[module]]
    with TemplateProcess(tmp_path_factory.mktemp("template"), modules=modules) as started:
        started.await_packet("ready")
        yield started


def _asked(item: pytest.Item) -> str:
    """Return the library that a test is about, by the parameter of its name."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    framework = parameters.get("framework", FRAMEWORKS[0])
    return framework.module if isinstance(framework, Framework) else str(framework)


def natively(template: TemplateProcess, framework: Framework, **settings: Any) -> journal.Entry:
    """Return what training comes to without the hook, in one process."""
    with TemporaryDirectory() as directory, Controller(Path(directory), template) as c:
        (only,) = start(c, framework, count=1, **{"elastic": False, **settings})
        said = c.failed(only)  # it ends, and has joined nothing
        assert said.code == "BFT-1423", (said, c.logs())
        return journal.result(Path(directory))


def start(c: Controller, framework: Framework, *, count: int = 2, **settings: Any) -> list[str]:
    """Start workers that are not in a generation yet."""
    return c.start(SCRIPTS / framework.script, [json.dumps(settings)], count=count)


def assert_same(directory: Path, wanted: journal.Entry, *, samples: int, atol: float) -> None:
    got = journal.result(directory)
    for name in ("steps", "epoch", "lr"):
        assert got[name] == pytest.approx(wanted[name])
    for a, b in zip(got["parameters"], wanted["parameters"], strict=True):
        torch.testing.assert_close(torch.tensor(a), torch.tensor(b), rtol=1e-3, atol=atol)
    epochs = journal.committed_ids(directory)
    assert {e: set(ids.values()) for e, ids in epochs.items()} == {0: {1}, 1: {1}, 2: {1}}
    assert all(len(ids) == samples for ids in epochs.values())
    assert journal.disagreements(directory, "sums", "counted") == []
