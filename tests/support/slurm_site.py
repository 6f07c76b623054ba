"""A machine whose Slurm looks like a site's: configured in /etc/slurm, started by systemd.

Three idle nodes, no pilots' partition, and bftrainer where its package would be. The test reads
and types as root what an administrator would.
"""

from __future__ import annotations

from slurm_plugins.testcluster import FAST_CYCLE
from tests.support.machine import ROOT, Machine
from tests.support.waiting import wait_for

BIN = ROOT / ".venv" / "bin"
CLUSTER = "/srv/cluster"
_SLURMCTLD = """\
[Service]
ExecStart=/usr/sbin/slurmctld -D -f /etc/slurm/slurm.conf
"""
_PACKAGE = f"""\
ln -s {ROOT}/.venv /opt/bftrainer
for program in bftrainer bftrainer-slurm-hook; do ln -s {BIN}/$program /usr/local/bin; done
"""
# An ordinary user, where the page wants one.
_USER = "useradd --create-home ada"
_SLURM = f"""\
{BIN}/bftrainer-testcluster up --nodes 3 --gpus 0 --directory {CLUSTER}
ln -s {CLUSTER}/etc /etc/slurm
sed -i '/^PartitionName=bf /d; s/^SchedulerParameters=.*/&,{FAST_CYCLE}/' /etc/slurm/slurm.conf
sed -i 's/bf_interval=30/bf_interval=2/' /etc/slurm/slurm.conf
kill $(cat {CLUSTER}/run/slurmctld.pid)
while pgrep -x slurmctld; do sleep 0.1; done
systemctl daemon-reload
systemctl start slurmctld
"""


def prepare(machine: Machine) -> None:
    """Install both, and wait until Slurm answers."""
    machine.write("/etc/systemd/system/slurmctld.service", _SLURMCTLD)
    machine.does(_PACKAGE)
    machine.does(_USER)
    machine.does(_SLURM)
    wait_for(lambda: machine.run("sinfo -h").is_ok, what="slurmctld answers")
