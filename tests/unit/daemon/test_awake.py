"""Sleeps of a process, by a clock that tests set: what counts as time, and what is made of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from bftrainer.batch.announcer import Announcement, UnseenAnnouncements
from bftrainer.batch.awake import AwakeClock, Patience
from bftrainer.daemon.awakenings import Awakenings
from bftrainer.daemon.harm.backoff import BackOff, record_hand_overs
from bftrainer.daemon.harm.book import on_our_clock
from bftrainer.daemon.harm.ends import End
from bftrainer.daemon.harm.ledger import Rule, hand_over, slow_part
from bftrainer.decide.claims import DID_NOT_CONNECT
from bftrainer.fleet import release
from bftrainer.fleet.wire.keys import KeyPair, generate_pair
from bftrainer.fleet.wire.messages import Heartbeat, Leaving
from bftrainer.fleet.wire.server import AgentServer
from bftrainer.model.decision import AgentPatience, Ending, Ends, Joining, Memory, Slept
from tests.support.snapshots import (
    T0,
    Fold,
    idle_nodes,
    pending,
    pilot,
    record,
    running,
    snapshot,
)
from tests.unit.fleet.test_wire import Agent, hello, until

SLEPT = Slept(from_s=T0 + 10.0, until_s=T0 + 310.0)


class Boot:
    """A boot clock that is set."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def boot() -> Boot:
    return Boot()


# ---- the clock -------------------------------------------------------------------------


def _beats(clock: AwakeClock, boot: Boot, seconds: float, every_s: float = 0.5) -> None:
    for _ in range(round(seconds / every_s)):
        boot.now_s += every_s
        clock.beat(every_s)


def test_it_counts_as_other_clocks_do_while_the_loop_comes_in_time(boot: Boot) -> None:
    clock = AwakeClock(boot, shortest_s=4.0)
    clock.beat(0.5)
    _beats(clock, boot, 10.0)
    assert clock() == 1010.0
    boot.now_s += 2.4  # promised within 0.5 s, so 1.9 s late: only slow
    assert (clock.beat(0.5), clock()) == (0.0, 1012.4)
    assert clock.last is None


@pytest.mark.parametrize("first", ["beat", "read"])
def test_a_sleep_is_no_time_whoever_notices_it_first(boot: Boot, first: str) -> None:
    clock = AwakeClock(boot, shortest_s=4.0)
    clock.beat(0.5)
    boot.now_s += 300.0
    if first == "read":
        assert clock() == 1000.0  # as another thread may read it before the loop runs again
        boot.now_s += 0.25
        assert clock() == 1000.0
        boot.now_s -= 0.25
    assert clock.beat(0.5) == 300.0
    assert (clock(), clock.sleeps, clock.slept_s) == (1000.0, 1, 300.0)
    boot.now_s += 0.25  # an eighth of 2 s to read what others have said
    assert clock() == 1000.0
    clock.beat(0.5)
    boot.now_s += 0.5
    assert (clock(), clock.beat(0.5)) == (1000.5, 0.0)


def test_what_is_a_sleep_follows_from_the_shortest_time_that_is_judged(boot: Boot) -> None:
    for shortest_s, sleep_s in ((60.0, 2.0), (5.0, 2.0), (1.0, 0.5)):
        assert AwakeClock(boot, shortest_s=shortest_s).sleep_s == sleep_s


def test_without_a_promise_nobody_sleeps(boot: Boot) -> None:
    clock = AwakeClock(boot)
    boot.now_s += 500.0
    assert clock() == 1500.0
    clock.beat(0.1)
    clock.rest()
    boot.now_s += 500.0
    assert (clock.beat(0.1), clock()) == (0.0, 2000.0)


def test_it_is_known_for_how_long_a_message_may_have_waited(boot: Boot) -> None:
    clock = AwakeClock(boot, shortest_s=4.0)
    clock.beat(0.5)
    assert clock.waited_s(5.0) == 0.0
    boot.now_s += 40.0
    clock.beat(0.5)
    assert (clock.waited_s(5.0), clock.woke_within(5.0)) == (40.0, True)
    _beats(clock, boot, 6.0)
    assert (clock.waited_s(5.0), clock.woke_within(5.0)) == (0.0, False)


