"""What verbs print on terminals of 40 to 200 columns, with a trainer that failed."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len

from bftrainer.batch.traces import SAMPLE
from bftrainer.cli.main import main
from bftrainer.model.trainer import TrainerState
from tests.integration.cli.test_cli_api import submitted
from tests.integration.cli_fixtures import home, service
from tests.support.memory_service import MemoryService
from tests.support.terminals import Terminal

__all__ = ["home", "service"]
WIDTHS = (40, 60, 80, 81, 120, 160, 200)
LOG = "/home/someone/.bftrainer/cluster/logs/t2/generation-0001-worker-0.log"
REASON = f"BFT-1423: The script ended without training with bftrainer. The end of {LOG} says why."
LONG = "a-name-that-somebody-has-made-of-all-the-parameters-of-a-run-lr0.001-wd0.1-bs256"
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def failed(service: MemoryService, tmp_path: Path) -> Path:
    """Two trainers, one of which failed; two policies that differ."""
    submitted(service, 2)
    second = service.records["t2"]
    service.records["t2"] = replace(
        second, state=TrainerState.FAILED, reason=REASON, spec=replace(second.spec, name=LONG)
    )
    for name, seconds in (("old.yaml", 100), ("new.yaml", 200)):
        (tmp_path / name).write_text(f"t_fwd_s: {seconds}\nreserve_nodes_per_type: 2\n")
        (tmp_path / name).chmod(0o600)
    return tmp_path


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "line",
    ["status", "status t2", "nodes", "explain t2", "top -n 1", "help BFT-1423", "squeue",
     "policy diff old.yaml new.yaml", f"trace info {SAMPLE}", "status --array t1"],
)  # fmt: skip
def test_nothing_is_wider_than_the_terminal(
    line: str, width: int, failed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Terminal()
    monkeypatch.chdir(failed)
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, screen)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", str(width))
    main(line.split())
    lines = ESCAPE.sub("", screen.getvalue()).splitlines()
    assert lines
    for text in lines:
        assert cell_len(text.rstrip()) <= width or len(text.split()) == 1, text
    if line in {"status", "status t2"}:
        words = " ".join(" ".join(lines).split())
        assert REASON in words
        assert LOG in words
        assert LONG in words
