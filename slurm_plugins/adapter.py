"""Slurm (22.05 to 26.05) as a batch system of bftrainer.

``create`` is the entry point ``bftrainer.batch_systems: slurm``; the daemon calls the result from
its background threads. docs/howto/slurm-site.md lists the site settings it relies on.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pydantic

from bftrainer.batch.announcer import Announcer
from bftrainer.batch.batch_system import (
    OptionError,
    OptionProblem,
    PilotObservation,
    PilotRequest,
)
from bftrainer.batch.commands import DEFAULT_TIMEOUT_S, LaunchingSystem, UnreadError
from bftrainer.batch.options import Value, Variable, checked
from bftrainer.batch.service_files import ACCOUNT
from bftrainer.batch.site_inspector import own_program
from bftrainer.fleet.wire.listener import look_around
from bftrainer.model.cluster import JobState, Snapshot
from bftrainer.model.hostlist import ParseError
from bftrainer.model.site import NOTHING, Finding, Measured, ReleaseTrial, SiteFile
from bftrainer.site.submit.client import SubmitHelper
from slurm_plugins import commands, doctor, releases, site_options
from slurm_plugins.commands import SlurmCommands, why_failed
from slurm_plugins.floor import STEP_ID, Floor
from slurm_plugins.hook.relay import key_of
from slurm_plugins.hook.source import HookSource, RelaySettings, address_of
from slurm_plugins.hook.squeue_row import ClusterFacts
from slurm_plugins.launcher import PilotLauncher
from slurm_plugins.site_files import site_files
from slurm_plugins.snapshot import SnapshotReader
from slurm_plugins.trial import NodeTrial

DEFAULT_CYCLE_S = 30.0
"""Slurm's default of bf_interval, used until the configuration has been read."""