def test_who_waits_for_a_command_gives_it_the_time_that_he_slept(boot: Boot) -> None:
    patience = Patience(15.0, boot)
    for _ in range(10):
        assert patience.rest_s() == 1.0
        boot.now_s += 1.0
    boot.now_s += 300.0
    assert patience.rest_s() == 1.0  # 6 s are left, as it was last seen awake 9 s ago
    boot.now_s += 0.25
    for left in (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0):
        assert patience.rest_s() == left
        boot.now_s += 1.0


# ---- the daemon's ------------------------------------------------------------------------


def _is_dazed(awakenings: Awakenings) -> bool:
    return awakenings.is_dazed


def test_a_daemon_says_once_how_long_it_slept_and_waits_for_a_poll(
    boot: Boot, caplog: pytest.LogCaptureFixture
) -> None:
    awake = AwakeClock(boot)
    awakenings = Awakenings(awake, lambda: T0 + boot.now_s, boot)
    before = awakenings.number()
    assert not awakenings.look(0.1)
    assert (awakenings.sentence(), awakenings.is_dazed, awakenings.slept) == ("", False, Slept())
    boot.now_s += 12.0
    assert _is_dazed(awakenings)  # whoever asks first
    awakenings.saw(before)  # a poll that began before
    assert _is_dazed(awakenings)
    with caplog.at_level(logging.WARNING):
        assert awakenings.look(0.1)
        assert not awakenings.look(0.1)
    (said,) = [record.message for record in caplog.records]
    assert said.startswith("BFT-1318: The daemon did not run for 12 s, until ")
    assert awakenings.sentence() == said
    assert awakenings.slept == Slept(from_s=T0 + 1000.0, until_s=T0 + 1012.0)
    assert (awakenings.count, awakenings.slept_s) == (1, 12.0)
    awakenings.saw(awakenings.number())
    assert not _is_dazed(awakenings)
    _beats(awake, boot, 3601.0)
    assert awakenings.sentence() == ""


def test_a_batch_system_that_does_not_answer_is_not_waited_for_long(boot: Boot) -> None:
    awake = AwakeClock(boot)
    awakenings = Awakenings(awake, lambda: boot.now_s, boot)
    awakenings.look(0.1)
    boot.now_s += 60.0
    assert _is_dazed(awakenings)
    _beats(awake, boot, 11.0)
    assert not _is_dazed(awakenings)


# ---- agents ------------------------------------------------------------------------------


class Wire:
    """A server whose clock is set, and two agents."""

    def __init__(self, boot: Boot, ours: KeyPair) -> None:
        self.boot, self.ours, self.lost = boot, ours, list[tuple[str, str]]()
        self.awake = AwakeClock(boot, shortest_s=4.0)
        self.heard: list[tuple[str, str]] = []
        self.missed, self.endpoint = 0, ""
        self.server = AgentServer(
            keys=ours,
            incarnation=1,
            agent_timeout_s=3600.0,  # by real time nothing is late
            on_message=lambda pilot_id, said: self.heard.append((pilot_id, said.type)),
            on_lost=lambda pilot_id, why: self.lost.append((pilot_id, why)),
            awake=self.awake,
            on_missed=self._miss,
        )
        self.keys = {f"p{n}": generate_pair() for n in range(1, 4)}
        self.agents: dict[str, Agent] = {}

    def _miss(self) -> None:
        self.missed += 1

    async def come(self, *pilot_ids: str) -> None:
        for pilot_id in pilot_ids:
            if pilot_id in self.agents:
                self.agents[pilot_id].connection.close()
            self.agents[pilot_id] = Agent(self.endpoint, self.ours, self.keys[pilot_id], 1)
            count = self.heard.count((pilot_id, "hello"))
            self.agents[pilot_id].connection.send(hello(pilot_id))
            await until(lambda p=pilot_id, n=count: self.heard.count((p, "hello")) > n, "hello")  # type: ignore[misc]  # mypy: default in lambda

    def misses_agents(self) -> bool:
        return self.server.misses_agents

    def route(self, pilot_id: str) -> bytes:
        return self.server._by_pilot[pilot_id].route

    def sleeps(self, seconds: float) -> None:
        self.boot.now_s += seconds

    def passes(self, seconds: float) -> None:
        """Time in which the loop runs, and nobody says anything."""
        for _ in range(round(seconds / 100.0)):
            self.boot.now_s += 100.0
            self.server._check_silent()


