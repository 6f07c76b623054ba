"""Units that trainers of one kind share out, beside a plain search for the best switch."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from milp.hosts import FreeHost, UnitKind
from milp.placement.packing import pack
from milp.placement.unit_shares import UnitLot, UnitTaker, share_out
from milp.problem import ProblemNode


def by_search(
    takers: Sequence[UnitTaker], lots: Sequence[UnitLot], nodes: Mapping[str, ProblemNode]
) -> dict[str, str]:
    """Share out unit by unit; every switch and host is looked at each time."""
    if len(takers) == 1:
        return {name: takers[0].trainer_id for lot in lots for name in lot.names}
    units: dict[tuple[str, str], list[UnitLot]] = {}  # by switch and host
    for lot in lots:
        node = nodes[lot.names[0]]
        units.setdefault((node.switch, node.host), []).append(lot)
    stacks = {
        place: [
            lot.names[at : at + lot.width]
            for lot in reversed(own)
            for at in range(0, len(lot.names), lot.width)
        ]
        for place, own in units.items()
    }
    # Of hosts with equally many the one that came to have so many last, the first by name.
    order = {place: -rank for rank, place in enumerate(sorted(stacks))}
    clock = len(order)
    assignment: dict[str, str] = {}

    def take(place: tuple[str, str], need: int, trainer_id: str) -> int:
        nonlocal clock
        taken, stacks[place] = stacks[place][:need], stacks[place][need:]
        for unit in taken:
            assignment.update(dict.fromkeys(unit, trainer_id))
        clock += 1
        order[place] = clock
        return len(taken)

    def fill(switch: str, need: int, trainer_id: str) -> int:
        n_taken = 0
        while n_taken < need:
            places = [place for place, own in stacks.items() if place[0] == switch and own]
            if not places:
                break
            enough = [place for place in places if len(stacks[place]) >= need - n_taken]
            count = (
                min([len(stacks[place]) for place in enough])
                if enough
                else max([len(stacks[place]) for place in places])
            )
            alike = [place for place in places if len(stacks[place]) == count]
            n_taken += take(max(alike, key=order.__getitem__), need - n_taken, trainer_id)
        return n_taken

    for taker in sorted(takers, key=lambda taker: (-taker.need, taker.trainer_id)):
        missing = taker.need
        for place in sorted(stacks, key=lambda place: place[1]):
            if place[1] in taker.hosts and stacks[place] and missing:
                missing -= take(place, missing, taker.trainer_id)
        switches = {switch for switch, _ in stacks}
        for switch in sorted(taker.switches & switches):
            missing -= fill(switch, missing, taker.trainer_id)
        while missing:
            totals = dict.fromkeys(switches, 0)
            for (switch, _), own in stacks.items():
                totals[switch] += len(own)
            best = min(
                [
                    (total < missing, total if total >= missing else -total, switch)
                    for switch, total in totals.items()
                    if total
                ]
            )
            missing -= fill(best[-1], missing, taker.trainer_id)
    return assignment


def drawn(seed: int) -> tuple[list[UnitTaker], list[UnitLot], dict[str, ProblemNode]]:
    chance = random.Random(seed)  # noqa: S311
    width, nodes, lots = chance.choice([1, 1, 2, 4]), dict[str, ProblemNode](), list[UnitLot]()
    for h in range(chance.randint(1, 24)):
        host = f"h{chance.randrange(100):02}-{h}"
        switch = f"s{chance.randrange(5)}"
        at = 0
        for _ in range(chance.randint(1, 3)):
            names = [f"{host}/{at + i}" for i in range(width * chance.randint(1, 3))]
            at += len(names)
            lots.append(UnitLot(names, width))
            for name in names:
                nodes[name] = ProblemNode(name=name, host=host, switch=switch, host_width=64)
    left = sum([len(lot.names) for lot in lots]) // width
    hosts = sorted({node.host for node in nodes.values()})
    takers: list[UnitTaker] = []
    while left and len(takers) < 8:
        need = chance.randint(1, left)
        left -= need
        own = set(chance.sample(hosts, min(len(hosts), chance.randrange(4)))) | {"elsewhere"}
        switches = {f"s{chance.randrange(7)}" for _ in range(chance.randrange(3))}
        name = f"t{len(takers)}"
        takers.append(UnitTaker(trainer_id=name, need=need, hosts=own, switches=switches))
    return takers, lots, nodes


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_units_are_shared_out_as_by_a_plain_search(first: int) -> None:
    for seed in range(first, first + 100):
        takers, lots, nodes = drawn(seed)
        assignment: dict[str, str] = {}
        share_out(takers, lots, nodes, assignment)
        needed = sum([taker.need for taker in takers]) * lots[0].width
        if len(takers) > 1:
            assert len(assignment) == needed
        assert assignment == by_search(takers, lots, nodes), seed


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_hosts_are_chosen_in_the_order_of_the_wishes(first: int) -> None:
    for seed in range(first, first + 100):
        chance = random.Random(seed)  # noqa: S311
        free: list[FreeHost] = []
        for h in range(chance.randint(1, 20)):
            names = [f"h{h}/{i}" for i in range(chance.randint(1, 8))]
            free.append(FreeHost(f"h{h}", "a", 8, names))
        remaining_s = [chance.choice([1.0, 2.0, float("inf")]) for _ in free]
        width = chance.choice([1, 1, 2, 4, 0])
        kind, liked = UnitKind("a", width), {f"h{h}" for h in range(0, 20, 3)}
        order = sorted(
            range(len(free)),
            key=lambda i: (
                len(free[i].names) == 8,
                len(free[i].names),
                free[i].host not in liked,
                -remaining_s[i],
                i,
            ),
        )
        there = [(i, len(free[i].names) // (width or 8)) for i in order]
        missing = wanted = chance.randint(0, sum([count for _, count in there]))
        expected: list[tuple[int, int]] = []
        for i, count in there:
            if missing and count:
                expected.append((i, min(count, missing)))
                missing -= min(count, missing)
        assert pack(free, {kind: wanted}, {kind: liked}, remaining_s) == {kind: expected}, seed
