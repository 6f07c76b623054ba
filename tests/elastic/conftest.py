"""What tests of the elastic runtime share: a warm template, as on a node, and a store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bftrainer.elastic.process import control
from bftrainer.elastic.process.store import StoreServer
from bftrainer.elastic.script.models import end_watch
from tests.elastic.controller import TemplateProcess
from tests.elastic.frameworks import FRAMEWORKS, Framework


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemplateProcess]:
    with TemplateProcess(tmp_path_factory.mktemp("template")) as started:
        started.await_packet("ready")
        yield started


OTHERS = [pytest.param(one, marks=pytest.mark.long) for one in FRAMEWORKS[1:]]


@pytest.fixture(params=[FRAMEWORKS[0], *OTHERS], ids=[one.module for one in FRAMEWORKS])
def framework(request: pytest.FixtureRequest) -> Framework:
    """Return one of the libraries there are hooks for."""
    chosen: Framework = request.param
    pytest.importorskip(chosen.module, reason=f"{chosen.module} is not installed")
    return chosen


@pytest.fixture
def store() -> Iterator[StoreServer]:
    """Where the members of a generation meet."""
    server = StoreServer("127.0.0.1")
    yield server
    server.close()


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test is a process of its own as far as the runtime can tell."""
    monkeypatch.setattr(control, "_current", [])
    yield
    end_watch()