def _wired(boot: Boot, scenario: Callable[[Wire], Awaitable[None]], n_agents: int = 2) -> None:
    async def main() -> None:
        wire = Wire(boot, generate_pair())
        for pilot_id, keys in wire.keys.items():
            wire.server.register(pilot_id, keys.public)
        wire.endpoint = await wire.server.start("127.0.0.1")
        await wire.come(*list(wire.keys)[:n_agents])
        try:
            await scenario(wire)
        finally:
            for agent in wire.agents.values():
                agent.connection.close()
            await wire.server.stop()

    asyncio.run(main())


@pytest.mark.parametrize("first", ["disconnect", "check"])
@pytest.mark.parametrize("n_agents", [1, 2, 3])
def test_connections_that_ended_while_the_daemon_slept_are_no_losses(
    boot: Boot, first: str, n_agents: int
) -> None:
    async def scenario(wire: Wire) -> None:
        wire.sleeps(7200.0)
        if first == "check":
            wire.server._check_silent()
        for pilot_id in list(wire.keys)[:n_agents]:
            wire.server._gone([wire.route(pilot_id)])  # one after the other
        assert wire.lost == []
        assert wire.misses_agents()
        assert not wire.server.send("p1", Heartbeat(pilot_id="p1"))  # type: ignore[arg-type]  # whatever
        await wire.come(*list(wire.keys)[:n_agents])
        assert not wire.misses_agents()
        wire.passes(1800.0)
        assert wire.lost == []

    _wired(boot, scenario, n_agents)


@pytest.mark.parametrize("first", ["disconnect", "check"])
def test_an_agent_that_died_meanwhile_is_found_within_the_timeout(boot: Boot, first: str) -> None:
    async def scenario(wire: Wire) -> None:
        wire.sleeps(7200.0)
        if first == "check":
            wire.server._check_silent()
        for pilot_id in ("p1", "p2", "p3"):
            wire.server._gone([wire.route(pilot_id)])
        await wire.come("p1", "p3")
        wire.passes(1700.0)  # no more heartbeats of the others either, but they are not late
        assert wire.lost == []
        for pilot_id in ("p1", "p3"):
            wire.agents[pilot_id].connection.send(Heartbeat(pilot_id=pilot_id))
            await until(lambda p=pilot_id: (p, "heartbeat") in wire.heard, "a heartbeat")  # type: ignore[misc]  # mypy: default in lambda
        wire.passes(1900.0)  # 3,600 s after waking
        assert wire.lost == [("p2", "silent")]

    _wired(boot, scenario, 3)


def test_who_said_that_he_leaves_has_left_whenever_that_is_read(boot: Boot) -> None:
    async def scenario(wire: Wire) -> None:
        wire.agents["p1"].connection.send(Leaving(pilot_id="p1", reason="signal"))
        await until(lambda: ("p1", "leaving") in wire.heard, "its farewell")
        wire.sleeps(7200.0)
        wire.server._gone([wire.route("p1")])
        assert wire.lost == [("p1", "disconnected")]
        assert not wire.misses_agents()

    _wired(boot, scenario)


def test_one_that_dies_while_the_daemon_is_awake_is_lost_at_once(boot: Boot) -> None:
    async def scenario(wire: Wire) -> None:
        wire.server._gone([wire.route("p1")])
        assert wire.lost == [("p1", "disconnected")]

    _wired(boot, scenario, 3)


