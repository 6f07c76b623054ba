"""The settings of a stand-in cluster: delays, queues and parameters.

``LsfConfig`` comes from tests; ``cluster`` stores it, the server reads it. The defaults are the
site that docs/howto describes: pilots go to a preemptable queue that backfills.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

Dialect = Literal["ibm", "volclava"]

CLUSTER = "lab"
"""Name of the cluster, as in the recorded one."""

MASTER = "lsfm"
"""The host of the daemons; it has no slots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """All delays of the batch system; pairs are the bounds of an even distribution.

    The profiles LAB2 and LAB10 have the delays measured on volclava 2.2 with
    MBD_SLEEP_TIME=2 and 10; FAST has none that a test would notice, but for that before KILL.
    """

    FAST: ClassVar[Profile]
    LAB2: ClassVar[Profile]
    LAB10: ClassVar[Profile]

    mbd_sleep_s: float  # pause between two passes of the scheduler
    sbd_sleep_s: float
    new_job_sched_delay_s: float | None  # an additional pass so long after a submission
    end_noticed_s: tuple[float, float]  # a job's process is gone -> its end is known
    answer_s: tuple[float, float]  # bsub is called -> it returns
    lim_exchange_s: float  # an exclusive job's lock of its host is gone at the next exchange
    terminate_interval_s: float  # JOB_TERMINATE_INTERVAL: between INT, TERM and KILL
    usr2_to_kill_s: float  # the run limit: SIGUSR2, and so much later the end
    unreach_s: float  # lim and sbatchd of a host are dead -> its status is unreach
    unavail_s: float  # the same -> unavail
    sbd_unreach_s: float  # sbatchd alone is dead -> unreach
    start_fails_s: float  # a start that fails -> the job waits again
    host_back_s: float  # lim and sbatchd were started -> ok
    retry_s: float  # a command asks again if nobody answers
    clean_period_s: float  # finished jobs stay visible


