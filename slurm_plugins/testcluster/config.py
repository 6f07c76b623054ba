"""The settings of a test cluster, and the configuration files made from them.

``ClusterConfig`` comes from tests and the command line; ``cluster`` writes what ``render`` returns.
The partitions are those that docs/howto/slurm-site.md requires of a site.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from slurm_plugins.hook import scripts
from slurm_plugins.testcluster import gpu_files, sharing
from slurm_plugins.testcluster.gpu_files import GpuCores
from slurm_plugins.testcluster.sharing import Sharing

PREFIX_VARIABLE = "BFTRAINER_SLURM"
"""Names the prefix of another Slurm than the machine's, e.g. /opt/slurm-25.05."""

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

FAST_CYCLE = "batch_sched_delay=0,sched_min_interval=0"
"""Scheduler parameters for fast tests; use with ``bf_interval_s=2``."""

PILOT_QOS = "bfqos"
"""QOS of pilots where ``preempt_type`` is qos; QOS normal preempts it."""

# Character devices of every machine, for users who may not create their own.
_STAND_IN_GPUS = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """The cluster to start. All its files are under ``directory``."""

    directory: Path
    n_nodes: int = 8
    gpus_per_node: int = 4
    gpu_cores: GpuCores = ""  # they are bound to (Cores=), as AutoDetect does; sinfo says it then
    gpu_flags: str = ""  # of gres.conf for all GPUs: no_gpu_env
    hides_gpus: bool = False  # of others from a job (ConstrainDevices); needs root, cgroups v1
    shards_per_node: int = 0  # parts of its GPUs; 0: jobs have whole ones only
    cpus_per_node: int = 4
    memory_mb: int = 4000
    bf_interval_s: int = 30
    scheduler_parameters: str = ""  # added to bf_interval, e.g. FAST_CYCLE
    kill_wait_s: int = 5
    message_timeout_s: int = 10  # Slurm's default; commands give up a second earlier
    up_timeout_s: float = 60.0
    accounting: bool = False  # slurmdbd on a database of its own, so that sacct works
    enforces_limits: bool = False  # of associations and QOS; needs accounting
    has_hook: bool = False  # the scripts of slurm_plugins.hook, which append to hook_file
    grace_time_s: int = 0  # of the pilots' partition
    preempt_type: Literal["partition_prio", "qos"] = "partition_prio"  # qos: needs accounting
    pilot_partition: str = "bf"  # e.g. scavenge, a partition that is not made for pilots
    preempt_mode: Literal["CANCEL", "REQUEUE"] = "CANCEL"  # of that partition
    # GPUs (gpu:4; gpu:a100:2,gpu:1g.10gb:7; gpu:4,shard:16; "": none) and features (a,b) of every
    # node; empty: all nodes are alike.
    node_types: tuple[tuple[str, str], ...] = ()
    sharing: Sharing = field(default_factory=Sharing)
    nodes_per_switch: int = 0  # in node order; 0: no switches configured
    saves_power: bool = False  # nodes can be powered down (``power``)
    prefix: str = field(default_factory=lambda: os.environ.get(PREFIX_VARIABLE, ""))

    @property
    def path(self) -> str:
        """The PATH on which its programs are found: those under ``prefix`` first."""
        if not self.prefix:
            return _PATH
        return f"{self.prefix}/bin:{self.prefix}/sbin:{_PATH}"

    @property
    def cluster_name(self) -> str:
        """Name that identifies the cluster's own processes."""
        return "bft" + hashlib.sha256(str(self.directory.resolve()).encode()).hexdigest()[:10]

    @property
    def slurm_conf(self) -> Path:
        """The slurm.conf for commands."""
        return self.directory / "etc" / "slurm.conf"

    @property
    def hook_file(self) -> Path:
        """The file that the hook's scripts create and append to."""
        return self.directory / "hook" / "told"

    def batch_options(self, *, is_told: bool = True) -> dict[str, str]:
        """Return the options of the adapter ``slurm`` for this cluster.

        ``is_told``: use the hook, if the cluster has it.
        """
        options = {"slurm_conf": str(self.slurm_conf)}
        if self.pilot_partition != "bf":
            options["pilot_partition"] = self.pilot_partition
        if self.has_hook and is_told:
            options["hook_file"] = str(self.hook_file)
        if self.preempt_type == "qos":
            options["qos"] = PILOT_QOS
        return options

    @property
    def gres(self) -> tuple[str, ...]:
        """The generic resources of every node, as slurm.conf has them."""
        if self.node_types:
            return tuple(gres for gres, _ in self.node_types)
        parts = []
        if self.gpus_per_node:
            parts.append(f"gpu:{self.gpus_per_node}")
        if self.shards_per_node:
            parts.append(f"shard:{self.shards_per_node}")
        return (",".join(parts),) * self.n_nodes

    @property
    def gres_names(self) -> tuple[str, ...]:
        """The names of those: gpu, shard."""
        names = set[str]()
        for gres in set(self.gres):
            for resource in gpu_files.resources_of(gres):
                names.add(resource.name)
        return tuple(sorted(names))

    @property
    def n_gpu_files(self) -> int:
        """How many files stand for the GPUs of any node."""
        return max(map(gpu_files.files_needed, set(self.gres)))

    @property
    def node_names(self) -> tuple[str, ...]:
        """All nodes: n1, n2 and so on."""
        return tuple(f"n{number}" for number in range(1, self.n_nodes + 1))

    def save(self) -> None:
        """Store the settings in the directory, for later commands."""
        values = {**dataclasses.asdict(self), "directory": str(self.directory)}
        (self.directory / "cluster.json").write_text(json.dumps(values, indent=2) + "\n")

    @classmethod
    def load(cls, directory: Path) -> ClusterConfig:
        """Read what ``save`` stored."""
        values: dict[str, Any] = json.loads((directory / "cluster.json").read_text())
        values["directory"] = directory
        values["node_types"] = tuple((gres, features) for gres, features in values["node_types"])
        values["sharing"] = Sharing(**values["sharing"])
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Settings that depend on this machine."""

    hostname: str
    user: str
    controller_port: int
    node_ports: tuple[int, ...]
    gpu_devices: tuple[str, ...]
    added: Mapping[str, object] = field(default_factory=dict)  # settings of slurm.conf


def render(config: ClusterConfig, site: Site) -> dict[str, str]:
    """Return the configuration files by name."""
    files = {
        "slurm.conf": _slurm_conf(config, site),
        "gres.conf": "".join(f"{line}\n" for line in ("AutoDetect=off", *_gpus(config, site))),
        "cgroup.conf": _cgroup_conf(config),
    }
    if config.nodes_per_switch:
        files["topology.conf"] = "".join(f"{line}\n" for line in _switches(config))
    return files


def _cgroup_conf(config: ClusterConfig) -> str:
    """Return a file that Slurm requires also where it uses no cgroups."""
    text = "CgroupPlugin=cgroup/v1\n"
    if config.hides_gpus:
        text += "ConstrainDevices=yes\n"
    return text


def _gpus(config: ClusterConfig, site: Site) -> list[str]:
    lines = []
    for name, gres in zip(config.node_names, config.gres, strict=True):
        prefix = ""
        if config.node_types:
            prefix = f"NodeName={name} "
        lines += gpu_files.lines(
            gres,
            site.gpu_devices,
            n_cpus=config.cpus_per_node,
            cores=config.gpu_cores,
            flags=config.gpu_flags,
            prefix=prefix,
        )
        if not config.node_types:  # these lines are for all nodes
            break
    return lines


def _switches(config: ClusterConfig) -> list[str]:
    names, n_per_switch = config.node_names, config.nodes_per_switch
    lines: list[str] = []
    for first in range(0, len(names), n_per_switch):
        group = ",".join(names[first : first + n_per_switch])
        lines.append(f"SwitchName=s{len(lines) + 1} Nodes={group}")
    return [*lines, f"SwitchName=top Switches=s[1-{len(lines)}]"]


def gpu_devices(config: ClusterConfig, *, own_devices: bool) -> tuple[str, ...]:
    """Device files that stand for GPUs: our own null devices, or those of every machine."""
    if own_devices:
        return tuple(
            str(config.directory / "run" / f"nvidia{number}")
            for number in range(config.n_gpu_files)
        )
    return _STAND_IN_GPUS[: config.n_gpu_files]


def _slurm_conf(config: ClusterConfig, site: Site) -> str:
    where = config.directory
    parameters = [f"bf_interval={config.bf_interval_s}"]
    if config.scheduler_parameters:
        parameters.append(config.scheduler_parameters)
    settings: dict[str, object] = {
        "ClusterName": config.cluster_name,
        "SlurmctldHost": f"{site.hostname}(127.0.0.1)",
        "SlurmctldPort": site.controller_port,
        "SlurmUser": site.user,
        "SlurmdUser": site.user,
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={where}/run/munge.sock",
        "CryptoType": "crypto/munge",
        "CommunicationParameters": "NoAddrCache",
        "StateSaveLocation": f"{where}/state",
        "SlurmdSpoolDir": f"{where}/spool/%n",
        "SlurmctldPidFile": f"{where}/run/slurmctld.pid",
        "SlurmdPidFile": f"{where}/run/slurmd.%n.pid",
        "SlurmctldLogFile": f"{where}/log/slurmctld.log",
        "SlurmdLogFile": f"{where}/log/slurmd.%n.log",
        "SlurmctldDebug": "info",
        "SlurmdDebug": "info",
        "LogTimeFormat": "iso8601_ms",
        "MpiDefault": "none",
        # Neither cgroups nor systemd nor root are needed with these, unless GPUs are hidden.
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/cgroup" if config.hides_gpus else "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "SwitchType": "switch/none",
        "SlurmdParameters": "config_overrides",  # nodes may claim more than the host has
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_CPU_Memory",
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": ",".join(parameters),
        "EnforcePartLimits": "ANY",  # a job that could never run is refused, not queued
        "PreemptType": f"preempt/{config.preempt_type}",
        "PreemptMode": "CANCEL",
        "PriorityType": "priority/multifactor",
        "KillWait": config.kill_wait_s,
        "MessageTimeout": config.message_timeout_s,
        "UnkillableStepTimeout": 120,
        "InactiveLimit": 0,
        "MinJobAge": 300,
        "ReturnToService": 2,
        "SlurmdTimeout": 60,
        "TreeWidth": 65533,
        "MaxJobCount": 20000,
    }
    if config.preempt_type == "qos":
        settings["PriorityWeightQOS"] = 100_000  # else pilots would rank like other jobs
    if config.gres_names:
        settings["GresTypes"] = ",".join(config.gres_names)
    if config.nodes_per_switch:
        settings["TopologyPlugin"] = "topology/tree"
    settings |= site.added
    if config.has_hook:
        settings |= scripts.settings(config.slurm_conf.parent)
    lines = [f"{key}={value}" for key, value in settings.items()]
    return "\n".join([*lines, *_nodes_and_partitions(config, site)]) + "\n"


def _what_nodes_have(config: ClusterConfig) -> list[str]:
    """Return GPUs, features and limits of every node in the syntax of slurm.conf."""
    features_of_nodes = [features for _, features in config.node_types] or [""] * config.n_nodes
    texts = []
    for gres, features in zip(config.gres, features_of_nodes, strict=True):
        text = sharing.node_settings(config.sharing)
        if gres:
            text += f" Gres={gres}"
        if features:
            text += f" Features={features}"
        texts.append(text)
    return texts


def _rank_of_pilots(config: ClusterConfig) -> str:
    """By partition, or by QOS with partitions of one tier."""
    if config.preempt_type == "qos":
        return f"PriorityTier=10 QOS={PILOT_QOS}"
    return "PriorityTier=1"


def _nodes_and_partitions(config: ClusterConfig, site: Site) -> list[str]:
    return [
        *(
            f"NodeName={name} NodeHostname={site.hostname} NodeAddr=127.0.0.1 Port={port}"
            f" CPUs={config.cpus_per_node} RealMemory={config.memory_mb}{extra} State=UNKNOWN"
            for name, port, extra in zip(
                config.node_names, site.node_ports, _what_nodes_have(config), strict=True
            )
        ),
        (
            "PartitionName=batch Nodes=ALL Default=YES PriorityTier=10 PreemptMode=OFF"
            " MaxTime=1-00:00:00 DefaultTime=10 State=UP"
            f"{sharing.ordinary_settings(config.sharing)}"
        ),
        (
            f"PartitionName={config.pilot_partition} Nodes=ALL {_rank_of_pilots(config)}"
            f" PreemptMode={config.preempt_mode}"
            f" GraceTime={config.grace_time_s} MaxTime=12:00:00 DefaultTime=10 State=UP"
            f"{sharing.pilot_settings(config.sharing)}"
        ),
    ]