def test_most_at_once_are_the_daemons_own_absence(boot: Boot) -> None:
    async def scenario(wire: Wire) -> None:
        wire.server._gone([wire.route("p1"), wire.route("p2")])  # of three
        assert (wire.lost, wire.missed) == ([], 1)
        await wire.come("p1")
        wire.server._gone([wire.route("p3")])  # one alone
        assert wire.lost == [("p3", "disconnected")]

    _wired(boot, scenario, 3)


def test_a_path_that_was_dead_for_long_says_nothing_of_its_agent(boot: Boot) -> None:
    async def scenario(wire: Wire) -> None:
        wire.passes(2200.0)  # more than 0.6 of 3,600 s
        wire.server._gone([wire.route("p1")])
        assert wire.lost == []
        await wire.come("p1")
        assert wire.lost == []

    _wired(boot, scenario, 3)


def test_what_a_connection_said_is_not_read_after_its_end_was_reported(boot: Boot) -> None:
    async def scenario(wire: Wire) -> None:
        router, route = wire.server._router, wire.route("p1")
        wire.sleeps(7200.0)
        router._gone[route] = 0.0
        router._report_gone(1.0)  # as under load, while its frames still wait
        assert wire.misses_agents()
        before = wire.heard.count(("p1", "hello"))
        wire.agents["p1"].connection.send(hello("p1"))
        await until(lambda: wire.server.counts["superseded"], "it is read")
        assert wire.heard.count(("p1", "hello")) == before
        assert wire.misses_agents()
        await wire.come("p1")
        assert not wire.misses_agents()

    _wired(boot, scenario)


# ---- orders to leave -----------------------------------------------------------------------


def test_who_was_told_to_leave_has_his_time_after_a_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    clock = SimpleNamespace(now_s=50.0)

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        clock.now_s += 20.0 if len(waits) == 1 else seconds

    loop = SimpleNamespace(time=lambda: clock.now_s)
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    coroutine: Any = release._let_pass(0.3)
    with pytest.raises(StopIteration):
        coroutine.send(None)
    assert waits == [0.3, 0.3]
    coroutine = release._let_pass(0.3)
    with pytest.raises(StopIteration):
        coroutine.send(None)
    assert waits == [0.3, 0.3, 0.3]


# ---- decisions ---------------------------------------------------------------------------


def test_a_pilot_whose_agent_could_not_connect_meanwhile_is_not_given_up() -> None:
    fold = Fold()
    job = replace(running("j1", "n1"), pilot_id="p-n1", start_s=T0 + 5.0)
    waits = pilot("n1", is_held=False, end_s=T0 + 9999.0)
    fold.decide(snapshot(idle_nodes(2), [job]), [waits], at_s=T0 + 6.0)
    assert fold.memory.agents.started_s == {"p-n1": T0 + 6.0}
    limit_s = fold.memory.agents.limit_s

    def late(at_s: float, slept: Slept) -> set[str]:
        seen, kept = snapshot(idle_nodes(2), [job], at_s=at_s), fold.memory
        plan = fold.decide(seen, [waits], [record()], at_s=at_s, slept=slept)
        fold.memory = kept
        return {r.node for r in plan.releases if r.reason.startswith(DID_NOT_CONNECT)}

    assert late(T0 + 310.0 + limit_s, Slept()) == {"n1"}
    assert late(T0 + 310.0 + limit_s, SLEPT) == set()
    assert late(T0 + 310.5 + limit_s, SLEPT) == {"n1"}


