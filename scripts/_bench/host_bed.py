"""A trainer on hosts that meets troubles: what its workers recorded and what Slurm showed.

Only what any product of this kind shows is looked at: records of updates, ``status --json``,
squeue. Called by ``bench_hosts``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from _bench.host_troubles import Trouble
from _bench.waiting import BenchError, wait_until
from tests.support.hosts import Cluster, Plan
from tests.support.hosts.own_daemon import OwnDaemon, Update, updates, uses

N_NODES: Final = 3
# Slurm ends the jobs of a node that was silent for so long: its default, longer than our cuts.
PLAN: Final = Plan(n_nodes=N_NODES, slurm=("SlurmdTimeout=300",))
PARTITION: Final = "scavenge"
SAMPLE_S: Final = 0.008
PATIENCE_S: Final = 300.0  # until it trains on all nodes
BACK_S: Final = 120.0  # after a trouble, until it does again
PAUSE_S: Final = 2.0  # without an update: it has stopped
AFTER_S: Final = 20.0  # watched beyond that: the daemon's next look at Slurm is within 15 s


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one trouble did; seconds."""

    stopped_s: float  # longest time between two updates
    full_s: float | None  # from its end until it is at full size to stay; None: not within BACK_S
    pilots_ended: int
    said: str  # by ``status``, at its end


class Bed:
    """A daemon and a trainer of all nodes."""

    def __init__(self, cluster: Cluster, daemon: OwnDaemon) -> None:
        self.cluster, self.daemon = cluster, daemon
        self.trainer = ""

    @classmethod
    @contextlib.contextmanager
    def open(cls, *, trains: bool = True) -> Iterator[Bed]:
        """Start everything, and let it train at full size."""
        with Cluster(PLAN) as cluster, OwnDaemon(cluster) as daemon:
            bed = cls(cluster, daemon)
            if trains:
                bed.start()
            yield bed

    def start(self) -> None:
        """Let it train at full size."""
        self.daemon.does("up", "--partition", PARTITION)
        self.trainer = self.daemon.submit_train(f"1:{N_NODES}", sample_s=SAMPLE_S)
        self.settle()

    def updates(self) -> list[Update]:
        """Return all updates so far."""
        return updates(self.daemon.records())

    def settle(self) -> None:
        """Wait until it has trained at full size for a while.

        Raises:
            BenchError: it does not.
        """

        def calm() -> bool:
            recent = [one for one in self.updates() if one.at_s > time.time() - 3.0]
            return len(recent) > 10 and {one.size for one in recent} == {N_NODES}

        wait_until(calm, "full size", patience_s=PATIENCE_S, interval_s=0.3)

    def meet(self, trouble: Trouble) -> Seen:
        """Make a trouble, end it, and see what it did."""
        self.settle()
        pilots, began_s = self._pilots(), time.time()
        trouble.make(self.cluster)
        time.sleep(max(0.0, began_s + trouble.hold_s - time.time()))
        said, ended_s, back_s = self._said(), time.time(), None
        if trouble.undo is not None:
            trouble.undo(self.cluster)

            def is_back_to_stay() -> bool:
                since_s = whole_since(self.updates(), ended_s)
                return since_s is not None and time.time() - since_s > AFTER_S

            with contextlib.suppress(BenchError):
                wait_until(
                    is_back_to_stay, "full size", patience_s=BACK_S + AFTER_S, interval_s=0.3
                )
            back_s = whole_since(self.updates(), ended_s)
        return Seen(
            stopped_s=longest_gap(self.updates(), began_s, time.time()),
            full_s=None if back_s is None else back_s - ended_s,
            pilots_ended=len(pilots - self._pilots()),
            said=said,
        )

    def _pilots(self) -> set[str]:
        """Return Slurm's jobs that run in the pilots' partition."""
        return set(self.cluster.does("ctl", "squeue", "-h", "-p", PARTITION, "-tR", "-o%i").split())

    def _said(self) -> str:
        found = self.daemon.trainer(self.trainer)
        if not found:
            return "no answer"
        record = found["record"]
        more = f", {found['trouble'].partition(':')[0]}" if found.get("trouble") else ""
        return f"{record['state']} at {record['progress']['size']}{more}"

    def not_once(self) -> int:
        """End the daemon, and return how many epochs used a sample twice or left one out."""
        self.daemon.says("down")
        found = uses(self.daemon.records())
        cut_short = [use for use in found[:-1] if use.used != use.of]
        return len({use.epoch for use in (*cut_short, *(u for u in found if not u.is_once))})

    def waits(self, count: int) -> list[float]:
        """Submit ordinary jobs of one node, one after the other; seconds until each starts."""
        found = []
        for _ in range(count):
            found.append(job_wait(self.cluster))
            if self.trainer:
                self.settle()
        return found


def job_wait(cluster: Cluster, *options: str) -> float:
    """Submit an ordinary job of one node; seconds until it starts."""
    note = f"/home/bob/started-{time.time_ns()}"
    began_s = time.time()
    wrap = f"--wrap=date +%s.%N > {note}.tmp; mv {note}.tmp {note}"
    job = ("sbatch", "-pbatch", "-N1", "-o/dev/null", *options, wrap)
    cluster.does("login", *job, user="bob")
    seen = cluster.home / note.removeprefix("/home/")
    wait_until(seen.exists, "an ordinary job's start", patience_s=PATIENCE_S)
    return float(seen.read_text()) - began_s


def whole_since(found: list[Update], ended_s: float) -> float | None:
    """Return when the updates at full size began that go on until now, after a trouble's end."""
    since_s, last_s = None, ended_s
    for one in found:
        if one.at_s > ended_s:
            is_steady = since_s is not None and one.at_s - last_s < PAUSE_S
            since_s = None if one.size < N_NODES else since_s if is_steady else one.at_s
            last_s = one.at_s
    return since_s


def longest_gap(found: list[Update], began_s: float, ended_s: float) -> float:
    """Return the longest time without an update that ends after a time and begins before another.

    What has not ended yet counts until then.
    """
    times = [one.at_s for one in found if one.at_s < ended_s]
    return max(later - earlier for earlier, later in pairwise([*times, ended_s]) if later > began_s)
