"""What is refused is counted, and does not fill the log."""

from __future__ import annotations

import logging

import pytest

from bftrainer.fleet.logs import OneLine
from bftrainer.fleet.wire.router import RefusedMessages


def test_one_line_a_kind_in_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 100.0
    log = logging.getLogger("test.refusals")
    refusals = RefusedMessages(log, clock=lambda: now_s)
    with caplog.at_level(logging.INFO):
        for _ in range(500):
            refusals.refuse("malformed", "p1", "x\ny")
            refusals.refuse("impostor", "p2", "it claims to be p1")
    assert refusals.counts == {"malformed": 500, "impostor": 500}
    assert [r.getMessage() for r in caplog.records] == [
        "BFT-1301: message from p1 dropped (malformed, 1 so far): x\\ny",
        "BFT-1301: message from p2 dropped (impostor, 1 so far): it claims to be p1",
    ]
    now_s += 10.0
    refusals.refuse("malformed", "p3", "z")
    assert "p3 dropped (malformed, 501 so far)" in caplog.records[-1].getMessage()


def test_a_record_is_one_line_whatever_it_quotes() -> None:
    problem = ValueError("a\n2026-01-01T00:00:00.000Z INFO bftrainer.daemon: forged")
    record = logging.LogRecord(
        "bftrainer.x", logging.INFO, "f", 1, "said: %s", ("b\nINFO forged\x1b[2J",),
        (ValueError, problem, None),
    )  # fmt: skip
    first, *rest = OneLine("%(levelname)s %(name)s: %(message)s").format(record).split("\n")
    assert first == "INFO bftrainer.x: said: b\\nINFO forged"
    assert rest
    assert all(line.startswith("    ") for line in rest)
