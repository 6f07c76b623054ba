"""Slurm (22.05 and later) as a batch system of bftrainer.

``create`` is the entry point ``bftrainer.batch_systems: slurm``; the daemon calls the result from
its background threads. docs/howto/slurm-site.md lists the site settings it relies on.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic

from bftrainer.errors import BatchSystemError
from bftrainer.hostlist import ParseError
from bftrainer.model.cluster import JobState, NodeLeft, Snapshot
from bftrainer.model.finding import NOTHING, Finding, Measured
from bftrainer.model.site_file import SiteFile
from bftrainer.poll.announcer import Announcer
from bftrainer.poll.batch_system import BatchSystem, PilotObservation, PilotRequest
from bftrainer.poll.commands import why_failed
from bftrainer.poll.options import Value, Variable, checked
from slurm_plugins import commands, doctor
from slurm_plugins.commands import DEFAULT_TIMEOUT_S, SlurmCommands
from slurm_plugins.floor import STEP_ID, Floor
from slurm_plugins.hook.watch import HookFile
from slurm_plugins.launcher import PilotLauncher
from slurm_plugins.site_files import site_files
from slurm_plugins.snapshot import SnapshotReader

DEFAULT_CYCLE_S = 30.0
"""Slurm's default of bf_interval, used until the configuration has been read."""


