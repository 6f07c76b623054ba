"""Fair share: who waits how long at most, and what users get in the long run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from bftrainer.decide.constraints.admission import LOOKS
from bftrainer.decide.decision import decide
from bftrainer.decide.fair_share import TURN
from bftrainer.decide.policies.base import load_policy
from bftrainer.model.canonical import from_plain, to_plain
from bftrainer.model.decision import DecisionInput, Memory, Plan, Settings
from bftrainer.model.fairness import Usage, Used
from bftrainer.model.trainer import TrainerRecord
from milp.problem import Curve
from tests.support.snapshots import T0, idle_nodes, record, snapshot

HALF_LIFE_S = 10_000.0
WHOLE_S = HALF_LIFE_S / math.log(2.0)
POLICY = load_policy("milp")


@dataclass
class World:
    """Nodes that are always idle, and trainers that never end; a node trains at once."""

    n_nodes: int
    trainers: Sequence[TrainerRecord]
    p_jmax: int
    memory: Memory = field(default_factory=Memory)
    half_life_s: float | None = HALF_LIFE_S
    now_s: float = T0
    node_s: Counter[str] = field(default_factory=Counter)  # by user, not decayed
    waits_s: dict[str, float] = field(default_factory=dict)  # by user, the longest
    changes: int = 0

    def run(self, duration_s: float) -> None:
        seen = snapshot(idle_nodes(self.n_nodes))
        users = {one.trainer_id: one.spec.user for one in self.trainers}
        since = dict.fromkeys(users.values(), self.now_s)
        end_s = self.now_s + duration_s
        while self.now_s < end_s:
            plan = self.decide(seen)
            self.changes += dict(plan.assignment) != dict(self.memory.assignment)
            self.memory = plan.memory
            at_s = min(plan.wake_at_s or end_s, end_s)
            for trainer_id, count in Counter(plan.assignment.values()).items():
                self.node_s[users[trainer_id]] += round(count * (at_s - self.now_s))
                user = users[trainer_id]
                self.waits_s[user] = max(self.waits_s.get(user, 0.0), self.now_s - since[user])
                since[user] = at_s
            self.now_s = at_s
        for user, at_s in since.items():
            self.waits_s[user] = max(self.waits_s.get(user, 0.0), self.now_s - at_s)

    def decide(self, seen: object) -> Plan:
        given = DecisionInput(
            now_s=self.now_s,
            snapshot=seen,  # type: ignore[arg-type]  # a snapshot
            is_new_snapshot=True,
            pilots=(),
            trainers=tuple(self.trainers),
            settings=Settings(
                reserve_nodes_per_type=0,
                p_jmax=self.p_jmax,
                fair_share_half_life_s=self.half_life_s,
            ),
            memory=self.memory,
            training=self.memory.assignment,
        )
        return decide(given, POLICY)


def of(user: str, trainer_id: str, *, account: str = "", n_min: int = 1) -> TrainerRecord:
    made = record(trainer_id, n_min=n_min, n_max=max(8, n_min))
    curve = Curve(sizes=(1, 2, 4, 8), samples_per_s=(10.0, 19.0, 34.0, 60.0))
    return replace(made, spec=replace(made.spec, user=user, account=account, curve=curve))


def bound_s(n_users: int) -> float:
    """What docs/design/fair-share.md says; a turn ends at the next look."""
    return HALF_LIFE_S * (1.0 + TURN * n_users + (TURN + 2 * LOOKS) * n_users)


QUICK = settings(deadline=None, phases=[Phase.explicit, Phase.generate])  # shrinking takes minutes


@settings(QUICK, max_examples=4)
@given(st.data())
def test_nobody_waits_longer_than_the_bound(data: st.DataObject) -> None:
    waits_no_longer_than_the_bound(data)


@pytest.mark.long
@settings(QUICK, max_examples=100)
@given(st.data())
def test_nobody_of_many_waits_longer_than_the_bound(data: st.DataObject) -> None:
    waits_no_longer_than_the_bound(data)


def waits_no_longer_than_the_bound(data: st.DataObject) -> None:
    n_accounts = data.draw(st.integers(1, 3), label="accounts")
    per_account = data.draw(st.integers(1, 3), label="users of an account")
    n_nodes = data.draw(st.integers(2, 4), label="nodes")
    p_jmax = data.draw(st.integers(1, 3), label="p_jmax")
    trainers: list[TrainerRecord] = []
    usage: dict[str, dict[str, Used]] = {}
    for a in range(n_accounts):
        own = {}
        for u in range(per_account):
            user = f"u{a}.{u}"
            own[user] = Used(amount=data.draw(st.floats(0.0, 4.0)) * WHOLE_S, at_s=T0)
            for _ in range(data.draw(st.integers(1, 4), label=user)):
                n_min = data.draw(st.sampled_from([1, 1, n_nodes]))
                name = f"t{len(trainers) + 1}"
                trainers.append(of(user, name, account=f"a{a}", n_min=n_min))
        usage[f"a{a}"] = own
    trainers = data.draw(st.permutations(trainers), label="order of submission")
    busy = Used(amount=WHOLE_S, at_s=T0)
    memory = Memory(usage=Usage(at_s=T0, node_s=usage, busy_s=busy))
    world = World(n_nodes, trainers, p_jmax, memory)
    limit_s = bound_s(n_accounts * per_account)
    world.run(2.5 * limit_s)
    assert max(world.waits_s.values()) <= limit_s


@pytest.mark.parametrize("p_jmax", [1, pytest.param(2, marks=pytest.mark.long)])
def test_in_the_long_run_users_get_the_same_whatever_they_submit(p_jmax: int) -> None:
    trainers = [of("ann", f"t{j}") for j in range(1, 21)]
    trainers += [of(user, f"t{j}") for j, user in enumerate(["bob", "cat"], start=21)]
    first = World(4, trainers, p_jmax, half_life_s=None)
    first.run(4 * HALF_LIFE_S)
    assert set(first.node_s) == {"ann"}  # first come, first served
    world = World(4, trainers, p_jmax)
    world.run(20 * HALF_LIFE_S)
    assert min(world.node_s.values()) > 0.75 * max(world.node_s.values())
    assert len(world.node_s) == 3
    assert world.changes < 20 * 8  # turns, not a change at each of 1000 looks


def test_accounts_come_before_users() -> None:
    trainers = [of(f"u{j}", f"t{j}", account="x") for j in range(1, 5)]
    trainers.append(of("alone", "t9", account="y"))
    world = World(4, trainers, 1)
    world.run(25 * HALF_LIFE_S)
    shares = {user: used / sum(world.node_s.values()) for user, used in world.node_s.items()}
    assert shares["alone"] == pytest.approx(0.5, abs=0.1)
    assert all(shares[f"u{j}"] == pytest.approx(0.125, abs=0.05) for j in range(1, 5))


def test_usage_decays_and_is_forgotten_where_there_is_no_fair_share() -> None:
    world = World(2, [of("ann", "t1")], 1)
    world.run(HALF_LIFE_S)
    world.run(1.0)
    used = world.memory.usage.node_s[""]["ann"]
    assert used.now(used.at_s, HALF_LIFE_S) <= 2 * HALF_LIFE_S
    later = used.now(used.at_s + 2 * HALF_LIFE_S, HALF_LIFE_S)
    assert later == pytest.approx(used.amount / 4)
    assert from_plain(to_plain(world.memory), Memory) == world.memory
    world.half_life_s = None
    world.run(1.0)
    assert world.memory.usage == Usage()