Profile.FAST = Profile(
    mbd_sleep_s=0.5,
    sbd_sleep_s=0.1,
    new_job_sched_delay_s=0.02,
    end_noticed_s=(0.0, 0.0),
    answer_s=(0.0, 0.0),
    lim_exchange_s=0.5,
    terminate_interval_s=3.0,  # so that pilots leave in time on a busy machine, too
    usr2_to_kill_s=2.0,
    unreach_s=1.0,
    unavail_s=1.5,
    sbd_unreach_s=2.0,
    start_fails_s=0.5,
    host_back_s=0.5,
    retry_s=2.0,  # a busy machine's answer must not be taken for none: duplicates
    clean_period_s=3600,
)
Profile.LAB2 = Profile(
    mbd_sleep_s=2,
    sbd_sleep_s=2,
    new_job_sched_delay_s=0.05,
    end_noticed_s=(0.1, 2.5),
    answer_s=(0.05, 0.1),
    lim_exchange_s=15,
    terminate_interval_s=10,
    usr2_to_kill_s=600,
    unreach_s=107,
    unavail_s=112,
    sbd_unreach_s=319,
    start_fails_s=5,
    host_back_s=55,
    retry_s=10,
    clean_period_s=3600,
)
Profile.LAB10 = dataclasses.replace(
    Profile.LAB2, mbd_sleep_s=10, sbd_sleep_s=7, new_job_sched_delay_s=None
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """One queue of lsb.queues."""

    name: str
    priority: int
    description: str = "No description provided."
    is_default: bool = False
    backfills: bool = False  # BACKFILL
    reserve_passes: int = 0  # SLOT_RESERVE = MAX_RESERVE_TIME[...]
    is_preemptive: bool = False  # PREEMPTION; only IBM's LSF knows it
    is_preemptable: bool = False
    terminates_preempted: bool = False  # TERMINATE_WHEN = PREEMPT
    allows_exclusive: bool = True
    default_limit_s: float | None = None  # RUNLIMIT, of jobs that name none
    max_limit_s: float | None = None
    terminate_signal: str = ""  # JOB_CONTROLS = TERMINATE[...], e.g. SIGTERM
    users: tuple[str, ...] = ()  # empty: all
    hosts: tuple[str, ...] = ()
    max_slots_per_user: int | None = None  # UJOB_LIMIT
    is_rerunnable: bool = False

    @property
    def preemption(self) -> str:
        """The value of PREEMPTION; empty without."""
        if self.is_preemptive:
            return "PREEMPTIVE"
        return "PREEMPTABLE" if self.is_preemptable else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Settings of lsb.params and lsf.conf."""

    preempt_delay_s: float = 0.0
    max_job_preempt: int | None = None  # a job suspended so often is not preempted again
    preempt_jobtype: tuple[str, ...] = ("BACKFILL",)
    allocation_planner: bool = False
    sequential_signal: bool = False  # LSB_USE_SEQUENTIAL_SIGNAL
    disable_limlock_excl: bool = False  # LSB_DISABLE_LIMLOCK_EXCL
    display_year: bool = False  # LSB_DISPLAY_YEAR
    short_hostlist: bool = False  # LSB_SHORT_HOSTLIST
    max_job_num: int = 1000  # lsb.events is switched after so many finished jobs
    cpu_factor: float = 100.0  # of every host
    administrators: tuple[str, ...] = ("root", "lsfadm")
    min_slots_per_job: int = 1


def standard_queues(dialect: Dialect) -> tuple[Queue, ...]:
    """Return ``normal`` for ordinary jobs and ``bf`` for pilots."""
    is_ibm = dialect == "ibm"
    return (
        Queue(
            name="normal",
            priority=30,
            is_default=True,
            backfills=True,
            reserve_passes=1000,
            is_preemptive=is_ibm,
        ),
        Queue(
            name="bf",
            priority=1,
            description="pilots",
            backfills=True,
            is_preemptable=is_ibm,
            terminates_preempted=is_ibm,
            default_limit_s=600,
            max_limit_s=240 * 60,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LsfConfig:
    """The cluster to start. All its files are under ``directory``."""

    directory: Path
    dialect: Dialect = "ibm"
    n_nodes: int = 5
    slots_per_node: int = 4  # MXJ
    gpus_per_node: int = 0
    memory_mb: int = 4000
    profile: Profile = field(default_factory=lambda: Profile.FAST)
    queues: tuple[Queue, ...] = ()  # empty: the standard ones of the dialect
    parameters: Parameters = field(default_factory=Parameters)
    pilot_queue: str = "bf"
    root_may_submit: bool = True  # LSF refuses jobs of root; tests run as root
    up_timeout_s: float = 30.0
    # Node -> a command that runs others there, in the same space of processes; all others are here.
    enter: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def node_names(self) -> tuple[str, ...]:
        """All hosts with slots: n1, n2 and so on."""
        return tuple(f"n{number}" for number in range(1, self.n_nodes + 1))

    @property
    def all_queues(self) -> tuple[Queue, ...]:
        """The configured queues, by priority."""
        queues = self.queues or standard_queues(self.dialect)
        return tuple(sorted(queues, key=lambda queue: -queue.priority))

    @property
    def is_ibm(self) -> bool:
        """Return whether IBM's LSF is imitated."""
        return self.dialect == "ibm"

    @property
    def conf(self) -> Path:
        """LSF_ENVDIR."""
        return self.directory / "conf"

    @property
    def bin(self) -> Path:
        """Directory of the commands."""
        return self.directory / "bin"

    @property
    def socket(self) -> Path:
        """The socket on which the server listens."""
        return self.directory / "run" / "mbatchd"

    @property
    def logdir(self) -> Path:
        """Directory of lsb.events."""
        return self.directory / "work" / CLUSTER / "logdir"

    @property
    def events_file(self) -> Path:
        """The journal of mbatchd."""
        return self.logdir / "lsb.events"

    def batch_options(self) -> dict[str, str]:
        """Return the options of the adapter ``lsf`` for this cluster."""
        options = {
            "lsf_envdir": str(self.conf),
            "bindir": str(self.bin),
            "events_file": str(self.events_file),
        }
        if self.pilot_queue != "bf":
            options["pilot_queue"] = self.pilot_queue
        return options

    def save(self) -> None:
        """Store the settings in the directory, for the server and later commands."""
        values = {**dataclasses.asdict(self), "directory": str(self.directory)}
        (self.directory / "cluster.json").write_text(json.dumps(values, indent=2) + "\n")

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read what ``save`` stored."""
        values: dict[str, Any] = json.loads((directory / "cluster.json").read_text())
        return cls(
            **{
                **values,
                "directory": directory,
                "profile": Profile(**_tuples(values["profile"])),
                "queues": tuple(Queue(**_tuples(queue)) for queue in values["queues"]),
                "parameters": Parameters(**_tuples(values["parameters"])),
            }
        )


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with JSON's lists made tuples again."""
    settings = dict(values)
    for name, value in values.items():
        if isinstance(value, list):
            settings[name] = tuple(value)
    return settings
