"""A stand-in of LSF on one host: for tests and development where no LSF is installed.

``LsfTestCluster(LsfConfig(directory=...))`` is the Python interface. Its commands and one
server per cluster act like LSF's, in two dialects: ``ibm`` (LSF 10.1 as documented) and
``volclava`` (an open relative of LSF 2.0, as recorded). Jobs are real processes.
"""

from lsf_adapters.testcluster.cluster import LsfTestCluster
from lsf_adapters.testcluster.config import LsfConfig, Parameters, Profile, Queue

__all__ = ["LsfConfig", "LsfTestCluster", "Parameters", "Profile", "Queue"]
