"""``submit --preamble``: read, checked on this machine and sent as it is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bftrainer.cli.main import main
from bftrainer.model.errors import ExitCode
from bftrainer.model.preamble import MAX_BYTES
from tests.integration.cli_fixtures import Output, home, output, service, spec_of
from tests.support.memory_service import MemoryService, error_code

__all__ = ["home", "output", "service"]


def preamble(text: str | bytes) -> str:
    path = Path("env.sh")
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


@pytest.mark.usefixtures("service")
def test_the_text_is_sent_and_a_later_edit_changes_nothing() -> None:
    path = preamble('exec env X=1 "$@"\n')
    spec = spec_of("--preamble", path, "--interpreter", sys.executable, "train.py")
    preamble("exit 1\n")
    assert spec.preamble == 'exec env X=1 "$@"\n'
    assert spec.interpreter == sys.executable


@pytest.mark.usefixtures("service")
def test_its_python_is_the_first_in_the_path_of_the_preamble() -> None:
    Path("bin").mkdir()
    for name in ("python", "python3"):
        (Path("bin") / name).symlink_to(sys.executable)
    spec = spec_of("--runtime", "mpi", "--preamble", preamble("PATH=$PWD/bin:$PATH\n"), "train.py")
    assert spec.interpreter == str(Path.cwd() / "bin" / "python")


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("echo no-module >&2; (exit 3)\n", "BFT-1061", "ended with status 3: no-module."),
        ("set -e\nfalse\ntrue\n", "BFT-1061", "ended with status 1."),
        ("exit 0\n", "BFT-1061", "ended with status 0."),
        ("if\n", "BFT-1061", "syntax error"),
        ("", "BFT-1060", "is empty"),
        (b"\xff\n", "BFT-1060", "not UTF-8"),
        ("echo\r\n", "BFT-1060", "line ends of Windows"),
        ("echo \0\n", "BFT-1060", "the character"),
        ("#" * (MAX_BYTES + 1), "BFT-1060", f"longer than {MAX_BYTES} bytes"),
    ],
)
@pytest.mark.parametrize("runtime", ["torch", "command"])
def test_one_that_fails_is_refused_before_anything_is_sent(
    service: MemoryService, output: Output, runtime: str, text: str, code: str, said: str
) -> None:
    argv = ["--interpreter", sys.executable, "--preamble", preamble(text), "train.py"]
    assert main(["submit", "--runtime", runtime, "--dry-run", *argv]) == ExitCode.USAGE
    captured = output.readouterr()
    assert f"error {code}: The preamble" in captured.err
    assert said in captured.err
    assert service.records == {}


def test_an_interpreter_that_lacks_torch_under_the_preamble_is_told_apart(
    service: MemoryService, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--interpreter", sys.executable, "train.py"]
    Path("torch.py").write_text("raise SystemExit('not this one')")
    hidden = preamble('exec env PYTHONPATH=$PWD/torch.d "$@"\n')
    Path("torch.d").mkdir()
    Path("torch.d/torch.py").write_text("raise ImportError('hidden by a test')")
    assert main(["submit", "--dry-run", "--preamble", hidden, *argv]) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert "BFT-1006" in captured.err
    assert "cannot import torch under the preamble: ImportError: hidden by a test" in captured.err
    missing = preamble('exec no-such-container "$@"\n')
    assert main(["submit", "--dry-run", "--preamble", missing, *argv]) == ExitCode.USAGE
    assert error_code(capsys) == "BFT-1061"
    assert service.records == {}
