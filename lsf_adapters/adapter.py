"""LSF as a batch system of bftrainer: IBM Spectrum LSF 10.1 and volclava 2.

``create`` is the entry point ``bftrainer.batch_systems: lsf``; the daemon calls the result from its
background threads. docs/howto/lsf-site.md lists the site settings it relies on.
"""

from __future__ import annotations

import logging
import os
import pwd
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pydantic

from bftrainer.batch.announcer import Announcer
from bftrainer.batch.batch_system import PilotRequest
from bftrainer.batch.commands import DEFAULT_TIMEOUT_S, LaunchingSystem
from bftrainer.batch.options import Value, Variable, checked
from bftrainer.batch.service_files import ACCOUNT
from bftrainer.batch.site_inspector import own_program
from bftrainer.fleet.wire.listener import look_around
from bftrainer.model.cluster import Snapshot
from bftrainer.model.errors import BatchSystemError
from bftrainer.model.site import Finding, Measured, SiteFile
from lsf_adapters import doctor
from lsf_adapters.commands import LSHOSTS, LsfCommands
from lsf_adapters.jobs import JobReader
from lsf_adapters.launcher import PilotLauncher
from lsf_adapters.notifications.esub import SubmissionFiles
from lsf_adapters.notifications.watch import EventsFile
from lsf_adapters.queues import DEFAULT_CYCLE_S, Facts, facts, read_settings
from lsf_adapters.site_files import site_files
from lsf_adapters.snapshot import SnapshotReader

LOG = logging.getLogger("bftrainer.lsf")
_Word = Annotated[str, pydantic.StringConstraints(pattern=r"^[^\s\x00]+$")]
# Options of earlier releases → why there is none any more.
REMOVED = dict.fromkeys(
    ("launch", "block_nodes", "alloc_flags"), "the machines with IBM's CSM are switched off"
)


