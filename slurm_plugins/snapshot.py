"""One poll of a Slurm cluster: runs four commands, returns a ``Snapshot``.

Called by the adapter. A source that fails, for whatever reason, makes its part ``None``, is named
in ``unread`` and adds one sentence to ``failures``; the other parts are still read. Reservations
and the configuration change rarely and are read less often.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from bftrainer.batch import process
from bftrainer.batch.awake import AWAKE
from bftrainer.batch.clock import now_s
from bftrainer.batch.commands import SHORTEST_LIMIT_S, PollCommands
from bftrainer.batch.pilot_job import pilot_of
from bftrainer.model.cluster import (
    STILL_COMPLETING,
    Job,
    JobState,
    Node,
    NodeState,
    Partition,
    Reservation,
    SchedulerCycle,
    Snapshot,
    not_idle_where_jobs_run,
)
from bftrainer.model.hostlist import ParseError
from slurm_plugins import commands, doctor, gres_conf, job_requests, lending, parse, releases
from slurm_plugins.arrays import Room, written_out
from slurm_plugins.commands import SlurmCommands
from slurm_plugins.fields import PrintedLists, Unread
from slurm_plugins.floor import Floor
from slurm_plugins.gres import GpusUntold
from slurm_plugins.gres_conf import UntoldGpus
from slurm_plugins.job_requests import judged
from slurm_plugins.lending import SharingLimits
from slurm_plugins.parse import ControllerClock, Made, RowCache, switches
from slurm_plugins.site_options import PilotNodes
from slurm_plugins.states import Completing

T = TypeVar("T")
# As the journal names them, and the daemon's token; earlier releases gave none.
_PILOT = re.compile(r"(p[0-9]{6,15})(\.[0-9a-f]{8})?")

CONFIG_INTERVAL_S = 600.0
CONFIGLESS: Final = Path("/run/slurm/conf")  # slurm.conf(5): where slurmd keeps what it was sent
LIMITS_INTERVAL_S = 30.0  # where nodes or partitions are new, or the last answer was none


class _Poll(PollCommands):
    """One poll, which learns the controller's time, too."""

    def __init__(self, commands: SlurmCommands, clock: ControllerClock) -> None:
        super().__init__(commands)
        self._clock = clock

    def run(self, argv: Sequence[str]) -> process.Completed:
        sent_s = now_s()
        answer = super().run(argv)
        if argv in (commands.CONFIG, commands.SDIAG):
            self._clock.hear(answer.stdout, sent_s=sent_s, received_s=now_s())
        return answer