class SlurmOptions(pydantic.BaseModel):
    """Options of the policy file, under ``batch_options``."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    slurm_conf: Path | None = None  # default: $SLURM_CONF, else Slurm's own search
    partition: str | None = None  # report only nodes that are also in this partition
    pilot_partition: str = "bf"
    command_timeout_s: float = pydantic.Field(default=DEFAULT_TIMEOUT_S, gt=0)
    reservations_interval_s: float = pydantic.Field(default=30.0, ge=0)
    account: str | None = None
    qos: str | None = None
    user: str | None = None  # owner of our pilots; default: the user of the daemon
    environment: dict[Variable, Value] = {}  # for the commands, e.g. a PATH
    hook_file: Path | None = None  # written by the site's scripts (docs/howto/slurm-site.md)
    # Share of a node that a pilot takes; all 0: the whole node.
    slot_cpus: int = pydantic.Field(default=0, ge=0)
    slot_memory_mb: int = pydantic.Field(default=0, ge=0)
    slot_gpus: int = pydantic.Field(default=0, ge=0)
    floor_job: str = pydantic.Field(default="", pattern=r"^[0-9]{0,10}$")  # own allocation
    preamble: Path | None = None  # shell file under which agents run
    is_own: bool = False  # of a user's own daemon, who can change nothing of the site
    grace_s: float = pydantic.Field(default=0.0, ge=0)  # GraceTime of the pilots' partition

    @property
    def share(self) -> NodeLeft | None:
        """What a pilot takes of a node; None: all of it."""
        share = NodeLeft(cpus=self.slot_cpus, memory_mb=self.slot_memory_mb, gpus=self.slot_gpus)
        return None if share == NodeLeft(cpus=0) else share


class SlurmBatchSystem(BatchSystem):
    """One Slurm cluster, used through its commands."""

    def __init__(self, options: SlurmOptions) -> None:
        self.name = "slurm"
        # One snapshot is enough: on a node idle between two jobs, the pilot ranks below the second.
        self.idle_confirmations = 1
        self.cycle_s = DEFAULT_CYCLE_S
        conf = options.slurm_conf or os.environ.get("SLURM_CONF")
        self.commands = SlurmCommands(
            slurm_conf=str(conf) if conf else None,
            timeout_s=options.command_timeout_s,
            extra_environment=options.environment,
        )
        self._hook_file, self._pilot_partition = options.hook_file, options.pilot_partition
        self._is_own, self._grace_s = options.is_own, options.grace_s
        self._cpus_per_node = 0
        self._given = options.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        user = options.user or pwd.getpwuid(os.geteuid()).pw_name
        self._floor = options.floor_job and Floor(
            commands=self.commands,
            job_id=options.floor_job,
            user=user,
            preamble=options.preamble,
        )
        self._reader = SnapshotReader(
            commands=self.commands,
            user=user,
            floor=self._floor or None,
            pilot_partition=options.pilot_partition,
            partition=options.partition,
            reservations_interval_s=options.reservations_interval_s,
            share=options.share,
        )
        site = {"--account": options.account, "--qos": options.qos}
        self._launcher = PilotLauncher(
            commands=self.commands,
            partition=options.pilot_partition,
            sbatch_options=tuple(f"{key}={value}" for key, value in site.items() if value),
            grace_s=options.grace_s,
            share=options.share,
            preamble=options.preamble,
        )

    @property
    def requests(self) -> int:
        """Commands sent to the controller so far."""
        return self.commands.requests

    def request_counts(self) -> Mapping[str, int]:
        """Return the number of commands sent to the controller so far, by kind."""
        return self.commands.request_counts()

    def snapshot(self, *, wants_cycle: bool = True) -> Snapshot:
        """Poll once; a failing source is ``None`` in the snapshot."""
        snapshot = self._reader.read(wants_cycle=wants_cycle)
        if snapshot.jobs is not None:
            self._launcher.running = self._reader.running_pilots
        if snapshot.nodes:
            self._cpus_per_node = max(node.cpus for node in snapshot.nodes)
        if self._reader.config is not None:
            self.cycle_s = self._reader.config.bf_interval_s
        return snapshot

    def launch_pilot(self, request: PilotRequest) -> str:
        """Submit a pilot; raises ``BatchSystemError`` (BFT-1222 to -1224, -1226)."""
        if self._floor and request.node in self._floor.nodes:
            return self._floor.launch(request)
        job_id = self._launcher.launch(request, cycle_s=self.cycle_s)
        self._reader.remember(job_id, request.pilot_id, request.node)
        return job_id

    def cancel_pilots(self, job_ids: Sequence[str], *, force: bool = False) -> None:
        """Ask the pilots to leave; the second time, after 2 s, Slurm ends them."""
        steps = [i for i in job_ids if self._floor and STEP_ID.fullmatch(i)]
        if self._floor and steps:
            self._floor.cancel(steps)
        if jobs := [i for i in job_ids if i not in steps]:
            self._launcher.cancel(jobs, force=force)

    def pilot_states(self, job_ids: Sequence[str]) -> Mapping[str, PilotObservation]:
        """Observe each id; ended and unknown ids are absent."""
        floor = self._floor
        steps = {i: floor.observe(i) for i in job_ids if floor and STEP_ID.fullmatch(i)}
        return {**self._launcher.observe([i for i in job_ids if i not in steps]), **steps}

    def findings(self, measured: Measured = NOTHING, /) -> tuple[Finding, ...]:
        """Check Slurm's settings; unreadable ones are a finding, too."""
        try:
            found = doctor.findings(self._settings(measured))
        except ParseError as problem:
            return (doctor.unknown(str(problem)),)
        return doctor.for_user(found, grace_s=self._grace_s) if self._is_own else found

    def site_files(self) -> tuple[SiteFile, ...]:
        """Return what an administrator installs here.

        Raises:
            BatchSystemError: BFT-1247, Slurm's settings cannot be read.
        """
        try:
            return site_files(self._settings(NOTHING), self._given)
        except ParseError as problem:
            raise BatchSystemError(
                "BFT-1247",
                f"Slurm's settings cannot be read: {problem}",
                "Repeat it when the controller answers.",
            ) from problem

    def _settings(self, measured: Measured) -> doctor.SlurmSettings:
        """Read the settings; raises ``ParseError``."""
        config = self.commands.query(commands.CONFIG)
        partitions = self.commands.query(doctor.PARTITION_ARGV)
        for done in (config, partitions):
            if not done.is_ok:
                raise ParseError(why_failed(done))
        snapshot, name = self._reader.read(wants_cycle=False), self._pilot_partition
        if snapshot.jobs is None:
            raise ParseError(" ".join(snapshot.failures))
        waiting = [j for j in snapshot.jobs if j.is_ordinary and j.state is JobState.PENDING]
        qos, flags = doctor.qos_of(partitions.stdout, name), ""
        if qos:  # fails without a database; then there are no flags
            flags = self.commands.query(doctor.qos_argv(qos)).stdout
        return doctor.SlurmSettings(
            config=config.stdout,
            partitions=partitions.stdout,
            pilot_partition=name,
            queue_length=len(waiting),
            n_nodes=len(snapshot.nodes or ()),
            has_hook=self._hook_file is not None,
            qos_flags=flags,
            measured=measured,
        )

    def open_announcer(self) -> Announcer | None:
        """Watch the file of the site's scripts, if the policy names it.

        Raises:
            BatchSystemError: BFT-1231, -1233, it cannot be used.
        """
        if self._hook_file is None:
            return None
        owner_uid = self._reader.slurm_uid()
        if owner_uid is None:
            raise BatchSystemError(
                "BFT-1231",
                "Slurm does not report SlurmUser, the owner of the hook's file.",
                "The next poll tries again; see 'scontrol show config'.",
            )
        return HookFile(
            self._hook_file,
            self._pilot_partition,
            owner_uid=owner_uid,
            cpus_per_node=lambda: self._cpus_per_node,
        )


def create(options: Mapping[str, Any]) -> SlurmBatchSystem:
    """Create the adapter from the policy's options, without calling Slurm.

    Raises:
        OptionError: BFT-1220, one is unknown or malformed.
    """
    return SlurmBatchSystem(checked(SlurmOptions, options, code="BFT-1220", name="Slurm"))
