"""A real multi-node Slurm on one host: for tests and development.

``SlurmTestCluster(ClusterConfig(directory=...))`` is the Python interface,
``bftrainer-testcluster`` the command; nothing system-wide is changed.
"""

from slurm_plugins.testcluster.cluster import SlurmTestCluster
from slurm_plugins.testcluster.config import FAST_CYCLE, ClusterConfig

__all__ = ["FAST_CYCLE", "ClusterConfig", "SlurmTestCluster"]
