"""The files in /etc of the hosts: Slurm, MUNGE, users and names. Pure but for the random key."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from tests.support.hosts.plan import CONTROLLER, USERS, Plan

_SLURM = """\
ClusterName=hosts
SlurmctldHost={controller}
SlurmUser=slurm
AuthType=auth/munge
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
LogTimeFormat=iso8601_ms
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,batch_sched_delay=0,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
PriorityType=priority/multifactor
KillWait=5
ReturnToService=2
SlurmdTimeout=60
MinJobAge=300
EnforcePartLimits=ANY
"""
# ``scavenge`` is an ordinary site's partition of low priority; ``bf`` is made for pilots.
_PARTITIONS = """\
PartitionName=batch Nodes=ALL Default=YES PriorityTier=10 PreemptMode=OFF \
MaxTime=1-00:00:00 DefaultTime=10 State=UP
PartitionName=bf Nodes=ALL PriorityTier=1 PreemptMode=CANCEL GraceTime=0 \
MaxTime=04:00:00 DefaultTime=10 MaxNodes=1 State=UP
PartitionName=scavenge Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime=0 \
MaxTime=12:00:00 DefaultTime=10 State=UP
"""


def slurm_conf(plan: Plan) -> str:
    """Return slurm.conf; a line of ``plan.slurm`` replaces ours of the same key."""
    lines = _SLURM.format(controller=CONTROLLER).splitlines()
    if plan.names == "ipv6":
        lines.append("CommunicationParameters=EnableIPv6,DisableIPv4")
    given = {line.partition("=")[0] for line in plan.slurm}
    lines = [line for line in lines if line.partition("=")[0] not in given]
    size = f"CPUs={plan.cpus_per_node} RealMemory={plan.memory_mb} State=UNKNOWN"
    lines += [*plan.slurm, *(f"NodeName={node} {size}" for node in plan.nodes)]
    return "".join(f"{line}\n" for line in lines) + _PARTITIONS


def write(directory: Path, plan: Plan) -> None:
    """Write ``common/``, for all hosts, and a directory for each."""
    common = directory / "common"
    accounts = {name: Path(f"/etc/{name}").read_text() for name in ("passwd", "group")}
    for user, number in USERS.items():
        accounts["passwd"] += f"{user}:x:{number}:{number}::/home/{user}:/bin/bash\n"
        accounts["group"] += f"{user}:x:{number}:\n"
    files = {
        "slurm/slurm.conf": slurm_conf(plan),
        "slurm/cgroup.conf": "CgroupPlugin=cgroup/v1\n",  # required, but unused
        "resolv.conf": "",
        "nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files\n",
        **accounts,
    }
    for name, text in files.items():
        path = common / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (common / "munge").mkdir()
    (common / "munge" / "munge.key").write_bytes(os.urandom(128))
    for host in plan.hosts:
        own = directory / host
        own.mkdir()
        (own / "hosts").write_text(plan.hosts_file(host))
        (own / "hostname").write_text(f"{host}\n")
        (own / "machine-id").write_text(f"{uuid.uuid4().hex}\n")
