"""The built-in runtimes on hosts: what every runtime must do, where workers share no machine."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.conformance.runtime import POLICY, RuntimeConformance, RuntimeKit
from tests.integration.fleet.test_runtime_conformance import (
    CommandKit,
    HorovodKit,
    MpiKit,
    TorchKit,
)
from tests.support.hosts.site import HostsSite

pytestmark = [pytest.mark.slurm, pytest.mark.long]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostsSite]:
    """One site for all runtimes; the tests' directories are shared by its hosts."""
    policy = POLICY + "requests_per_minute: 1000\n"
    with HostsSite.run(tmp_path_factory.getbasetemp(), policy) as running:
        yield running


class TestTorchOnHosts(RuntimeConformance):
    @pytest.fixture
    def kit(self) -> RuntimeKit:
        return TorchKit()


class TestMpiOnHosts(RuntimeConformance):
    @pytest.fixture
    def kit(self) -> RuntimeKit:
        return MpiKit()


class TestCommandOnHosts(RuntimeConformance):
    @pytest.fixture
    def kit(self) -> RuntimeKit:
        return CommandKit()


@pytest.mark.skipif(find_spec("horovod") is None, reason="make horovod builds it")
class TestHorovodOnHosts(RuntimeConformance):
    @pytest.fixture
    def kit(self) -> RuntimeKit:
        return HorovodKit()