def test_what_was_measured_across_a_sleep_is_not_learnt() -> None:
    memory = Memory(
        agents=AgentPatience(limit_s=60.0, started_s={"p-n1": T0 + 5.0}),
        joining=Joining(since_s={"n1": T0 + 5.0}, warm_up_s=7.0, count=5),
        ends=Ends(
            ending={"n2": Ending(pilot_id="p-n2", asked_s=T0 + 5.0, busy_s=T0 + 9.0)},
            joining={"p-n1": None},
        ),
    )
    job = replace(running("j1", "n1"), pilot_id="p-n1", start_s=T0 + 5.0)

    def learnt(slept: Slept) -> tuple[float, int, int, int]:
        fold = Fold()
        fold.memory = memory
        seen = snapshot(idle_nodes(2), [job], at_s=T0 + 320.0)
        held = pilot("n1", end_s=T0 + 9999.0)
        fold.decide(seen, [held], at_s=T0 + 320.0, training={"n1": "t1"}, slept=slept)
        found = fold.memory
        return (
            found.agents.limit_s, found.joining.count,
            len(found.ends.took_s), len(found.ends.joined_s),
        )  # fmt: skip

    # Three times 315 s, at most 900; one more that joined; one end; one start.
    assert learnt(Slept()) == (900.0, 6, 1, 1)
    assert learnt(SLEPT) == (60.0, 5, 0, 0)


# ---- harm --------------------------------------------------------------------------------


def _taken(slept: Slept) -> Any:
    end = End(pilot_id="p1", node="n1", asked_s=T0, told_s=T0 + 310.2, left_s=T0 + 310.3)
    taker = replace(running("7", "n1"), start_s=T0 + 311.0)
    return hand_over(end, taker, T0 + 312.0, slept)


def test_a_job_that_waited_for_a_sleeping_daemon_waited_and_backing_off_does_not_help() -> None:
    done = _taken(SLEPT)
    assert (done.delay_s, done.slept_s) == (pytest.approx(310.3), 300.0)
    assert slow_part(done) == "The daemon did not run for 300.00 s of these (BFT-1318)."
    # 10 s before the sleep and 0.3 s after are late by themselves; from the sleep's begin on not.
    early, rule = Slept(from_s=T0, until_s=T0 + 310.0), Rule()
    for slept, level in ((Slept(), 1), (SLEPT, 1), (early, 0)):
        state, one = BackOff(), _taken(slept)
        for _ in range(3):
            state = record_hand_overs(state, [one], rule, held_nodes=4, now_s=T0 + 312.0)
        assert state.level == level


def test_a_farewell_that_waited_to_be_read_keeps_its_times() -> None:
    said = Leaving(pilot_id="p1", reason="signal", told_s=T0 + 20.0, left_s=T0 + 20.5)
    assert on_our_clock(said, T0 + 310.5) == (T0 + 310.0, T0 + 310.5)  # its clock must be wrong
    assert on_our_clock(said, T0 + 310.5, 300.0) == (T0 + 20.0, T0 + 20.5)


# ---- announced jobs ----------------------------------------------------------------------


def test_nobody_is_doubted_whose_job_came_and_went_meanwhile(boot: Boot) -> None:
    heard = UnseenAnnouncements(boot)
    job = replace(pending("announced-1", 1), user="bob")
    for is_asleep in (True, False):
        if is_asleep:
            boot.now_s += 300.0
        heard.hear((Announcement(at_s=T0, partition="", job=job),))
        if is_asleep:
            boot.now_s += 0.1
            heard.slept()
        boot.now_s += 1.5  # a poll that would show it
        began = heard.look_begins()
        heard.add_to(snapshot(idle_nodes(2), at_s=T0), began)
        assert not heard.is_unshown
        boot.now_s += 1.0
        heard.hear((Announcement(at_s=T0, partition="", job=job),))
        shown = heard.add_to(snapshot(idle_nodes(2), at_s=T0)).jobs
        assert bool(shown) is is_asleep
        heard._heard.clear()


def test_a_server_that_is_stopped_lets_the_clock_go_on(boot: Boot) -> None:
    """Whoever reads the clock after its owner has ended would wait for ever."""
    wires: list[Wire] = []

    async def scenario(wire: Wire) -> None:
        wires.append(wire)

    _wired(boot, scenario)
    before_s = wires[0].awake()
    boot.now_s += 3600.0
    assert wires[0].awake() - before_s == 3600.0
