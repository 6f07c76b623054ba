"""Plugin of pytest: runs the wanted tests in their order, and writes what each came to.

Where coverage.py traces, what a fixture of many tests runs belongs to its file.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.support.mutants.tracing import enter, traced_for

FAILED = pytest.StashKey[bool]()


def _tell(item: pytest.Item, took_s: float | None = None) -> None:
    with Path(os.environ["MUTANTS_TOLD"]).open("a") as told:
        told.write(json.dumps([item.nodeid, took_s, item.stash.get(FAILED, False)]) + "\n")


@pytest.hookimpl(wrapper=True, tryfirst=True)  # after others have ordered them
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, Any, Any]:
    """Keep the wanted tests, in their order."""
    yield
    if not (wanted := json.loads(Path(os.environ["MUTANTS_WANTED"]).read_text())):
        return
    places = {test: place for place, test in enumerate(wanted)}
    config.hook.pytest_deselected(items=[i for i in items if i.nodeid not in places])
    items[:] = sorted(
        (item for item in items if item.nodeid in places), key=lambda item: places[item.nodeid]
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Say that a test begins, and what it came to."""
    _tell(item)
    enter(item.nodeid)
    began_s = time.monotonic()
    try:
        return (yield)
    finally:
        _tell(item, round(time.monotonic() - began_s, 3))
        enter("")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note whether a part of a test failed."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any) -> Generator[None, Any, Any]:
    """Trace for the file what its tests share."""
    test = traced_for()
    if fixturedef.scope == "function" or not test:
        return (yield)
    enter(test.partition("::")[0])
    try:
        return (yield)
    finally:
        enter(test)
