"""Hosts that have room for a need, beside a sort of all of them; how much is looked at."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from functools import partial

import pytest

from bftrainer.decide.giveback_parts import RankedHosts
from bftrainer.decide.host_rooms import HostAmount, HostRoom, LentPart, RoomNeed
from tests.support.gpu_hosts import part

NEED = RoomNeed(cpus=8, memory_mb=1000, gpus=2)


def room(h: int, *, n_free: int, tiers: list[int]) -> HostRoom:
    name = f"h{h:04}"
    lent = [
        LentPart(part=part(f"{name}/{i}"), tier=tier, pilot_id=f"p{h}-{i}")
        for i, tier in enumerate(tiers)
    ]
    free = HostAmount(cpus=64, memory_mb=64_000, gpus={"gpu:a100": n_free})
    return HostRoom(name=name, bit=1 << h, free=free, lent=lent)


def by_sorting(rooms: list[HostRoom], among: int, count: int) -> list[tuple[str, list[str]]]:
    """Return the cheapest hosts and what is released there; [] if there are fewer."""
    rows = []
    for own in rooms:
        victims = own.victims(NEED)
        if victims is None or not own.bit & among:
            continue
        n_others = len([lent for lent in victims if lent.tier == 4])
        n_trainers = len([lent for lent in victims if lent.tier == 3])
        cost = n_others, n_trainers, len(victims)
        rows.append((cost, own.free.n_gpus(), own.name, [lent.part.name for lent in victims]))
    rows.sort()
    return [(name, names) for *_, name, names in rows[:count]] if len(rows) >= count else []


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_the_cheapest_hosts_are_those_of_a_sort(first: int) -> None:
    for seed in range(first, first + 50):
        chance = random.Random(seed)  # noqa: S311
        rooms = []
        for h in range(chance.randint(1, 20)):
            tiers = [chance.randrange(5) for _ in range(chance.randrange(4))]
            rooms.append(room(h, n_free=chance.randrange(3), tiers=tiers))
        candidates, changed = RankedHosts(NEED, rooms), list[HostRoom]()
        for _ in range(12):
            among, count = chance.getrandbits(len(rooms)), chance.randint(1, 3)
            best = candidates.best(among, count)
            told = [(one.room.name, [lent.part.name for lent in one.released]) for one in best]
            assert told == by_sorting(rooms, among, count), seed
            for one in best[: chance.randrange(3)]:
                one.room.place(NEED, one.released)
                changed.append(one.room)
            candidates.update(changed)


def n_calls(work: Callable[[], object]) -> int:
    """Return how many functions are called, those written in C, too."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_a_job_for_which_no_host_is_left_costs_as_much_on_many_hosts_as_on_few() -> None:
    counts = []
    for n_hosts in (50, 200):
        rooms = [room(h, n_free=2, tiers=[3]) for h in range(n_hosts)]
        candidates = RankedHosts(NEED, rooms)
        kept_off = 1 << n_hosts
        counts.append(n_calls(partial(candidates.best, kept_off, 1)))
        counts.append(n_calls(partial(candidates.best, 7, 4)))
    assert counts[:2] == counts[2:]
