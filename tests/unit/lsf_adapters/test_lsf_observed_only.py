"""An LSF of another kind or release is observed, and nothing is done to it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bftrainer.batch.batch_system import PilotRequest
from bftrainer.model.errors import BatchSystemError
from lsf_adapters.adapter import LsfBatchSystem, create
from lsf_adapters.snapshot import OBSERVED_ONLY
from tests.support.commands import write_command

RECORDED = Path(__file__).parents[2] / "fixtures" / "lsf" / "volclava"
PRINTS = {
    "bhosts": "bhosts-w-unavail",
    "bqueues": "bqueues-l",
    "bparams": "bparams-l",
    "lshosts": "lshosts",
    "lsload": "lsload-lock",
}


@pytest.fixture
def other(tmp_path: Path) -> LsfBatchSystem:
    """Commands that print what a volclava did, and another name."""
    for command, name in PRINTS.items():
        write_command(tmp_path / command, f"cat {RECORDED / name}.txt")
    long, wide = (RECORDED / f"bjobs-{form}.txt" for form in ("UF-21", "w"))
    write_command(tmp_path / "bjobs", f'case "$*" in *-UF*) cat {long};; *) cat {wide};; esac')
    write_command(
        tmp_path / "lsid", "echo 'Openlava project 3.3'; echo; echo 'My cluster name is lab'"
    )
    write_command(
        tmp_path / "bsub", f"touch {tmp_path}/submitted; echo 'Job <1> is submitted to x'"
    )
    return create({"bindir": str(tmp_path)})


def test_it_is_seen_but_never_decided_on(other: LsfBatchSystem) -> None:
    seen = other.snapshot()
    assert seen.nodes
    assert seen.jobs
    assert "dialect" in seen.unread
    assert not seen.is_complete, "a decision takes nothing from it"
    assert OBSERVED_ONLY in seen.failures


def test_nothing_is_submitted_to_it(other: LsfBatchSystem, tmp_path: Path) -> None:
    request = PilotRequest(
        pilot_id="p000001",
        node="n003",
        time_limit_s=600.0,
        agent_argv=(sys.executable, "-c", "pass"),
        log_path=tmp_path / "log",
    )
    with pytest.raises(BatchSystemError) as caught:
        other.launch_pilot(request)
    assert caught.value.code == "BFT-1208"
    assert not (tmp_path / "submitted").exists()
