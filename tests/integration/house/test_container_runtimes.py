"""Every container runtime: real ones where the machine has them, else what stands for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.container_runtime import ContainerConformance, ContainerKit, ran
from tests.support.containers import has, podman_kit, real_kit, recorded, stood_for


@pytest.mark.skipif(not has("bwrap"), reason="no bwrap here (apt-get install bubblewrap)")
class TestBubblewrap(ContainerConformance):
    """The real one."""

    @pytest.fixture
    def kit(self, tmp_path: Path) -> ContainerKit:
        return real_kit("bwrap", tmp_path)


@pytest.mark.skipif(not has("ch-run"), reason="no ch-run here (apt-get install charliecloud)")
class TestCharliecloud(ContainerConformance):
    """The real one."""

    @pytest.fixture
    def kit(self, tmp_path: Path) -> ContainerKit:
        return real_kit("charliecloud", tmp_path)


class TestApptainer(ContainerConformance):
    """A script that stands for it."""

    @pytest.fixture
    def kit(self, tmp_path: Path) -> ContainerKit:
        return stood_for("apptainer", tmp_path)


@pytest.mark.long
@pytest.mark.skipif(not has("podman"), reason="no podman here (apt-get install podman)")
class TestRealPodman(ContainerConformance):
    """The real one, with a directory as its image."""

    @pytest.fixture
    def kit(self, tmp_path: Path) -> ContainerKit:
        kit = podman_kit(tmp_path)
        if kit is None:
            pytest.skip("podman starts nothing on this machine")
        return kit


class TestPodman(ContainerConformance):
    """A script that stands for it."""

    @pytest.fixture
    def kit(self, tmp_path: Path) -> ContainerKit:
        return stood_for("podman", tmp_path)


class TestEnroot(ContainerConformance):
    """A script that stands for it."""

    @pytest.fixture
    def kit(self, tmp_path: Path) -> ContainerKit:
        return stood_for("enroot", tmp_path)


@pytest.mark.parametrize("name", ["apptainer", "podman", "enroot"])
def test_no_value_is_on_a_command_line(name: str, tmp_path: Path) -> None:
    kit = stood_for(name, tmp_path)
    given = {"TOKEN": "kept off", "BFT_RANK": "kept off, too"}
    assert ran(kit, "-c", "pass", environ=given, variables=("TOKEN",)).returncode == 0
    (words,) = recorded(tmp_path)
    assert "kept off" not in " ".join(words)
