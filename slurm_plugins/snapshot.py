"""One look at a Slurm cluster: four commands in, one ``Snapshot`` out.

Called by the adapter. A source that fails, in whatever way, makes its part ``None``
and adds one sentence to ``failures``; the other parts are still read. Reservations
and the configuration change rarely and are read again only every so often.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from bftrainer.hostlist import ParseError
from bftrainer.poll.snapshot import (
    Job,
    JobState,
    Node,
    NodeState,
    Partition,
    Reservation,
    SchedulerCycle,
    Snapshot,
)
from slurm_plugins import asked, commands, parse
from slurm_plugins.commands import SlurmCommands, is_controller_away, why_failed
from slurm_plugins.twins import one_each
from slurm_plugins.written import Unread

T = TypeVar("T")

CONFIG_INTERVAL_S = 600.0


@dataclass(slots=True, kw_only=True)
class SnapshotReader:
    """Reads snapshots; remembers what need not be asked each time."""

    commands: SlurmCommands
    user: str
    pilot_partition: str
    partition: str | None  # report only nodes that are in this one too
    reservations_interval_s: float
    config: parse.ControllerConfig | None = None
    running_pilots: frozenset[str] = frozenset()  # job ids, as last seen
    surplus: tuple[str, ...] = ()  # pending jobs of pilots that have started, as last seen
    _names: dict[str, str] = field(default_factory=dict)
    _asked: asked.AskedFor = field(default_factory=asked.AskedFor)
    _unread: Unread = field(default_factory=Unread)
    _partitions: tuple[Partition, ...] = ()
    _reservations: tuple[Reservation, ...] | None = None
    _reservations_read_s: float = -float("inf")
    _config_read_s: float = -float("inf")
    _last_cycle: SchedulerCycle | None = None
    _is_unreachable: bool = False  # found out during this look

    def remember(self, job_id: str, pilot_id: str) -> None:
        """Note a pilot that was just launched: its name need not be asked for."""
        self._names[job_id] = pilot_id

    def slurm_uid(self) -> int | None:
        """Return as whom the controller runs; None: it does not say."""
        self._is_unreachable = False
        self._refresh_config([])
        return self.config.slurm_uid if self.config is not None else None

    def all_of(self, job_ids: Sequence[str]) -> list[str]:
        """Return these jobs and the others of the same pilots."""
        pilots = {self._names.get(job_id) for job_id in job_ids} - {None}
        others = [i for i, name in self._names.items() if name in pilots and i not in job_ids]
        return [*job_ids, *others]

    def read(self, *, wants_cycle: bool = True) -> Snapshot:
        """Look once. Nodes are read before jobs, so that no job is on an "idle" node.

        Without ``wants_cycle`` the cycle is the one known last, without a request.
        """
        taken_at_s = time.time()
        failures: list[str] = []
        self._is_unreachable = False
        self._refresh_config(failures)
        nodes = self._read(commands.SINFO, self._nodes_of, failures)
        jobs = self._read(commands.SQUEUE, parse.jobs, failures)
        if jobs is not None:
            jobs = self._mark_pilots(jobs, failures)
        if jobs is not None:
            jobs = self._complete(jobs, failures)
            self._unread.note(jobs)
        if nodes is not None and jobs is not None:
            nodes = _reconcile(nodes, jobs)
        return Snapshot(
            taken_at_s=taken_at_s,
            nodes=nodes,
            jobs=jobs,
            reservations=self._read_reservations(failures),
            cycle=self._read_cycle(failures) if wants_cycle else self._last_cycle,
            plan_window_s=self.config.bf_window_s if self.config is not None else None,
            plan_resolution_s=self.config.bf_resolution_s if self.config is not None else 0.0,
            # Both schedulers take jobs by tier and priority. The main one closes the nodes of
            # a blocked job's partition to all after it; backfill comes to pilots at its end
            # (measured on 22.05, with preemption by tier and by QOS).
            pilots_come_last=True,
            failures=tuple(failures),
            partitions=self._partitions,
        )

    def _read(
        self, argv: Sequence[str], parse_text: Callable[[str], T], failures: list[str]
    ) -> T | None:
        if self._is_unreachable:
            return None  # each further command would block as long as the first
        done = self.commands.query(argv)
        if not done.is_ok:
            self._is_unreachable = is_controller_away(done)
            failures.append(why_failed(done))
            return None
        try:
            return parse_text(done.stdout)
        except ParseError as problem:
            failures.append(f"{argv[0]} printed something unexpected: {problem}.")
            return None

    def _nodes_of(self, text: str) -> tuple[Node, ...]:
        """Merge the lines of a node's partitions; keep the nodes a pilot could hold."""
        nodes: dict[str, Node] = {}
        partitions: dict[str, list[str]] = {}
        allows: dict[str, Partition] = {}
        for row in parse.node_rows(text):
            nodes[row.node.name] = row.node
            allows[row.partition] = row.allows
            partitions.setdefault(row.node.name, []).append(row.partition)
        self._partitions = tuple(allows[name] for name in sorted(allows))
        needed = {self.pilot_partition}
        if self.partition is not None:
            needed.add(self.partition)
        missing = needed - {name for names in partitions.values() for name in names}
        if missing:
            raise ParseError(f"no node is in partition {', '.join(sorted(missing))}")
        return tuple(
            dataclasses.replace(node, partitions=tuple(sorted(partitions[name])))
            for name, node in nodes.items()
            if needed <= set(partitions[name])
        )

    def _mark_pilots(self, jobs: tuple[Job, ...], failures: list[str]) -> tuple[Job, ...] | None:
        """Give our own jobs in the pilots' partition the pilot id that is their name."""
        own = {
            job.job_id
            for job in jobs
            if job.partition == self.pilot_partition and job.user == self.user
        }
        if own - self._names.keys():
            argv = commands.names_argv(self.user, self.pilot_partition)
            names = self._read(argv, parse.pilot_names, failures)
            if names is None:
                return None  # a pilot taken for somebody's job would be worse
            # A job that ended between the two commands keeps its id as its name.
            self._names.update({job_id: names.get(job_id, job_id) for job_id in own})
        self._names = {job_id: self._names[job_id] for job_id in own}
        self.running_pilots = frozenset(
            job.job_id for job in jobs if job.job_id in own and job.state is JobState.RUNNING
        )
        marked = [
            dataclasses.replace(job, pilot_id=self._names[job.job_id]) if job.job_id in own else job
            for job in jobs
        ]
        shown, self.surplus = one_each(marked)
        return shown

    def _complete(self, jobs: tuple[Job, ...], failures: list[str]) -> tuple[Job, ...]:
        """Add what pending jobs ask for; what cannot be read now is asked for again."""
        if self._asked.lacks(jobs):
            found = self._read(commands.ASKED, asked.rows, failures)
            if found is not None:
                self._asked.learn(jobs, found)
        return self._asked.complete(jobs, self.config)

    def _read_reservations(self, failures: list[str]) -> tuple[Reservation, ...] | None:
        now = time.monotonic()
        if (
            self._reservations is None
            or now - self._reservations_read_s >= self.reservations_interval_s
        ):
            self._reservations = self._read(commands.RESERVATIONS, parse.reservations, failures)
            self._reservations_read_s = now
        return self._reservations

    def _read_cycle(self, failures: list[str]) -> SchedulerCycle | None:
        stats = self._read(commands.SDIAG, parse.backfill_stats, failures)
        if stats is None:
            return None
        # In the middle of a cycle the numbers mix two of them; and the controller resets
        # its statistics now and then, which does not undo the cycle we saw.
        is_reset = stats.cycle.ended_s is None and self._last_cycle is not None
        if not stats.is_in_progress and not is_reset:
            self._last_cycle = stats.cycle
        return self._last_cycle

    def _refresh_config(self, failures: list[str]) -> None:
        now = time.monotonic()
        if self.config is not None and now - self._config_read_s < CONFIG_INTERVAL_S:
            return
        found = self._read(commands.CONFIG, parse.controller_config, failures)
        if found is not None:
            self.config, self._config_read_s = found, now


def _reconcile(nodes: tuple[Node, ...], jobs: tuple[Job, ...]) -> tuple[Node, ...]:
    """Believe the later look: a node on which a job runs by now is not idle any more."""
    taken = {name for job in jobs if job.state is not JobState.PENDING for name in job.nodes}
    return tuple(
        dataclasses.replace(node, state=NodeState.ALLOCATED)
        if node.name in taken and node.state in (NodeState.IDLE, NodeState.PLANNED)
        else node
        for node in nodes
    )
