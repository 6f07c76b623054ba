"""The waits that benchmarks share."""

from __future__ import annotations

import asyncio

import pytest
from _bench.waiting import BenchError, wait_until, wait_until_async


def test_the_first_truthy_result_is_returned() -> None:
    looks = iter(["", "", "third"])
    assert wait_until(lambda: next(looks), "it", patience_s=10.0, interval_s=0.0) == "third"
    looks = iter(["", "second"])
    waiting = wait_until_async(lambda: next(looks), "it", patience_s=10.0, interval_s=0.0)
    assert asyncio.run(waiting) == "second"


def test_what_did_not_happen_is_named() -> None:
    with pytest.raises(BenchError, match=r"^not within 0.01 s: rain$"):
        wait_until(lambda: False, "rain", patience_s=0.01, interval_s=0.01)
    with pytest.raises(BenchError, match=r"^not within 0.01 s: rain$"):
        asyncio.run(wait_until_async(lambda: False, "rain", patience_s=0.01, interval_s=0.01))