@dataclass(slots=True, kw_only=True)
class SnapshotReader:
    """Reads snapshots; caches what need not be read every time."""

    commands: SlurmCommands
    user: str
    pilot_partition: str
    partition: str | None  # report only nodes that are also in this one
    reservations_interval_s: float
    floor: Floor | None = None  # the user's own allocation
    own_tokens: Callable[[], Collection[str]] = tuple  # in our pilots' names; (): not known
    is_of_all: bool = False  # pilots are those of all users, not of ``user`` alone
    accept_release: str = ""  # which is not among those known
    for_pilots: PilotNodes = field(
        default_factory=PilotNodes
    )  # that the site's options of sbatch leave
    unknown_release: str = ""  # of commands or controller, if it is not accepted
    config: parse.ControllerConfig | None = None
    release: str = ""  # of the commands
    clock: ControllerClock = field(default_factory=ControllerClock)
    running_pilots: frozenset[str] = frozenset()  # job ids, as last seen
    _names: dict[str, str] = field(default_factory=dict)  # pilot id by job
    _told: dict[tuple[str, str], str] = field(default_factory=dict)  # the same by job and user
    _completing: Completing = field(default_factory=Completing)
    _switches: dict[str, str] = field(default_factory=dict)  # by node
    _node_rows: RowCache[parse.NodeRow] = field(default_factory=RowCache)
    _job_rows: RowCache[Job] = field(default_factory=RowCache)
    _job_rows_ahead_s: float = 0.0  # clock offset with which they were parsed
    _printed_lists: PrintedLists = field(default_factory=PrintedLists)
    _nodes_made: Made[Node] = field(default_factory=Made)
    _pilots_made: Made[Job] = field(default_factory=Made)
    _judged: Made[Job] = field(default_factory=Made)
    _asked: job_requests.AskedFor = field(default_factory=job_requests.AskedFor)
    _user_text: Unread = field(default_factory=Unread)
    _gpus_untold: GpusUntold = field(default_factory=GpusUntold)
    _partitions: tuple[Partition, ...] = ()
    _rooms: dict[str, parse.UnusedPart] = field(default_factory=dict)  # by node with GPUs
    _limits: SharingLimits = field(default_factory=SharingLimits)
    _cluster: lending.ClusterLimits | None = None
    _slurm_conf: str = ""  # the controller's
    _limits_of: object = None  # the state of the cluster for which they were read
    _limits_read_s: float = -float("inf")
    _lent: Made[Node] = field(default_factory=Made)
    _reservations: tuple[Reservation, ...] | None = None
    _reservations_read_s: float = -float("inf")
    _config_read_s: float = -float("inf")
    _last_cycle: SchedulerCycle | None = None
    _poll: PollCommands = field(init=False)

    def remember(self, job_id: str, pilot_id: str, user: str = "") -> None:
        """Store the name of a pilot just launched, so that it need not be queried.

        Another user's sbatch, and so that user, said which job it is: it must be one of theirs.
        """
        self._told[job_id, user or self.user] = pilot_id

    def slurm_uid(self) -> int | None:
        """Return the uid of SlurmUser; None: not known."""
        self._poll = _Poll(self.commands, self.clock)
        self._refresh_config()
        if self.config is None:
            return None
        return self.config.slurm_uid

    def read(self, *, wants_cycle: bool = True) -> Snapshot:
        """Poll once. Nodes are read before jobs, so that no job is on an "idle" node.

        Without ``wants_cycle`` the last known scheduler cycle is returned, without a request.
        """
        taken_at_s = now_s()
        self._poll = _Poll(self.commands, self.clock)
        self._refresh_config()
        if self.unknown_release:
            self._poll.failures.append(releases.sentence(self.unknown_release))
            self._poll.unread.append("release")  # so nothing is claimed
        if self.floor is not None:
            self.floor.look()
        nodes = self._poll.of(commands.SINFO, self._nodes_of, "nodes")
        jobs = self._read_jobs()
        if nodes is not None and jobs is not None:
            nodes = not_idle_where_jobs_run(nodes, jobs)
        if jobs is not None:
            n_planned = 0
            if self.config is not None:
                n_planned = self.config.bf_max_job_array_resv
            jobs = written_out(jobs, Room.of(nodes or (), jobs), n_planned)
        reservations = self._read_reservations()
        if nodes is not None:
            nodes, reservations = self.for_pilots.within(nodes, reservations, taken_at_s)
        if self.floor is not None and nodes is not None:
            nodes, jobs, reservations = self.floor.show(nodes, jobs, reservations)
        if nodes is not None:
            nodes = self._with_parts(nodes, jobs or ())
        cycle = self._last_cycle
        if wants_cycle:
            cycle = self._read_cycle()
        plan_window_s: float | None = None
        plan_resolution_s = 0.0
        if self.config is not None:
            plan_window_s = self.config.bf_window_s
            plan_resolution_s = self.config.bf_resolution_s
        return Snapshot(
            taken_at_s=taken_at_s,
            nodes=nodes,
            jobs=jobs,
            reservations=reservations,
            cycle=cycle,
            plan_window_s=plan_window_s,
            plan_resolution_s=plan_resolution_s,
            # Both schedulers order jobs by tier and priority. The main one closes the nodes of a
            # blocked job's partition to all later jobs; backfill reaches pilots last (measured
            # on 22.05, with preemption by tier and by QOS).
            pilots_come_last=True,
            failures=tuple(self._poll.failures),
            unread=tuple(self._poll.unread),
            partitions=self._partitions,
            closed=self._closed(),
            shortest_limit_s=SHORTEST_LIMIT_S,
        )

    @property
    def is_binding_enforced(self) -> bool:
        """Return whether jobs get the cores next to their GPUs, or wait for these."""
        return self._cluster is not None and self._cluster.is_binding_enforced

    @property
    def limits(self) -> SharingLimits:
        """What was last read of the sharing of nodes; where no node has GPUs, nothing."""
        return self._limits

    def _closed(self) -> str:
        """Say why no pilot could be submitted or started; "": one could."""
        ours = next((p for p in self._partitions if p.name == self.pilot_partition), None)
        if ours is None or (ours.can_start and ours.accepts):
            return ""
        states = {(True, False): "DRAIN", (False, True): "DOWN", (False, False): "INACTIVE"}
        return (
            f"Partition {ours.name} of the pilots is {states[ours.can_start, ours.accepts]}: no"
            " node is taken until an administrator sets it UP."
        )

    def _with_parts(self, nodes: tuple[Node, ...], jobs: tuple[Job, ...]) -> tuple[Node, ...]:
        """Show which GPUs of nodes pilots may have one by one."""
        if not self._rooms:
            return nodes
        self._refresh_limits()
        pilots_gpus = Counter[str]()  # by node, where the CPUs of all pilots are bounded
        if lending.bounds_cpus(self.pilot_partition, self._limits):
            for job in jobs:
                if self.pilot_partition in job.partitions:
                    pilots_gpus.update(dict.fromkeys(job.nodes, max(1, job.gpus_per_node)))
        self._lent.begin()
        floor_nodes = self._floor_nodes
        return tuple([self._with_its_parts(node, floor_nodes, pilots_gpus) for node in nodes])

    def _with_its_parts(
        self, node: Node, floor_nodes: Collection[str], pilots_gpus: Mapping[str, int]
    ) -> Node:
        room, limits = self._rooms.get(node.name), self._limits
        if room is None:
            return node
        if node.name in floor_nodes:
            return dataclasses.replace(node, why_whole=lending.OWN_ALLOCATION)
        n_gpus = pilots_gpus.get(node.name, 0)
        make = partial(lending.with_parts, node, room, self.pilot_partition, limits, n_gpus)
        return self._lent.of(node.name, node, (room, limits, n_gpus), make)

    @property
    def _floor_nodes(self) -> tuple[str, ...]:
        """Nodes of the user's own allocation; none without one."""
        if self.floor is None:
            return ()
        return self.floor.nodes

    def _jobs_of(self, text: str) -> tuple[Job, ...]:
        if self._job_rows_ahead_s != self.clock.ahead_s:  # the same text now means another time
            self._job_rows, self._job_rows_ahead_s = RowCache(), self.clock.ahead_s
        return parse.jobs(text, self.clock.time_s, self._job_rows, self._printed_lists)

    def _nodes_of(self, text: str) -> tuple[Node, ...]:
        """Merge a node's rows of several partitions; keep the nodes a pilot could hold."""
        nodes: dict[str, Node] = {}
        partitions: dict[str, list[str]] = {}
        allows: dict[str, Partition] = {}
        gpus_unclear: dict[str, str] = {}
        self._rooms = {}
        for row in parse.node_rows(text, self._node_rows):
            nodes[row.node.name] = row.node
            if row.room is not None:
                self._rooms[row.node.name] = row.room
            if row.gpus_unclear:
                gpus_unclear[row.node.name] = row.gpus_unclear
            allows[row.partition] = row.allows
            partitions.setdefault(row.node.name, []).append(row.partition)
        if unread := [name for name, node in nodes.items() if node.reason == parse.NOT_READ]:
            self._poll.failures.append(
                f"The lines of {len(unread)} nodes in sinfo cannot be read, {unread[0]}'s first."
            )
        self._gpus_untold.note(gpus_unclear)
        self._partitions = tuple(allows[name] for name in sorted(allows))
        required = {self.pilot_partition, self.partition or self.pilot_partition}
        missing = required - allows.keys()
        if missing:
            raise ParseError(f"no node is in partition {', '.join(sorted(missing))}")
        completing = {n for n, node in nodes.items() if node.state is NodeState.COMPLETING}
        for name in self._completing.hanging(completing, AWAKE()):
            down, why = NodeState.DOWN, STILL_COMPLETING
            nodes[name] = dataclasses.replace(nodes[name], state=down, reason=why)
        self._nodes_made.begin()
        floor_nodes = self._floor_nodes
        nodes_for_pilots = []
        for name, node in nodes.items():
            is_in_partitions = required.issubset(partitions[name])
            is_for_pilots = is_in_partitions and self.for_pilots.request.is_met_by(node)
            if is_for_pilots or name in floor_nodes:
                nodes_for_pilots.append(self._node_of(node, partitions[name]))
        return tuple(nodes_for_pilots)

    def _node_of(self, node: Node, partitions: list[str]) -> Node:
        names, switch = tuple(sorted(partitions)), self._switches.get(node.name, "")
        make = partial(dataclasses.replace, node, partitions=names, switch=switch)
        return self._nodes_made.of(node.name, node, (names, switch), make)

    def _mark_pilots(self, jobs: tuple[Job, ...]) -> tuple[Job, ...] | None:
        """Set ``pilot_id``, their name, for our own jobs in the pilots' partition."""
        user_of: dict[str, str] = {}  # of each job that may be a pilot
        for job in jobs:
            is_own = self.is_of_all or job.user == self.user
            if is_own and job.partitions == (self.pilot_partition,):
                user_of[job.job_id] = job.user
        launched, self._told = self._told, {}
        for (job_id, user), name in launched.items():
            if user_of.get(job_id) == user:
                self._names.setdefault(job_id, name)
        # A user's names may imitate rows of others: each user's are asked for alone.
        for user in sorted({user_of[job_id] for job_id in user_of.keys() - self._names.keys()}):
            if not self._learn_names(user, [i for i in user_of if user_of[i] == user]):
                return None  # taking a pilot for an ordinary job would be worse
        self._names = {job_id: self._names[job_id] for job_id in user_of}
        pilots = {job_id for job_id, name in self._names.items() if name}
        self.running_pilots = frozenset(
            job.job_id for job in jobs if job.job_id in pilots and job.state is JobState.RUNNING
        )
        self._pilots_made.begin()
        return tuple([self._marked(job, pilots) for job in jobs])

    def _learn_names(self, user: str, job_ids: Collection[str]) -> bool:
        """Ask for the names of a user's jobs in the pilots' partition; False: no answer."""

        def names_of(text: str) -> dict[str, str]:
            try:
                return parse.pilot_names(text)
            except ParseError:
                if not self.is_of_all:
                    raise
                return dict.fromkeys(job_ids, "")  # it costs this user the pilots

        argv = commands.names_argv(user, self.pilot_partition)
        names = self._poll.of(argv, names_of, "jobs")
        if names is None:
            return False
        # A job that ended between the two commands keeps its id as its name.
        for job_id in set(job_ids) - self._names.keys():
            name = names.get(job_id, job_id)
            # The user has other jobs in the partition, too. Where all users may submit pilots, such
            # a job has no more right to a node than a pilot has.
            pilot = name
            if job_id in names:
                pilot = self._pilot_in(name)
            if not pilot and self.is_of_all:
                pilot = job_id
            self._names[job_id] = pilot
        return True

    def _pilot_in(self, name: str) -> str:
        """Return the pilot of a job's name; another daemon's keeps its token; "": no pilot's."""
        match = _PILOT.fullmatch(name)
        if match is None:
            return ""
        if match[2] is None:
            return name
        return pilot_of(name, self.own_tokens())

    def _marked(self, job: Job, pilots: Collection[str]) -> Job:
        if job.job_id not in pilots:
            return job
        name = self._names[job.job_id]
        make = partial(dataclasses.replace, job, pilot_id=name)
        return self._pilots_made.of(job.job_id, job, name, make)

    def _read_jobs(self) -> tuple[Job, ...] | None:
        """Return the jobs with their requests, and with which of them may start."""
        jobs = self._read_queue()
        if jobs is not None and self._asked.pop_departed(jobs):
            jobs = self._read_queue()
        if jobs is None:
            return None
        enforces = self.config is None or self.config.enforces_accounts
        jobs = judged(jobs, self._judged, enforces_accounts=enforces)
        self._user_text.note(jobs)
        return jobs

    def _read_queue(self) -> tuple[Job, ...] | None:
        """Return the jobs, ours marked, with their requests.

        A job may start after the queue has been read and before its request is: it would be shown
        as one that waits for whole nodes, and nodes would be given back for it once more. Then the
        queue is read a second time.
        """
        jobs = self._poll.of(commands.SQUEUE, self._jobs_of, "jobs")
        if jobs is not None:
            jobs = self._mark_pilots(jobs)
        if jobs is not None:
            jobs = self._complete(jobs)
        return jobs

    def _complete(self, jobs: tuple[Job, ...]) -> tuple[Job, ...]:
        """Add the requests of pending jobs; unread ones are queried again."""
        if self._asked.lacks(jobs):
            read = partial(job_requests.rows, release=self.release)
            requests = self._poll.of(commands.asked_argv(self.release), read, "requests")
            if requests is not None:
                self._asked.learn(jobs, requests)
        return self._asked.complete(jobs, self.config, self._limits)

    def _read_reservations(self) -> tuple[Reservation, ...] | None:
        now, read_s = time.monotonic(), self._reservations_read_s
        if self._reservations is None or now - read_s >= self.reservations_interval_s:
            parse_text = partial(parse.reservations, read_time=self.clock.time_s)
            self._reservations = self._poll.of(commands.RESERVATIONS, parse_text, "reservations")
            self._reservations_read_s = now
        return self._reservations

    def _read_cycle(self) -> SchedulerCycle | None:
        stats = self._poll.of(commands.SDIAG, parse.backfill_stats, "cycle")
        if stats is None:
            return self._last_cycle
        # During a cycle the numbers mix two cycles. The controller resets its statistics now and
        # then, which does not invalidate the known cycle.
        is_reset = stats.cycle.ended_s is None and self._last_cycle is not None
        if not stats.is_in_progress and not is_reset:
            began_s, ended_s = map(self.clock.ours_s, (stats.cycle.began_s, stats.cycle.ended_s))
            self._last_cycle = dataclasses.replace(stats.cycle, began_s=began_s, ended_s=ended_s)
        return self._last_cycle

    def _refresh_config(self) -> None:
        now = time.monotonic()
        if self.config is not None and now - self._config_read_s < CONFIG_INTERVAL_S:
            return
        config = self._poll.of(commands.CONFIG, self._config_of, "configuration")
        if config is None:
            return
        release = self._poll.of(commands.VERSION, releases.release_of, "configuration")
        if release is None:
            return
        self.config, self._config_read_s, self.release = config, now, release
        self.unknown_release = releases.unknown_among(
            config.release, release, accepted=self.accept_release
        )
        if config.has_switches:
            switch_of = self._poll.of(commands.TOPOLOGY, switches, "topology")
            if switch_of is not None:
                self._switches = switch_of

    def _refresh_limits(self) -> None:
        """Read what changes rarely of the sharing of nodes; what was read before stays."""
        now, before = time.monotonic(), self._limits
        state = (self._partitions, self._cluster, self._rooms.keys() <= before.nodes.keys())
        interval_s = LIMITS_INTERVAL_S
        if state == self._limits_of:
            interval_s = CONFIG_INTERVAL_S
        if now - self._limits_read_s < interval_s:
            return
        n_unread = len(self._poll.unread)
        partitions = self._poll.of(doctor.PARTITION_ARGV, lending.partition_limits)
        nodes = self._poll.of(commands.NODES, lending.node_limits)
        del self._poll.unread[n_unread:]  # whole nodes are lent without them
        limits = SharingLimits(
            cluster=self._cluster,
            partitions=partitions or before.partitions,
            nodes=nodes or before.nodes,
            untold_gpus=self._untold_gpus(),
        )
        if not limits.says_the_same(before):
            self._limits = limits
        self._limits_read_s, self._limits_of = now, None
        if partitions is not None and nodes is not None:
            self._limits_of = (*state[:2], self._rooms.keys() <= nodes.keys())

    def _untold_gpus(self) -> UntoldGpus:
        """Read gres.conf; where this host has none, jobs count as told their GPUs."""
        for directory in self._config_directories():
            with suppress(OSError):
                text = (directory / gres_conf.NAME).read_text("utf-8", errors="replace")
                return gres_conf.untold_gpus(text)
        return UntoldGpus()

    def _config_directories(self) -> Iterator[Path]:
        """Yield where gres.conf may be: beside slurm.conf, or where slurmd keeps what it gets."""
        if slurm_conf := self.commands.base_environment().get("SLURM_CONF"):
            yield Path(slurm_conf).parent
        if self._slurm_conf:
            yield Path(self._slurm_conf).parent
        yield CONFIGLESS

    def _config_of(self, text: str) -> parse.ControllerConfig:
        config = parse.controller_config(text)
        self._slurm_conf = parse.settings_in(text).get("SLURM_CONF", "")
        with suppress(ParseError):
            self._cluster = lending.cluster_limits(text)
        return config
