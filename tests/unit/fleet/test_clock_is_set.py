"""Somebody sets the clock of the daemon's node, or of an agent's: durations go on."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from bftrainer.batch.local.adapter import create
from bftrainer.daemon.harm.book import MAX_LEAVING_S, on_our_clock
from bftrainer.decide.throughput.curves import (
    OBSERVE_S,
    SETTLE_S,
    SETTLE_STEPS,
    Observation,
    add_sample,
)
from bftrainer.fleet.pilots.pilots import PilotBook
from bftrainer.fleet.trainers.quarantine import Quarantine
from bftrainer.fleet.trainers.rescale_budget import SPAN_S, RescaleBudget
from bftrainer.fleet.wire.endpoint import AgentConfig
from bftrainer.fleet.wire.keys import generate_pair, save_pair
from bftrainer.fleet.wire.messages import Hello, Leaving
from bftrainer.journal.journal import Journal
from bftrainer.model.decision import Claim
from tests.support.snapshots import T0, snapshot
from tests.unit.fleet.test_left_alone import _rescaled
from trainers.agent import link

HELLO = Hello(
    pilot_id="p1", node="n1", address="", pid=1, peer_endpoint="", peer_public_key=""
)  # fmt: skip
YEAR_S = 365 * 86400.0


def test_a_node_does_not_cool_for_a_year() -> None:
    quarantine = Quarantine(10.0)
    for _ in range(3):
        quarantine.failed("n1", "t1", "It was killed.", T0)
    assert set(quarantine.cooling(T0)) == {"n1"}
    assert not quarantine.cooling(T0 - YEAR_S)
    assert not quarantine.cooling(T0 + YEAR_S)


def test_a_budget_is_not_used_up_for_a_year() -> None:
    budget = RescaleBudget(1)
    budget.on_rescaled("t1", _rescaled(1, "n1", "n2"), T0)
    assert budget.used_up(T0) == {"t1": T0 + SPAN_S}
    assert budget.used_up(T0 - YEAR_S) == {}


def test_throughput_is_measured_again_from_the_new_time_on() -> None:
    watch = Observation(generation=4, size=2, step=100, samples=10_000, at_s=T0)
    rates, now_s, step = [], T0 - YEAR_S, 100
    for _ in range(40):
        now_s, step = now_s + 0.5, step + SETTLE_STEPS
        watch, rate = add_sample(watch, generation=4, step=step, samples=100 * step, now_s=now_s)
        rates += [] if rate is None else [rate]
    assert len(rates) >= int((20.0 - SETTLE_S - 1.0) / (OBSERVE_S + 0.5))
    assert rates == [pytest.approx(200.0 * SETTLE_STEPS)] * len(rates)


def test_an_agent_that_says_it_took_a_year_to_leave_has_no_say_in_the_promise() -> None:
    said = Leaving(pilot_id="p1", reason="signal", told_s=0.0, left_s=T0)
    assert on_our_clock(said, T0) == (T0 - MAX_LEAVING_S, T0)
    said = Leaving(pilot_id="p1", reason="signal", told_s=T0 - YEAR_S, left_s=T0 + YEAR_S)
    assert on_our_clock(said, T0) == (T0 - MAX_LEAVING_S, T0)


@pytest.mark.parametrize("jump_s", [YEAR_S, -YEAR_S])
def test_a_pilots_end_is_noticed_all_the_same(tmp_path: Path, jump_s: float) -> None:
    now_s, steady_s = T0, 50.0
    claim = Claim(node="n1", time_limit_s=3600.0, for_trainer="t1")
    with Journal.open(tmp_path / "journal.db", clock=lambda: now_s) as journal:
        system = create({"socket": tmp_path / "none"})
        book = PilotBook(journal, system, "root", lambda: now_s, lambda: steady_s)
        book.launched(book.open("p000001", claim, "key"), "71")
        now_s, steady_s = now_s + jump_s, steady_s + 1.0
        assert book.overdue() == []
        assert book.observe(snapshot([], []), steady_s) == ["p000001"]


@pytest.mark.parametrize("jump_s", [0.0, YEAR_S, -YEAR_S])
def test_an_agent_leaves_when_its_time_is_over_and_not_when_the_clock_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    save_pair(generate_pair(), tmp_path / "agent.key")
    config = AgentConfig(
        pilot_id="p1", node="n1", daemon_endpoint="tcp://127.0.0.1:9",
        daemon_public_key=generate_pair().public, key_file=tmp_path / "agent.key",
        state_dir=tmp_path, end_s=time.time() + 3600.0,
    )  # fmt: skip

    async def scenario() -> None:
        expired: list[str] = []
        made = link.DaemonLink(
            config, generate_pair(), hello=lambda: HELLO, worker_ids=list, ends=list,
            on_order=lambda _: None, on_expired=expired.append, on_down=lambda: None,
        )  # fmt: skip
        wall, steady = time.time, time.monotonic
        monkeypatch.setattr(time, "time", lambda: wall() + jump_s)
        made._tick()
        assert expired == []
        monkeypatch.setattr(time, "monotonic", lambda: steady() + 3599.0)
        made._heard_s += 3599.0  # the daemon is there
        made._tick()
        assert expired == ["time-limit"]
        made._connection.close()

    asyncio.run(scenario())
