"""One poll of an LSF cluster: runs a few commands, returns a ``Snapshot``.

Called by the adapter. A source that fails, for whatever reason, makes its part ``None``, is named
in ``unread`` and adds one sentence to ``failures``; the other parts are still read. Queues,
hardware and reservations change rarely and are read less often.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from bftrainer.batch.batch_system import observed_only
from bftrainer.batch.clock import calendar_s
from bftrainer.batch.commands import SHORTEST_LIMIT_S, UnreadError
from bftrainer.batch.pilot_job import pilot_of
from bftrainer.model.cluster import (
    Job,
    JobState,
    Node,
    Partition,
    Reservation,
    Snapshot,
    not_idle_where_jobs_run,
)
from lsf_adapters import commands, hosts, planned_starts, queues
from lsf_adapters.commands import Dialect
from lsf_adapters.gpu_use import GpuUse
from lsf_adapters.hosts import NONE, reservations
from lsf_adapters.jobs import JobReader
from lsf_adapters.launcher import rank
from lsf_adapters.requests import ENDED, JobRow, job_of
from lsf_adapters.table import in_words

CONFIG_INTERVAL_S = 600.0
NOT_THERE = "brsvs cannot be started"  # the site has not installed it
MODEL = "lsf"  # of the queue (bftrainer.decide.queue)
OBSERVED_ONLY = observed_only(
    "This LSF is neither IBM Spectrum LSF 10.1 nor volclava 2", "docs/howto/lsf-site.md"
)


class SnapshotReader:
    """Reads snapshots; caches what need not be read every time."""

    def __init__(
        self,
        *,
        jobs: JobReader,
        user: str,
        pilot_queue: str,
        rarely_s: float = 30.0,
        plan_file: Path | None = None,
        gpus_per_node: int = 0,
        own_tokens: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """Store the settings.

        Args:
            jobs: reads bjobs.
            user: owner of our pilots.
            pilot_queue: of our pilots.
            rarely_s: how often queues and reservations are read.
            plan_file: of the planner (ALLOCATION_PLANNER=Y); None: there is none.
            gpus_per_node: where LSF does not tell.
            own_tokens: returns those in the names of our pilots; (): not known yet.
        """
        self._jobs, self._user, self._queue = jobs, user, pilot_queue
        self._rarely_s, self._plan_file, self._gpus = rarely_s, plan_file, gpus_per_node
        self._own_tokens = own_tokens
        self.cycle_s = queues.DEFAULT_CYCLE_S
        self.queues: dict[str, queues.Queue] = {}
        self.slots: dict[str, int] = {}  # of each node
        self._all_slots: dict[str, int] = {}  # of each host, nodes of the pilots' queue or not
        self.duplicates: tuple[str, ...] = ()  # job ids to cancel
        self._hardware: dict[str, hosts.Hardware] = {}
        self._odd_hardware: list[str] = []  # names of hosts whose line in lshosts cannot be read
        self._reservations: tuple[Reservation, ...] | None = None
        self._read_s: dict[str, float] = {}  # when a part was last read (monotonic)
        self.ours: dict[str, JobRow] = {}  # our pilots that held slots in the last snapshot
        self._poll = jobs.poll()

    def read(self) -> Snapshot:
        """Poll once. Nodes are read before jobs, so that no job is on an "idle" node."""
        taken_at_s = calendar_s()
        self._poll, self.duplicates = self._jobs.poll(), ()
        dialect = self._poll.part("dialect", self._jobs.known_dialect)
        if dialect is Dialect.UNKNOWN:
            self._poll.failures.append(OBSERVED_ONLY)
            self._poll.unread.append("dialect")
        self._refresh(dialect)
        self._poll.failures += in_words("Hosts in lshosts", self._odd_hardware)
        host_rows = self._poll.part("nodes", self._hosts)
        job_rows = self._poll.part("jobs", self._rows)
        nodes: tuple[Node, ...] | None = None
        if host_rows is not None:
            nodes = self._nodes(host_rows, job_rows)
        jobs: tuple[Job, ...] | None = None
        # Without the slots of the hosts no size of a job in nodes is known.
        if job_rows is not None and (nodes is not None or self.slots):
            reserved = [host.name for host in host_rows or () if host.reserved and host.is_unused]
            jobs = self._planned(list(map(self._job, job_rows)), reserved, taken_at_s, dialect)
        if nodes is not None and jobs is not None:
            nodes = not_idle_where_jobs_run(nodes, jobs)
        return Snapshot(
            taken_at_s=taken_at_s,
            nodes=nodes,
            jobs=jobs,
            reservations=self._read_reservations(dialect),
            pilots_come_last=self._pilots_come_last(),
            failures=tuple(self._poll.failures),
            partitions=self._partitions(),
            closed=self._closed(),
            unread=tuple(dict.fromkeys(self._poll.unread)),
            queue_model=MODEL,
            shortest_limit_s=SHORTEST_LIMIT_S,
        )

    def _closed(self) -> str:
        """Say why no pilot could be submitted or started; "": one could."""
        queue = self.queues.get(self._queue)
        if queue is None:
            return ""
        partition = queue.as_partition()
        if partition.can_start and partition.accepts:
            return ""
        state = "inactive" if partition.accepts else "closed"
        return f"Queue {queue.name} of the pilots is {state}: no node is taken until it is open."

    def _is_due(self, part: str, interval_s: float) -> bool:
        read_s = self._read_s.get(part)
        return read_s is None or time.monotonic() - read_s >= interval_s

    def _refresh(self, dialect: Dialect | None) -> None:
        if self._is_due("queues", self._rarely_s):
            queue_of = self._poll.part(
                "queues", lambda: queues.queues(self._jobs.answer(commands.BQUEUES))
            )
            if queue_of is not None:
                self.queues, self._read_s["queues"] = queue_of, time.monotonic()
        interval_s = CONFIG_INTERVAL_S
        if any(hardware.model == hosts.LOST for hardware in self._hardware.values()):
            interval_s = self._rarely_s  # such a host may answer again at any time
        if self._is_due("hardware", interval_s):
            hardware_of = self._poll.part("hardware", lambda: self._read_hardware(dialect))
            if hardware_of is not None:
                self._hardware, self._read_s["hardware"] = hardware_of, time.monotonic()

    def _read_hardware(self, dialect: Dialect | None) -> dict[str, hosts.Hardware]:
        self._jobs.known_dialect()  # else what the hosts have would be read without GPUs
        text = self._jobs.answer(commands.BPARAMS)
        parameters = queues.parameters(text)
        if not parameters or not text.endswith("\n"):
            raise UnreadError("bparams printed something unexpected.")
        cycle_s = queues.number_of(parameters.get("MBD_SLEEP_TIME", ""))
        self.cycle_s = cycle_s or self.cycle_s
        self._odd_hardware.clear()
        hardware_of = hosts.hardware(self._jobs.answer(commands.LSHOSTS), self._odd_hardware)
        gpus: dict[str, tuple[int, str]] = {}
        if dialect is Dialect.IBM and not self._gpus:
            try:
                gpus = hosts.gpus(self._jobs.answer(commands.LSHOSTS_GPU))
            except UnreadError as problem:  # as of a release without the option
                has_told = any(hardware.gpu_model for hardware in self._hardware.values())
                if problem.is_away or has_told:
                    raise
        for name, hardware in hardware_of.items():
            n_gpus, model = gpus.get(name, (self._gpus, ""))
            hardware_of[name] = replace(hardware, gpus=n_gpus, gpu_model=model)
            if hardware.model == hosts.LOST:  # what it had when it last answered counts on
                hardware_of[name] = self._hardware.get(name, hardware_of[name])
        return hardware_of

    def _hosts(self) -> list[hosts.Host]:
        dialect = self._jobs.known_dialect()
        odd: list[str] = []
        host_rows = hosts.hosts(self._jobs.answer(hosts.argv(dialect)), dialect, odd)
        self._poll.failures += in_words("Hosts", odd)
        self._all_slots = {host.name: host.slots for host in host_rows if host.slots}
        if self.queues and self._queue not in self.queues:
            raise UnreadError(f"There is no queue {self._queue}.")
        return host_rows

    def _nodes(
        self, host_rows: Sequence[hosts.Host], job_rows: Sequence[JobRow] | None
    ) -> tuple[Node, ...]:
        """Return the hosts as nodes; ``job_rows``: the jobs on them, None: not read."""
        gpu_use = GpuUse.of(job_rows or ())
        loads = self._poll.part("load", lambda: hosts.loads(self._jobs.answer(commands.LSLOAD)))
        names = {host.name for host in host_rows} | self._hardware.keys()
        nodes = []
        for host in host_rows:
            hardware = self._hardware.get(host.name, hosts.Hardware(gpus=self._gpus))
            queue_names = [q.name for q in self.queues.values() if q.includes(host.name, names)]
            load = "-"  # a host that lsload does not list is not ok
            if loads is None:
                load = ""
            elif host.name in loads:
                load = loads[host.name]
            node = hosts.node_of(
                host,
                hardware,
                load,
                tuple(sorted(queue_names)),
                gpus_left=gpu_use.left(host, hardware),
            )
            if node is not None and (not self.queues or self._queue in queue_names):
                nodes.append(node)
        self.slots = {node.name: node.cpus for node in nodes}
        return tuple(nodes)

    def _rows(self) -> list[JobRow]:
        rows = self._jobs.all()
        self._poll.failures += in_words("Jobs", self._jobs.odd)
        pilots = {row.job_id: row for row in rows if self._pilot_id(row)}
        # A pilot on a host that does not answer vanishes from the list as ZOMBI; it may still run.
        vanished_ids = [job_id for job_id in self.ours if job_id not in pilots]
        if vanished_ids:
            row_of = self._jobs.by_id(vanished_ids)
            for job_id, row in row_of.items():
                if job_id in vanished_ids and row.state not in ENDED:
                    rows.append(row)
                    pilots[row.job_id] = row
        self.ours = {job_id: row for job_id, row in pilots.items() if row.holds_slots}
        self._jobs.note_lost(pilots.values())
        return self._without_duplicates(rows, list(pilots.values()))

    def _without_duplicates(self, rows: list[JobRow], pilots: Sequence[JobRow]) -> list[JobRow]:
        """Keep one job of each pilot; the others are to be cancelled.

        Those of another daemon are left to it, and so are all while ours are not known: two
        daemons that look at different times might keep different ones.
        """
        job_to_keep: dict[str, str] = {}  # by the pilot's name
        for row in sorted(pilots, key=rank):
            job_to_keep.setdefault(row.name, row.job_id)
        duplicates = [row for row in pilots if job_to_keep[row.name] != row.job_id]
        self.duplicates = ()
        if self._own_tokens():
            # The id lacks our token where the job is ours, and is the whole name elsewhere.
            ours = (row.job_id for row in duplicates if self._pilot_id(row) != row.name)
            self.duplicates = tuple(ours)
        duplicate_ids = {row.job_id for row in duplicates}
        return [row for row in rows if row.job_id not in duplicate_ids]

    def _pilot_id(self, row: JobRow) -> str:
        """Return the pilot that a job is; "": it is no pilot."""
        if row.queue != self._queue or row.user != self._user:
            return ""
        return pilot_of(row.name, self._own_tokens())

    def _job(self, row: JobRow) -> Job:
        job = job_of(row, self.slots)
        pilot_id = self._pilot_id(row)
        if pilot_id:
            job = replace(job, pilot_id=pilot_id)
        return job

    def _planned(
        self, jobs: list[Job], reserved: list[str], now_s: float, dialect: Dialect | None
    ) -> tuple[Job, ...]:
        """Add starts and nodes that LSF has planned."""
        plans: dict[str, planned_starts.PlannedStart] = {}
        has_nodes = any(job.planned_nodes for job in jobs)  # volclava's -UF tells them
        if (file := self._plan_file) is not None:
            plans = self._poll.part("plan", lambda: _plans_in(file)) or {}
        if reserved and not plans and not has_nodes and dialect is Dialect.IBM:
            requests = self._poll.part("reserved slots", self._jobs.reserved) or {}
            for job_id, request in requests.items():
                if request.reserved:
                    plans[job_id] = planned_starts.PlannedStart(
                        start_s=request.start_s, nodes=request.reserved
                    )
        has_estimate = any(job.start_s for job in jobs if job.state is JobState.PENDING)
        if reserved and dialect is Dialect.IBM and not has_estimate:
            plans = self._with_windows(plans, now_s)
        return planned_starts.with_plans(jobs, plans, reserved, now_s + self.cycle_s)

    def _with_windows(
        self, plans: dict[str, planned_starts.PlannedStart], now_s: float
    ) -> dict[str, planned_starts.PlannedStart]:
        """Add LSF's own answer to how long reserved slots stay unfillable."""
        windows = self._poll.part(
            "slots", lambda: planned_starts.windows(self._jobs.answer(commands.BSLOTS))
        )
        until_s = planned_starts.unfillable_until_s(windows or (), now_s)
        dated_plans = {}
        for job_id, plan in plans.items():
            start_s = plan.start_s
            if start_s is None:
                ends_s = (until_s[name] for name in plan.nodes if name in until_s)
                start_s = min(ends_s, default=None)
            dated_plans[job_id] = replace(plan, start_s=start_s)
        return dated_plans

    def _read_reservations(self, dialect: Dialect | None) -> tuple[Reservation, ...] | None:
        if dialect is None:
            return None
        if dialect is not Dialect.IBM:
            return ()
        if self._is_due("reservations", self._rarely_s) or self._reservations is None:
            self._reservations = self._poll.part("reservations", self._brsvs)
            self._read_s["reservations"] = time.monotonic()
        return self._reservations

    def _brsvs(self) -> tuple[Reservation, ...]:
        try:
            text = self._jobs.answer(commands.BRSVS)
        except UnreadError as problem:
            if NONE.search(str(problem)) or NOT_THERE in str(problem):
                return ()
            raise
        return reservations(text, calendar_s())

    def _partitions(self) -> tuple[Partition, ...]:
        return tuple(self.queues[name].as_partition() for name in sorted(self.queues))

    def _pilots_come_last(self) -> bool:
        """Return whether every other queue is served before that of the pilots."""
        pilot_queue = self.queues.get(self._queue)
        if pilot_queue is None:
            return False
        return all(
            queue.priority > pilot_queue.priority
            for queue in self.queues.values()
            if queue.name != self._queue
        )

    def slots_of(self, node: str) -> int:
        """Return all slots of a host; 0: it is not known."""
        return self.slots.get(node, 0) or self._all_slots.get(node, 0)


def _plans_in(file: Path) -> dict[str, planned_starts.PlannedStart]:
    try:
        return planned_starts.plans(file.read_text(errors="replace"))
    except OSError as problem:
        raise UnreadError(f"The planner's file: {problem.strerror or problem}.") from problem
