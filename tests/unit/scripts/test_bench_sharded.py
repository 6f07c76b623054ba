"""What ``bench_rescale --sharded`` makes of what it measured."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest
from _bench import memory
from _bench.records import RECORD, Recorder, Step
from _bench.sharded_arms import Turn, usual_s
from _bench.sharded_parts import paired


def test_what_is_slow_in_both_arms_does_not_count() -> None:
    ratio, low, high = paired([[2.0, 2.2], [20.0, 22.0]], [[1.0], [10.0]])
    assert ratio == pytest.approx(2.1)
    assert (low, high) == pytest.approx((2.1, 2.1))


def test_the_first_step_of_a_generation_is_not_usual() -> None:
    at_s = (0.0, 9.0, 10.0, 11.0, 12.5)
    assert usual_s([Step(t, i, 1, 2, 0) for i, t in enumerate(at_s)]) == 1.0


def test_a_turn_ends_when_all_workers_have_reached_its_last_step(tmp_path: Path) -> None:
    turn = Turn(tmp_path, Recorder(tmp_path))
    files = [tmp_path / f"node-{pid}.steps" for pid in (1, 2)]

    def train() -> None:
        for step in range(200):
            told = turn.path.read_text() if turn.path.exists() else ""
            if told and step >= int(told):
                return
            for file in files:
                with file.open("ab") as records:
                    records.write(RECORD.pack(time.monotonic(), step + 1, 1, 2, 0, 0))
            time.sleep(0.01)

    thread = threading.Thread(target=train)
    thread.start()
    asyncio.run(turn.end(2))
    thread.join()
    recorder = Recorder(tmp_path)
    recorder.poll()
    ends = [h.steps[-1].step for h in recorder.histories.values()]
    assert ends == [int(turn.path.read_text())] * 2


def test_the_peak_of_a_process_is_forgotten() -> None:
    memory.forget_peak(os.getpid())  # that of earlier tests
    before = memory.peak_bytes(os.getpid())
    data = bytearray(b"x" * (64 << 20))
    assert memory.peak_bytes(os.getpid()) > before + len(data) // 2
    del data
    memory.forget_peak(os.getpid())
    assert memory.peak_bytes(os.getpid()) < before + (32 << 20)
