"""Slurm (22.05 and later) as a batch system of bftrainer.

``create`` is the entry point ``bftrainer.batch_systems: slurm``; the daemon calls what
it returns from its worker thread. The site's settings it relies on are in docs/slurm.md.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic

from bftrainer.errors import ExitCode, UsageError
from bftrainer.poll.batch_system import PilotObservation, PilotRequest
from bftrainer.poll.snapshot import Snapshot
from slurm_plugins.commands import DEFAULT_TIMEOUT_S, SlurmCommands
from slurm_plugins.launcher import PilotLauncher
from slurm_plugins.snapshot import SnapshotReader

DEFAULT_CYCLE_S = 30.0
"""Slurm's own default of bf_interval, until the controller has told us."""


class SlurmOptions(pydantic.BaseModel):
    """What the policy file may say about Slurm."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    slurm_conf: Path | None = None  # default: $SLURM_CONF, else Slurm's own search
    partition: str | None = None  # report only nodes that are also in this partition
    pilot_partition: str = "bf"
    command_timeout_s: float = pydantic.Field(default=DEFAULT_TIMEOUT_S, gt=0)
    reservations_interval_s: float = pydantic.Field(default=30.0, ge=0)
    account: str | None = None
    qos: str | None = None
    user: str | None = None  # whose pilots are ours; default: who runs the daemon
    environment: dict[str, str] = {}  # for the commands, e.g. a PATH


class SlurmBatchSystem:
    """One Slurm cluster, seen and used through its commands."""

    def __init__(self, options: SlurmOptions) -> None:
        self.name = "slurm"
        # One snapshot is enough: Slurm's own queue order protects what is between two jobs.
        self.idle_confirmations = 1
        self.cycle_s = DEFAULT_CYCLE_S
        conf = options.slurm_conf or os.environ.get("SLURM_CONF")
        self.commands = SlurmCommands(
            slurm_conf=str(conf) if conf else None,
            timeout_s=options.command_timeout_s,
            extra_environment=options.environment,
        )
        self._reader = SnapshotReader(
            commands=self.commands,
            user=options.user or pwd.getpwuid(os.geteuid()).pw_name,
            pilot_partition=options.pilot_partition,
            partition=options.partition,
            reservations_interval_s=options.reservations_interval_s,
        )
        site = {"--account": options.account, "--qos": options.qos}
        self._launcher = PilotLauncher(
            commands=self.commands,
            partition=options.pilot_partition,
            sbatch_options=tuple(f"{key}={value}" for key, value in site.items() if value),
        )

    @property
    def requests(self) -> int:
        """Commands sent to the controller so far."""
        return self.commands.requests

    def snapshot(self) -> Snapshot:
        """Look once; a failing source is ``None`` in the snapshot."""
        snapshot = self._reader.read()
        if snapshot.jobs is not None:
            self._launcher.running = self._reader.running_pilots
        if self._reader.config is not None:
            self.cycle_s = self._reader.config.bf_interval_s
        return snapshot

    def launch_pilot(self, request: PilotRequest) -> str:
        """Submit a pilot; raises ``BatchSystemError`` (BFT-1222 to -1224, -1226)."""
        job_id = self._launcher.launch(request, cycle_s=self.cycle_s)
        self._reader.remember(job_id, request.pilot_id)
        return job_id

    def cancel_pilots(self, job_ids: Sequence[str], *, force: bool = False) -> None:
        """Ask the pilots to leave; the second time, after 2 s, Slurm ends them."""
        self._launcher.cancel(job_ids, force=force)

    def pilot_states(self, job_ids: Sequence[str]) -> Mapping[str, PilotObservation]:
        """Observe each id; ended and unheard-of ids are absent."""
        return self._launcher.observe(job_ids)

    def close(self) -> None:
        """Nothing is held open between two commands."""


def create(options: Mapping[str, Any]) -> SlurmBatchSystem:
    """Create the adapter from the policy's options.

    Raises:
        UsageError: BFT-1220 when an option is unknown or malformed.
    """
    try:
        checked = SlurmOptions.model_validate(dict(options))
    except pydantic.ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(
            "BFT-1220",
            f"Option {where!r} of the Slurm batch system is wrong: {first['msg']}.",
            f"Use only: {', '.join(SlurmOptions.model_fields)}.",
            exit_code=ExitCode.VALIDATION_FAILED,
        ) from problem
    return SlurmBatchSystem(checked)
