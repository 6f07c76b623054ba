"""``submit --container`` and ``doctor --container``: the image is tried where they are typed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from bftrainer.api.client import Client
from bftrainer.cli.main import main
from bftrainer.model.errors import ExitCode
from tests.integration.cli_fixtures import Output, home, output, service
from tests.support.containers import stand_in
from tests.support.memory_service import MemoryService, socket_of

__all__ = ["home", "output", "service"]

FAILING = """\
#!/bin/sh
echo "FATAL: image is not ours" >&2
exit 255
"""
TORCH = "__version__ = '2.99'\nclass cuda:\n    is_available = staticmethod(lambda: False)\n"


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An image that what stands for Apptainer starts, and a Python in its PATH."""
    environ = stand_in("apptainer", tmp_path)
    programs = tmp_path / "programs"
    for name in ("python", "python3"):
        (programs / name).symlink_to(Path(sys.executable).resolve())
    monkeypatch.setenv("PATH", environ["PATH"])
    file = tmp_path / "image.sif"
    file.touch()
    return str(file)


def _torch(text: str) -> list[str]:
    """Put a module torch where the image's Python finds it; return the option that says so."""
    Path("lib").mkdir()
    Path("lib/torch.py").write_text(text)
    return ["--export", f"PYTHONPATH={Path.cwd()}/lib"]


def test_what_is_asked_for_is_sent_and_was_tried(
    image: str, service: MemoryService, output: Output
) -> None:
    path = _torch(TORCH)
    asked = ["submit", *path, "--container", image, "--container-mounts", "lib:/lib2:ro"]
    assert main([*asked, "--dry-run", "train.py"]) == ExitCode.OK
    said = output.readouterr().out
    assert f"image {image} starts here" in said
    assert "imports torch 2.99 in the image" in " ".join(said.split())
    assert service.records == {}
    assert main([*asked, "train.py"]) == ExitCode.OK
    spec = Client(socket_of()).trainer("t1").record.spec
    assert spec.container == image
    assert spec.container_mounts == f"{Path.cwd()}/lib:/lib2:ro"
    assert spec.interpreter == str(Path(image).parent / "programs" / "python")


def test_an_image_without_torch_or_that_does_not_start_is_refused(
    image: str, service: MemoryService, output: Output
) -> None:
    asked = ["submit", "--dry-run", "--container", image, *_torch("raise ImportError('none')")]
    assert main([*asked, "train.py"]) == ExitCode.USAGE
    assert "error BFT-1084: " in output.readouterr().err
    programs = Path(image).parent / "programs"
    (programs / "apptainer").write_text(FAILING)
    assert main([*asked, "train.py"]) == ExitCode.USAGE
    told = output.readouterr().err
    assert "error BFT-1082: The container" in told
    assert "FATAL: image is not ours" in told
    assert service.records == {}


@pytest.mark.usefixtures("service")
def test_a_machine_without_a_runtime_needs_the_name_of_the_python(
    image: str, output: Output
) -> None:
    (Path(image).parent / "programs" / "apptainer").unlink()
    asked = ["submit", "--container-runtime", "apptainer", "--container", image]
    assert main([*asked, "train.py"]) == ExitCode.USAGE
    assert "error BFT-1085: " in output.readouterr().err
    assert main([*asked, "--interpreter", "/opt/conda/bin/python", "train.py"]) == ExitCode.OK
    named = ["--interpreter", "/opt/conda/bin/python"]
    assert main([*asked, *named, "--dry-run", "train.py"]) == ExitCode.OK
    assert "was not tried" in " ".join(output.readouterr().out.split())


@pytest.mark.usefixtures("service")
def test_a_program_may_be_in_the_image_alone(image: str, output: Output) -> None:
    asked = ["submit", "--dry-run", "--runtime", "command", "--container", image]
    assert main([*asked, "--interpreter", "/opt/image/bin/julia", "train.py"]) == ExitCode.OK
    said = " ".join(output.readouterr().out.split())
    assert "program /opt/image/bin/julia has to be in the image" in said


@pytest.mark.usefixtures("home")
def test_doctor_tries_an_image(image: str, output: Output) -> None:
    assert main(["doctor", "--container", image]) == ExitCode.USAGE  # without torch
    assert "error BFT-1084: " in output.readouterr().err
    (Path(image).parent / "programs" / "apptainer").unlink()
    assert main(["doctor", "--container", image]) == ExitCode.USAGE
    told = output.readouterr().err
    assert "error BFT-1081: " in told
    assert os.uname().nodename in told
