"""A cluster of several *hosts* on one machine: Linux namespaces, a real Slurm, nothing mocked.

Each host has its own network, hostname, processes, file systems and boot id; only /home is shared.
No packet passes from host to host but over its cable, and none to or from this machine::

    with running_hosts(n_nodes=3) as cluster:
        cluster.does("login", "sbatch --wrap 'hostname'", user="ada")
        cluster.cut("n1")  # no FIN, no RST, no lost carrier
        cluster.mend("n1")

Hosts are ``ctl`` (slurmctld), ``login`` and ``n1``, ``n2``, ... (slurmd). Needs root, iproute2,
nftables, util-linux, MUNGE and Slurm: ``why_not`` says what is missing, and then tests are skipped.
"""

from tests.support.hosts.cluster import Cluster, HostError, running_hosts
from tests.support.hosts.plan import Names, Plan

__all__ = ["Cluster", "HostError", "Names", "Plan", "running_hosts"]
