"""Finds the members that this node cannot connect to while one of its workers makes no progress.

A generation trains only if all its members hear each other, and only they can notice a fault of a
packet filter, a route or a cable between two of them: both reach the daemon. A team that makes no
step for longer than usual has its agent connect to the agents of its rosters; those that neither
accept nor refuse are reported (``protocol.Unreachable``), again while they stay so, and once more
when they do not. Connections are TCP's, so one direction suffices to tell that the other works, and
the back end (gloo, NCCL, MPI) does not matter. ``Search`` decides; ``ReachSearches`` connects.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from bftrainer.fleet.wire.messages import WorkerSaid
from bftrainer.fleet.wire.peers import knock
from bftrainer.ground import protocol
from bftrainer.ground.protocol import Member
from trainers.agent.team import Team

LOOK_S = 0.25
LEAST_S = 2.0  # without a step, ...
STEPS = 3.0  # ... or so many steps
# Two attempts: Linux sends a SYN again after 1 s (tcp(7), RFC 6298).
CONNECT_S = 2.0
# Those that cannot be reached are asked often and briefly: a new SYN soon after the way is mended.
AGAIN_CONNECT_S = 0.5
AGAIN_S = 0.25
REPORT_S = 3.0  # between two reports that say the same
MOST_S = 30.0  # between two looks at all, if a step takes long: doubled from LEAST_S
KEPT_S = 60.0  # what was found for a trainer, after its last team here: it may be starting again
AT_ONCE = 128
_NO_WAY = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ETIMEDOUT})


@dataclass(slots=True)
class Search:
    """The members of a trainer's rosters to look for, and those not found. No I/O."""

    silent: dict[str, Member] = field(default_factory=dict)  # by endpoint of the agent
    next_s: float = 0.0
    pause_s: float = LEAST_S
    seen_s: float = 0.0  # when a team was here
    told_s: float = 0.0  # when this was reported last

    def due(
        self, members: Mapping[str, Member], *, still_s: float, step_s: float, now_s: float
    ) -> Mapping[str, Member]:
        """Return the members of the team's rosters, by their agents' endpoints, to connect to now.

        ``still_s``: since the team last got on. ``step_s``: that a step takes; 0: not known.
        """
        is_still = still_s > max(LEAST_S, STEPS * step_s)
        if not is_still:
            self.pause_s = LEAST_S
            if not self.silent:
                self.next_s = now_s
        if now_s < self.next_s:
            return {}
        if is_still:
            return {**self.silent, **members}
        return self.silent

    def found(self, asked: Mapping[str, Member], silent: Collection[str], now_s: float) -> bool:
        """Record who answered; return whether that is to be reported."""
        before = self.silent
        after = dict(before)
        for endpoint, member in asked.items():
            after.pop(endpoint, None)
            if endpoint in silent:
                after[endpoint] = member
        self.silent = after
        if self.silent:
            self.pause_s = AGAIN_S
        else:
            self.pause_s = min(MOST_S, 2.0 * max(LEAST_S, self.pause_s))
        self.next_s = now_s + self.pause_s
        if before.keys() == self.silent.keys() and (
            not self.silent or now_s < self.told_s + REPORT_S
        ):
            return False
        self.told_s = now_s
        return True


class ReachSearches:
    """The searches of an agent, one for each trainer."""

    def __init__(
        self, teams: Callable[[], Collection[Team]], report: Callable[[WorkerSaid], None]
    ) -> None:
        self._teams, self._report = teams, report
        self._searches: dict[str, Search] = {}
        self._at_work: dict[str, asyncio.Task[None]] = {}
        self._limit = asyncio.Semaphore(AT_ONCE)

    def silent(self, trainer_id: str) -> frozenset[str]:
        """Return the endpoints of a trainer's agents that this node cannot connect to."""
        search = self._searches.get(trainer_id)
        if search is None:
            return frozenset()
        return frozenset(search.silent)

    def start(self) -> None:
        """Begin to look, again and again."""
        now_s = time.monotonic()
        for team in self._teams():
            self._searches.setdefault(team.trainer_id, Search()).seen_s = now_s
            if team.trainer_id not in self._at_work:
                self._look(team, now_s)
        for trainer_id, search in list(self._searches.items()):
            if now_s - search.seen_s >= KEPT_S:
                del self._searches[trainer_id]
        asyncio.get_running_loop().call_later(LOOK_S, self.start)

    def _look(self, team: Team, now_s: float) -> None:
        search = self._searches[team.trainer_id]
        members = {m.agent_endpoint: m for m in team.others() if m.agent_endpoint}
        still_s = now_s - team.moved_s
        due = search.due(members, still_s=still_s, step_s=team.step_s, now_s=now_s)
        if due:
            task = asyncio.get_running_loop().create_task(self._connect(team, search, due))
            self._at_work[team.trainer_id] = task
            task.add_done_callback(lambda _task: self._at_work.pop(team.trainer_id))

    async def _connect(self, team: Team, search: Search, members: Mapping[str, Member]) -> None:
        limits_s = [AGAIN_CONNECT_S if e in search.silent else CONNECT_S for e in members]
        answers = await asyncio.gather(*map(self._reaches, members, limits_s))
        silent = [e for e, is_reached in zip(members, answers, strict=True) if not is_reached]
        if search.found(members, silent, time.monotonic()):
            places = sorted((m.node, endpoint) for endpoint, m in search.silent.items())
            nodes, endpoints = zip(*places, strict=True) if places else ((), ())
            body = protocol.to_body(protocol.Unreachable(nodes=nodes, agents=endpoints))
            self._report(WorkerSaid(worker_id=team.worker_id, body=body))

    async def _reaches(self, endpoint: str, timeout_s: float) -> bool:
        async with self._limit:
            return await reaches(endpoint, timeout_s)


async def reaches(endpoint: str, timeout_s: float) -> bool:
    """Return whether an endpoint's host answers (accepts or refuses); True after local faults."""
    problem = await knock(endpoint, timeout_s)
    is_silent = isinstance(problem, TimeoutError)
    return not (is_silent or (isinstance(problem, OSError) and problem.errno in _NO_WAY))
