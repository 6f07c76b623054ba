"""What tests of the command line share: a user's home, a daemon without a cluster, output.

Test modules import the fixtures they use and list them in ``__all__``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.api.client import Client
from bftrainer.cli.main import main
from bftrainer.model.errors import ExitCode
from bftrainer.model.trainer import TrainerSpec
from tests.support.memory_service import MemoryService, prepare_home, serving, socket_of

Output = pytest.CaptureFixture[str]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a script; the state directory is below it."""
    return prepare_home(tmp_path, monkeypatch)


@pytest.fixture
def service(home: Path) -> Iterator[MemoryService]:
    """Trainers kept in memory behind the real server, where the command line looks for it."""
    memory = MemoryService(home)
    with serving(memory, socket_of()):
        yield memory


@pytest.fixture
def output(capsys: Output) -> Output:
    """What the command has printed."""
    return capsys


def spec_of(*argv: str) -> TrainerSpec:
    """Submit the first trainer; return what the daemon was told of it."""
    assert main(["submit", *argv]) == ExitCode.OK
    return Client(socket_of()).trainer("t1").record.spec
