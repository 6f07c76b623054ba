"""One warm template for all tests of the elastic runtime, as on a node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.elastic.controller import TemplateProcess


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemplateProcess]:
    with TemplateProcess(tmp_path_factory.mktemp("template")) as started:
        started.await_packet("ready")
        yield started