_NOT_OF_USERS = ("floor_job", "preamble", "is_own")
# Options of earlier releases, by which all pilots took one fixed share of a node.
_SLOTS = ("slot_cpus", "slot_memory_mb", "slot_gpus")


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
    # Instead, on another host: where relays of the file are heard, their public keys, and our own.
    hook_relay: str = ""
    hook_relay_keys: tuple[str, ...] = pydantic.Field(default=(), max_length=16)
    hook_relay_key_file: Path | None = None
    # Further options of pilots' sbatch (slurm_plugins.site_options): "--comment=preempt".
    sbatch_options: tuple[str, ...] = ()
    floor_job: str = pydantic.Field(default="", pattern=r"^[0-9]{0,10}$")  # own allocation
    preamble: Path | None = None  # shell file under which agents run
    is_own: bool = False  # of a user's own daemon, who can change nothing of the site
    accept_release: str = pydantic.Field(default="", pattern=rf"^({releases.PATTERN})?$")
    submit_helper: str = ""  # socket, or command line, that submits pilots as their users
    grace_s: float = pydantic.Field(default=0.0, ge=0)  # GraceTime of the pilots' partition

    @pydantic.field_validator("sbatch_options", mode="before")
    @classmethod
    def _one(cls, given: Any) -> Any:
        """Take one option, as ``--batch-option`` gives it, for a list."""
        if isinstance(given, str):
            return (given,)
        return given

    @pydantic.field_validator("hook_relay_keys", mode="before")
    @classmethod
    def _several(cls, given: Any) -> Any:
        """Take "KEY,KEY", as ``--batch-option`` gives it, for a list."""
        if isinstance(given, str):
            return tuple(given.split(","))
        return given

    @pydantic.field_validator("sbatch_options")
    @classmethod
    def _of_the_site(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        """Refuse options that pilots rely on."""
        return site_options.checked(words)

    @pydantic.model_validator(mode="after")
    def _one_whole_hook(self) -> Self:
        """Refuse half a description of relays, and two sources at once."""
        if not self.hook_relay:
            return self
        address_of(self.hook_relay)
        if self.hook_file is not None:
            raise ValueError("hook_file and hook_relay exclude each other: run a relay here, too")
        if not self.hook_relay_keys or self.hook_relay_key_file is None:
            raise ValueError("hook_relay needs hook_relay_keys and hook_relay_key_file")
        list(map(key_of, self.hook_relay_keys))
        return self

    @property
    def relays(self) -> RelaySettings | None:
        """The relays of the hook; None: there are none."""
        if not self.hook_relay or self.hook_relay_key_file is None:
            return None
        return RelaySettings(
            endpoint=self.hook_relay,
            allowed=frozenset(map(key_of, self.hook_relay_keys)),
            key_file=self.hook_relay_key_file,
        )

    @pydantic.field_validator("submit_helper")
    @classmethod
    def _of_several_users(cls, helper: str, info: pydantic.ValidationInfo) -> str:
        """Refuse it beside what pilots of several users cannot have."""
        for name in _NOT_OF_USERS:
            if helper and info.data.get(name):
                raise ValueError(
                    f"BFT-1522: pilots of several users run as the site provides; {name} is "
                    "one user's and not possible"
                )
        return helper


class SlurmBatchSystem(LaunchingSystem):
    """One Slurm cluster, used through its commands."""

    name = "slurm"
    lends_parts = True
    # One snapshot is enough: on a node idle between two jobs, the pilot ranks below the second.
    idle_confirmations = 1
    to_reread = "on a host where sinfo answers"
    unread = staticmethod(doctor.unknown)

    def __init__(self, options: SlurmOptions) -> None:
        conf = options.slurm_conf or os.environ.get("SLURM_CONF")
        slurm_commands = SlurmCommands(
            slurm_conf=str(conf) if conf else None,
            timeout_s=options.command_timeout_s,
            extra_environment=options.environment,
        )
        super().__init__(slurm_commands)
        self.cycle_s = DEFAULT_CYCLE_S
        self._pilot_partition = options.pilot_partition
        self._hook = HookSource(options.hook_file, options.relays)
        self._is_own, self._grace_s = options.is_own, options.grace_s
        self.runs_as_users = bool(options.submit_helper)
        self._cpus_per_node = 0
        self._given = options.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        user = options.user or pwd.getpwuid(os.geteuid()).pw_name
        self._floor: Floor | None = None
        if options.floor_job:
            self._floor = Floor(
                commands=slurm_commands,
                job_id=options.floor_job,
                user=user,
                preamble=options.preamble,
            )
        account_options = []
        if options.account:
            account_options.append(f"--account={options.account}")
        if options.qos:
            account_options.append(f"--qos={options.qos}")
        helper: SubmitHelper | None = None
        if options.submit_helper:
            helper = SubmitHelper(options.submit_helper)
        self._slurm = PilotLauncher(
            commands=slurm_commands,
            partition=options.pilot_partition,
            sbatch_options=(*account_options, *options.sbatch_options),
            grace_s=options.grace_s,
            preamble=options.preamble,
            helper=helper,
        )
        self.launcher = self._slurm
        self._reader = SnapshotReader(
            commands=slurm_commands,
            user=user,
            floor=self._floor,
            pilot_partition=options.pilot_partition,
            partition=options.partition,
            reservations_interval_s=options.reservations_interval_s,
            own_tokens=lambda: self.launcher.tokens,
            is_of_all=self.runs_as_users,
            accept_release=options.accept_release,
            for_pilots=site_options.PilotNodes.of(options.sbatch_options),
        )

    def snapshot(self, *, wants_cycle: bool = True) -> Snapshot:
        """Poll once; a failing source is ``None`` in the snapshot."""
        snapshot = self._reader.read(wants_cycle=wants_cycle)
        if snapshot.jobs is not None:
            self._slurm.running = self._reader.running_pilots
            self._slurm.ahead_s = self._reader.clock.ahead_s
            self._slurm.is_binding_enforced = self._reader.is_binding_enforced
            if self.runs_as_users:
                self._slurm.learn_users(snapshot.jobs)
        if snapshot.nodes:
            self._cpus_per_node = max(node.cpus for node in snapshot.nodes)
        if self._reader.config is not None:
            self.cycle_s = self._reader.config.bf_interval_s
        return snapshot

    def pilot_hosts(self) -> tuple[str, ...]:
        """Return the nodes' addresses (NodeAddr); (): Slurm does not answer."""
        answer = self.commands.query(commands.HOSTS)
        if not answer.is_ok:
            return ()
        return tuple(sorted(set(answer.stdout.split())))

    def launch_pilot(self, request: PilotRequest) -> str:
        """Submit a pilot; raises ``BatchSystemError`` (BFT-1222 to -1224, -1226, -1571)."""
        if self._reader.unknown_release:
            raise releases.refusal(self._reader.unknown_release)
        if self._floor and request.node in self._floor.nodes:
            return self._floor.launch(request)
        job_id = self.launcher.launch(request, cycle_s=self.cycle_s)
        self._reader.remember(job_id, request.pilot_id, request.user)
        return job_id

    def forget_pilot(self, user: str, pilot_id: str) -> None:
        """Have the submit helper remove the files of a pilot that has no job."""
        self._slurm.forget(user, pilot_id)

    def cancel_pilots(self, job_ids: Sequence[str], *, force: bool = False) -> None:
        """Ask the pilots to leave; the second time, after 2 s, Slurm ends them."""
        jobs, steps = self._split(job_ids)
        if self._floor and steps:
            self._floor.cancel(steps)
        if jobs:
            super().cancel_pilots(jobs, force=force)

    def pilot_states(self, job_ids: Sequence[str]) -> Mapping[str, PilotObservation]:
        """Observe each id; ended and unknown ids are absent."""
        jobs, steps = self._split(job_ids)
        states = dict(super().pilot_states(jobs))
        if self._floor:
            for step_id in steps:
                states[step_id] = self._floor.observe(step_id)
        return states

    def _split(self, ids: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the ids of jobs, and those of steps in the user's own allocation."""
        jobs: list[str] = []
        steps: list[str] = []
        for pilot in ids:
            if self._floor and STEP_ID.fullmatch(pilot):
                steps.append(pilot)
            else:
                jobs.append(pilot)
        return jobs, steps

    def _findings(self, measured: Measured) -> tuple[Finding, ...]:
        findings = doctor.findings(self._settings(measured))
        if self._is_own:
            findings = doctor.for_user(findings, grace_s=self._grace_s)
        release = self._reader.unknown_release
        if release:
            findings = (releases.finding(release), *findings)
        return findings

    def _site_files(self) -> tuple[SiteFile, ...]:
        pilots_dir = None  # nodes are this host, or see homes of users
        if not self.runs_as_users and look_around(self.pilot_hosts()).has_others is not False:
            account = self._given.get("user", ACCOUNT)
            pilots_dir = self.pilots_dir or Path("/home", account, "pilots")
        settings = self._settings(NOTHING)
        return site_files(settings, self._given, program=own_program(), pilots_dir=pilots_dir)

    def _settings(self, measured: Measured) -> doctor.SlurmSettings:
        """Read the settings; raises ``ParseError``."""
        config = self.commands.query(commands.CONFIG)
        partitions = self.commands.query(doctor.PARTITION_ARGV)
        for answer in (config, partitions):
            if not answer.is_ok:
                raise UnreadError(why_failed(answer))
        snapshot, name = self._reader.read(wants_cycle=False), self._pilot_partition
        if snapshot.jobs is None:
            raise ParseError(" ".join(snapshot.failures))
        waiting = [j for j in snapshot.jobs if j.is_ordinary and j.state is JobState.PENDING]
        qos, flags = doctor.qos_of(partitions.stdout, name), ""
        if qos:  # fails without a database; then there are no flags
            flags = self.commands.query(doctor.qos_argv(qos)).stdout
        why_not_told = self._hook.why_unusable(self._reader.slurm_uid)
        return doctor.SlurmSettings(
            config=config.stdout,
            partitions=partitions.stdout,
            pilot_partition=name,
            queue_length=len(waiting),
            n_nodes=doctor.n_usable(snapshot.nodes or ()),
            has_hook=self._hook.is_given and not why_not_told,
            why_not_told=why_not_told,
            qos_flags=flags,
            measured=measured,
            clock_ahead_s=self._reader.clock.ahead_s,
            old_munge=releases.old_munge(),
        )

    def open_announcer(self) -> Announcer | None:
        """Watch the file of the site's scripts, or hear relays of it, if the policy says so.

        Raises:
            BatchSystemError: BFT-1231, -1233, -1511, -1512, it cannot be used.
        """
        return self._hook.open(
            self._pilot_partition,
            owner_uid=self._reader.slurm_uid,
            cluster=self._facts,
        )

    def _facts(self) -> ClusterFacts:
        return ClusterFacts(
            cpus_per_node=self._cpus_per_node,
            config=self._reader.config,
            limits=self._reader.limits,
        )

    def try_release(self) -> ReleaseTrial:
        """Try the release of this Slurm; raises ``BatchSystemError`` (BFT-1573, -1575)."""
        snapshot = self._reader.read(wants_cycle=False)
        if self._reader.config is None:
            raise releases.not_known(" ".join(snapshot.failures))
        release, accept = self._reader.release, ""
        if self._reader.unknown_release:
            release = self._reader.unknown_release
            accept = releases.option(release)
        system = create({**self._given, "accept_release": release})
        steps = tuple(NodeTrial(system, self._reader.release, self._pilot_partition).steps())
        return ReleaseTrial(release=release, accept=accept, steps=steps)

    def told_counts(self) -> Mapping[str, int]:
        """Return what relays of the hook told so far, by kind."""
        return self._hook.counts()

    def close(self) -> None:
        """Hear no relay any more."""
        self._hook.close()


def create(options: Mapping[str, Any]) -> SlurmBatchSystem:
    """Create the adapter from the policy's options, without calling Slurm.

    Raises:
        OptionError: BFT-1220, one is unknown or malformed; BFT-1461, one is of the slots of
            earlier releases.
    """
    slots = [name for name in _SLOTS if name in options]
    if slots:
        raise OptionError("BFT-1461", list(map(_of_slots, slots)))
    return SlurmBatchSystem(checked(SlurmOptions, options, code="BFT-1220", name="Slurm"))


def _of_slots(name: str) -> OptionProblem:
    return OptionProblem(
        path=(name,),
        cause=f"Option '{name}' is gone: parts of nodes follow from what the site allocates.",
        next_step="Delete it, and write 'lend: auto' in the policy.",
    )
