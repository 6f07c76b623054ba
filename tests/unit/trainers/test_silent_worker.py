"""A worker that sends no heartbeat is killed until it has ended, and told of once."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainers.agent.team import Process, Team
from trainers.agent.workers import Workers

LEASE_S = 10.0


def test_it_is_killed_at_each_look_and_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy host a template took six seconds to kill it: the log had a line for each look."""
    workers = Workers(
        log_dir=tmp_path,
        gpus=0,
        report=lambda _: None,
        on_commit=lambda _: None,
        started={},
    )
    channel: Any = SimpleNamespace(drain=lambda: None)
    process = Process(name="t1-1-1", local_rank=0)
    process.channel, process.alive_s = channel, time.monotonic() - 2 * LEASE_S
    workers._processes[process.name] = (Team("t1-1-1", "t1"), process)
    kills: list[str] = []
    monkeypatch.setattr(workers._pool, "kill", kills.append)
    with caplog.at_level(logging.WARNING, "bftrainer.agent"):
        for _ in range(3):
            workers.kill_silent(LEASE_S)
    assert kills == ["t1-1-1"] * 3
    assert [record.getMessage() for record in caplog.records] == [
        "t1-1-1: It did not answer for 10 s (worker_lease_s)."
    ]
