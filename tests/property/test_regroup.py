"""Losses while the daemon is dead, cut off or just back, in any order of messages.

At every moment at most one generation trains; once nothing goes wrong any more, the
trainer trains or is parked; a daemon that returns brings it to all its nodes.
"""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from milp.problem import largest_size
from tests.support.examples import examples
from tests.support.orphan_model import Orphans, drain, one

EVENTS = (
    "work", "work", "work", "train", "wait", "worker dies", "agent dies", "daemon dies",
    "daemon dies", "daemon returns", "cut", "heal", "lose a question", "new node", "split",
)  # fmt: skip
ROUNDS = 600


def _apply(world: Orphans, event: str, rng: random.Random) -> None:
    """Something happens, to whomever the draw says."""

    def pick(n: int) -> int:
        return rng.randrange(n)

    workers, pilots = sorted(world.workers), sorted(world.agents)
    match event:
        case "work":
            for _ in range(rng.randint(1, 12)):
                one(world, pick)
        case "train" if workers:
            world.train(workers[pick(len(workers))])
        case "wait":
            world.tick(rng.choice([0.1, 0.4, 7.0]))
        case "worker dies" if workers:
            world.die(workers[pick(len(workers))], -9)
        case "agent dies" if pilots:
            world.end_agent(pilots[pick(len(pilots))])
        case "lose a question" if world.questions:
            world.arrive(world.questions[pick(len(world.questions))], is_lost=True)
        case _:
            _apply_above(world, event, rng, pilots)


def _apply_above(world: Orphans, event: str, rng: random.Random, pilots: list[str]) -> None:
    """Something happens to the daemon, the network or the pool."""
    match event:
        case "daemon dies":
            for pilot_id in pilots:  # what it had sent arrives: see docs/adr/0010
                while world.channels[pilot_id].to_agent:
                    world.deliver_to_agent(pilot_id)
            world.kill_daemon()
        case "daemon returns" if world.machine is None and not world.cut:
            world.start_daemon()
        case "cut" if pilots and not world.cut:
            world.cut_off({p for p in pilots if rng.random() < 0.4})
        case "split" if not world.cut:
            _apply_above(world, "daemon dies", rng, pilots)
            world.cut_off({p for p in pilots if rng.random() < 0.5})
            drain(world, rng.randrange, rounds=60, is_done=lambda: len(world.live()) > 1)
        case "heal":
            world.heal()
        case "new node" if len(pilots) < 4 and world.machine is not None:
            world.open_agent(f"n{len(pilots) + 1}x{rng.randrange(1000)}")
            world.retarget()


@settings(max_examples=examples(150), deadline=None)
@given(
    n_min=st.sampled_from([1, 1, 2]),
    sizes=st.sampled_from([(), (), (1, 2, 4), (2, 3)]),
    nodes=st.integers(1, 4),
    events=st.lists(st.sampled_from(EVENTS), max_size=40),
    seed=st.integers(0, 2**32),
)
def test_at_most_one_generation_trains_and_none_is_stuck(
    n_min: int, sizes: tuple[int, ...], nodes: int, events: list[str], seed: int
) -> None:
    rng = random.Random(seed)  # noqa: S311 - a test's schedule
    world = Orphans(n_min=n_min, sizes=sizes)
    for number in range(nodes):
        world.open_agent(f"n{number}")
    world.start_daemon()
    drain(world, rng.randrange, rounds=60, is_done=lambda: bool(world.live()))
    for event in events:
        _apply(world, event, rng)
        live = world.live()
        assert len(live) <= 1, [c.generation for c in live]
        assert not sizes or all(len(c.members) in sizes for c in live)
    _assert_settles(world, rng)


def _assert_settles(world: Orphans, rng: random.Random) -> None:
    """Nothing goes wrong any more: first without a daemon, then with one."""
    world.heal()
    world.kill_daemon()
    may_move = not any(a.is_written_off for a in world.agents.values())

    def is_settled() -> bool:
        in_groups = [w for w in world.workers.values() if w.group or w.forming]
        stuck = [w for a in world.agents.values() for w in world._standings(a) if w.is_stuck]
        # Who was on the smaller side of a cut waits for a daemon.
        return bool(world.live()) or not (stuck or world.questions or in_groups)

    drain(world, rng.randrange, rounds=ROUNDS, is_done=is_settled)
    assert len(world.live()) <= 1
    assert is_settled() or not may_move, "stuck without a daemon"
    world.start_daemon()
    machine = world.machine
    assert machine is not None
    goal = largest_size(len(world.agents), world.n_min, 4, world.sizes)

    def is_complete() -> bool:
        if not goal:
            return not world.live() and machine.forming is None
        return machine.forming is None and len(machine.crew.members) == goal and bool(world.live())

    drain(world, rng.randrange, rounds=3 * ROUNDS, is_done=is_complete)
    assert is_complete(), (machine.crew.members, machine.forming, world.workers)
    assert len(world.live()) <= 1
