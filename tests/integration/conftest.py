"""What modules share whose tests have one site between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.integration.daemon.test_daemon import DaemonSite


@pytest.fixture
def site(shared_site: DaemonSite, request: pytest.FixtureRequest) -> Iterator[DaemonSite]:
    """The module's site, without trainers and with all nodes up, in a folder of its own."""
    shared_site.prefix = request.node.name
    yield shared_site
    shared_site.clear()