class LsfOptions(pydantic.BaseModel):
    """Options of the policy file, under ``batch_options``."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    lsf_envdir: Path | None = None  # default: $LSF_ENVDIR, else LSF's own search
    bindir: Path | None = None  # of the commands; default: as in $PATH
    pilot_queue: _Word = "bf"
    project: _Word | None = None  # bsub -P
    user_group: _Word | None = None  # bsub -G
    command_timeout_s: float = pydantic.Field(default=DEFAULT_TIMEOUT_S, gt=0)
    rarely_s: float = pydantic.Field(default=30.0, ge=0)  # queues and reservations are read
    user: str | None = None  # owner of our pilots; default: the user of the daemon
    environment: dict[Variable, Value] = {}  # for the commands
    events_file: Path | None = None  # lsb.events, to be told of jobs at once
    esub_place: Path | None = None  # folder of what esub or epsub tells, if lsb.events is closed
    plan_file: Path | None = None  # of the planner (ALLOCATION_PLANNER=Y)
    gpus_per_node: int = pydantic.Field(default=0, ge=0)  # where LSF does not tell
    preamble: Path | None = None  # shell file under which agents run


class LsfBatchSystem(LaunchingSystem):
    """One LSF cluster, used through its commands."""

    name = "lsf"
    # One snapshot is enough: queues are served by priority, pilots last.
    idle_confirmations = 1
    to_reread = "where lsid, bqueues -l and bparams -l answer"
    unread = staticmethod(doctor.unknown)

    def __init__(self, options: LsfOptions) -> None:
        self.cycle_s, self._options = DEFAULT_CYCLE_S, options
        self._user = options.user or pwd.getpwuid(os.geteuid()).pw_name
        self._lsf = LsfCommands(
            lsf_envdir=options.lsf_envdir,
            bindir=options.bindir,
            timeout_s=options.command_timeout_s,
            extra_environment=options.environment,
        )
        super().__init__(self._lsf)
        jobs = JobReader(self._lsf)
        self._reader = SnapshotReader(
            jobs=jobs,
            user=self._user,
            pilot_queue=options.pilot_queue,
            rarely_s=options.rarely_s,
            plan_file=options.plan_file,
            gpus_per_node=options.gpus_per_node,
            own_tokens=lambda: self.launcher.tokens,
        )
        bsub_options: list[str] = []
        if options.project:
            bsub_options += ["-P", options.project]
        if options.user_group:
            bsub_options += ["-G", options.user_group]
        self.launcher = PilotLauncher(
            commands=self._lsf,
            jobs=jobs,
            queue=options.pilot_queue,
            slots_of=self._reader.slots_of,
            bsub_options=bsub_options,
            preamble=options.preamble,
        )

    def snapshot(self, *, wants_cycle: bool = True) -> Snapshot:
        """Poll once; a failing source is ``None`` in the snapshot.

        Further jobs of one pilot, which a repeated bsub has made, are cancelled here.
        """
        del wants_cycle  # LSF does not report its cycles
        snapshot = self._reader.read()
        self.cycle_s = self._reader.cycle_s
        if snapshot.jobs is not None:
            self.launcher.running = frozenset(self._reader.ours)
        if self._reader.duplicates:
            LOG.warning("duplicates of pilots are cancelled: %s", " ".join(self._reader.duplicates))
            try:
                self.launcher.cancel(self._reader.duplicates, force=True)
            except BatchSystemError as problem:
                LOG.warning("the next poll tries again: %s", problem)
        return snapshot

    def pilot_hosts(self) -> tuple[str, ...]:
        """Return the names of LSF's hosts; (): LSF does not answer."""
        answer = self.commands.query(LSHOSTS)
        if not answer.is_ok:
            return ()
        _head, *lines = answer.stdout.splitlines() or [""]  # HOST_NAME ...
        return tuple(line.split()[0] for line in lines if line.strip())

    def launch_pilot(self, request: PilotRequest) -> str:
        """Submit a pilot; raises ``BatchSystemError`` (BFT-1203 to -1206, -1208)."""
        if not self._reader.slots:
            self._reader.read()
        return self.launcher.launch(request, cycle_s=self.cycle_s)

    def _findings(self, measured: Measured) -> tuple[Finding, ...]:
        return doctor.findings(self._facts(), measured)

    def _site_files(self) -> tuple[SiteFile, ...]:
        options = self._options.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        site = self._facts()
        if site.user == "root":  # an administrator asks; root runs no daemon
            site = replace(site, user=ACCOUNT)
        pilots_dir = None  # no host is known to be another one
        if look_around(self.pilot_hosts()).has_others:
            pilots_dir = self.pilots_dir or Path("/home", site.user, "pilots")
        return site_files(site, options, program=own_program(), pilots_dir=pilots_dir)

    def _facts(self) -> Facts:
        """Read the settings; raises ``ParseError``."""
        settings = read_settings(
            self._lsf,
            pilot_queue=self._options.pilot_queue,
            user=self._user,
            envdir=Path(self._lsf.base_environment().get("LSF_ENVDIR", "/etc")),
            why_not_told=self._why_not_told(),
        )
        return facts(settings)

    def _why_not_told(self) -> str:
        """Say why jobs are noticed by polling alone; "": they are not."""
        if self._options.events_file is None and self._options.esub_place is None:
            return "events_file is not set"
        try:
            announcer = self.open_announcer()
        except BatchSystemError as problem:
            return problem.cause
        if announcer is not None:
            announcer.close()
        return ""

    def open_announcer(self) -> Announcer | None:
        """Follow lsb.events, or the files of esub, if the policy names one of them.

        Not both: a job that is announced twice and shown once would look refused.

        Raises:
            BatchSystemError: BFT-1211 to -1214, it cannot be used; polling goes on.
        """
        events, place = self._options.events_file, self._options.esub_place
        queue = self._options.pilot_queue
        if events is not None:
            return EventsFile(events, queue, slots_of=lambda: self._reader.slots)
        if place is not None:
            return SubmissionFiles(place, queue, slots_of=lambda: self._reader.slots)
        return None


def create(options: Mapping[str, Any]) -> LsfBatchSystem:
    """Create the adapter from the policy's options, without calling LSF.

    Raises:
        OptionError: BFT-1202, one is unknown, malformed or of an earlier release.
    """
    return LsfBatchSystem(
        checked(LsfOptions, options, code="BFT-1202", name="LSF", removed=REMOVED)
    )
