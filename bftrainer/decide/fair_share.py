"""The order in which trainers are admitted: fair share with a half-life. Pure.

``observe`` (an estimator of ``observation``) counts the node-seconds of each user, which halve
every half-life. ``Line`` orders trainers: the account that used least, in it the user who used
least, of their trainers the first submitted. Each admitted trainer is charged to its user as if it
went on for ever on the usual number of nodes, so that another user is next, also among trainers
admitted at once. A trainer that trains is ahead by ``SLACK`` of a charge, because a change costs a
rescale. Users who have waited too long come first, for a turn each (docs/design/fair-share.md).
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeAlias

from bftrainer.model.census import census_of
from bftrainer.model.cluster import PART_MARK
from bftrainer.model.decision import DecisionInput, Memory
from bftrainer.model.fairness import Usage, Used, Wait
from bftrainer.model.parts import share_of_host
from bftrainer.model.trainer import TrainerRecord, TrainerSpec
from milp.portable import LN2, exp2
from milp.problem import ProblemTrainer

SLACK = 0.1
TURN = 0.3  # of a half-life: how long a user that takes over stays, by SLACK or by a wait
LEAST = 1.0  # node-seconds; less is forgotten

Who: TypeAlias = tuple[str, str]  # account, user


def observe(memory: Memory, given: DecisionInput) -> Memory:
    """Count what was used since the last decision, by the nodes that train now, and note waits."""
    half_life_s, usage = given.settings.fair_share_half_life_s, memory.usage
    if half_life_s is None:
        if usage.at_s is None:
            return memory
        return replace(memory, usage=Usage())
    owner_of = {record.trainer_id: _whose(record.spec) for record in given.trainers}
    by_name = census_of(given.snapshot).by_name
    trains: dict[Who, float] = {}
    for name, trainer_id in given.training.items():
        owner = owner_of.get(trainer_id)
        if owner is not None:
            share = 1.0
            if PART_MARK in name and name in by_name:
                share = share_of_host(by_name[name])
            trains[owner] = trains.get(owner, 0.0) + share
    usage = _counted(usage, trains, half_life_s, given.now_s)
    waits = _waits(usage, set(owner_of.values()), trains.keys(), half_life_s, given.now_s)
    return replace(memory, usage=replace(usage, at_s=given.now_s, waits=waits))


def _counted(usage: Usage, trains: Mapping[Who, float], half_life_s: float, now_s: float) -> Usage:
    elapsed_s = 0.0
    if usage.at_s is not None:
        elapsed_s = max(0.0, now_s - usage.at_s)
    if not (trains and elapsed_s):
        return usage
    # The integral of the decay over the time since.
    earned_s = half_life_s / LN2 * (1.0 - exp2(-elapsed_s / half_life_s))

    def grown(before_use: Used | None, count: float) -> Used:
        before_node_s = 0.0
        if before_use is not None:
            before_node_s = before_use.now(now_s, half_life_s)
        return Used(amount=before_node_s + count * earned_s, at_s=now_s)

    node_s: dict[str, dict[str, Used]] = {}
    for account, by_user in usage.node_s.items():
        for user, use in by_user.items():
            if use.now(now_s, half_life_s) >= LEAST:
                node_s.setdefault(account, {})[user] = use
    for (account, user), count in trains.items():
        by_user = node_s.setdefault(account, {})
        by_user[user] = grown(by_user.get(user), count)
    return replace(usage, node_s=node_s, busy_s=grown(usage.busy_s, 1))


def _waits(
    usage: Usage,
    users: AbstractSet[Who],
    trains: AbstractSet[Who],
    half_life_s: float,
    now_s: float,
) -> Mapping[str, Mapping[str, Wait]]:
    """Return the users that wait, and those whose turn lasts."""
    waits_by_account: dict[str, dict[str, Wait]] = {}
    for account, user in sorted(users):
        wait = usage.waits.get(account, {}).get(user)
        in_turn = wait is not None and wait.turn_ends_s is not None and now_s < wait.turn_ends_s
        if (account, user) not in trains:
            is_new = wait is None or (wait.turn_ends_s is not None and not in_turn)
            if is_new:
                wait = Wait(since_s=now_s)
        elif wait is not None and is_overdue(wait, len(users), half_life_s, now_s):
            wait = replace(wait, turn_ends_s=now_s + TURN * half_life_s)
        elif not in_turn:
            wait = None
        if wait is not None:
            waits_by_account.setdefault(account, {})[user] = wait
    return waits_by_account


def is_overdue(wait: Wait, n_users: int, half_life_s: float, now_s: float) -> bool:
    """Return whether a user has waited longer than fair share lets users wait as a rule."""
    waited_s = now_s - wait.since_s
    return wait.turn_ends_s is None and waited_s >= patience_s(n_users, half_life_s)


def patience_s(n_users: int, half_life_s: float) -> float:
    """Return after how many seconds without nodes a user comes first."""
    return half_life_s * (1.0 + TURN * n_users)


def used_now(usage: Usage, half_life_s: float, now_s: float) -> dict[str, dict[str, float]]:
    """Return the decayed node-seconds by account and user."""
    node_s: dict[str, dict[str, float]] = {}
    for account, by_user in usage.node_s.items():
        node_s[account] = {}
        for user, use in by_user.items():
            node_s[account][user] = use.now(now_s, half_life_s)
    return node_s


def _whose(spec: TrainerSpec) -> Who:
    return spec.account, spec.user


@dataclass(slots=True, kw_only=True)
class _Party:
    """A user in line, or an account."""

    node_s: float  # that it has used, decayed, with what its trainers of this decision are charged
    count: int = 0  # of these


class Line:
    """Trainers of a decision in the order in which they are offered nodes."""

    def __init__(
        self,
        trainers: Iterable[ProblemTrainer],
        records: Mapping[str, TrainerRecord],
        usage: Usage,
        *,
        half_life_s: float,
        now_s: float,
        slots: int,
    ) -> None:
        """Line the trainers up.

        Args:
            trainers: to be ordered, in order of submission.
            records: of all trainers.
            usage: as of this decision.
            half_life_s: of the usage.
            now_s: the present time.
            slots: how many may be admitted.
        """
        self._records = records
        self._whole_s = half_life_s / LN2  # what a node for ever adds up to
        amounts = used_now(usage, half_life_s, now_s)
        busy_s = usage.busy_s.now(now_s, half_life_s)
        total = math.fsum(chain.from_iterable([by_user.values() for by_user in amounts.values()]))
        nodes = 0.0  # that trained, on average
        if busy_s >= LEAST:
            nodes = total / busy_s
        self._usual = nodes / max(1, slots) * self._whole_s
        # By account, and by account and user.
        self._parties = defaultdict[tuple[str, ...], _Party](lambda: _Party(node_s=0.0))
        for account, by_user in amounts.items():
            self._parties[account,] = _Party(node_s=math.fsum(by_user.values()))
            for user, amount in by_user.items():
                self._parties[account, user] = _Party(node_s=amount)
        self._waiting: dict[str, dict[str, deque[ProblemTrainer]]] = {}  # account -> user
        for trainer in trainers:
            account, user = _whose(records[trainer.trainer_id].spec)
            self._waiting.setdefault(account, {}).setdefault(user, deque()).append(trainer)
        users = set[Who]()
        for record in records.values():
            users.add(_whose(record.spec))
        self._first_of_all = _overdue(usage, len(users), half_life_s, now_s)

    def next(self) -> ProblemTrainer | None:
        """Take the next trainer out of the line; None: there is none."""
        if not self._waiting:
            return None
        account, user = self._next_user()
        users = self._waiting[account]
        trainer = users[user].popleft()
        if not users[user]:
            del users[user]
        if not users:
            del self._waiting[account]
        return trainer

    def _next_user(self) -> Who:
        while self._first_of_all:
            account, user = self._first_of_all[0]
            if user in self._waiting.get(account, {}):
                return account, user
            del self._first_of_all[0]
        account = min(self._waiting, key=self._place_of_account)
        return account, self._first(account)

    def charge(self, trainer_id: str, n_min: int) -> Who:
        """Charge a trainer that takes part; return the account and user that are charged."""
        account, user = _whose(self._records[trainer_id].spec)
        if (account, user) in self._first_of_all:  # one of their trainers is enough
            self._first_of_all.remove((account, user))
        for party in (self._parties[account,], self._parties[account, user]):
            party.node_s += self._charge(n_min)
            party.count += 1
        return account, user

    def _place_of_account(self, account: str) -> tuple[float, int]:
        trainer = self._waiting[account][self._first(account)][0]
        return self._place(self._parties[account,], trainer)

    def _first(self, account: str) -> str:
        """Return the user of an account that is next."""
        users = self._waiting[account]
        return min(
            users, key=lambda user: self._place(self._parties[account, user], users[user][0])
        )

    def _place(self, party: _Party, trainer: ProblemTrainer) -> tuple[float, int]:
        """Return the place of a party with its next trainer; the least is first."""
        ahead = 0.0
        if trainer.current:
            ahead = SLACK * self._charge(trainer.n_min)
        return party.node_s - ahead, party.count

    def _charge(self, n_min: int) -> float:
        return max(self._usual, n_min * self._whole_s)


def _overdue(usage: Usage, n_users: int, half_life_s: float, now_s: float) -> list[Who]:
    """Return the users that come first: those whose turn lasts, then those that waited too long."""
    places: list[tuple[bool, float, Who]] = []
    for account, by_user in usage.waits.items():
        for user, wait in by_user.items():
            is_in_turn = wait.turn_ends_s is not None
            if is_in_turn or is_overdue(wait, n_users, half_life_s, now_s):
                places.append((not is_in_turn, wait.since_s, (account, user)))
    return [owner for _, _, owner in sorted(places)]
