"""A real volclava of several hosts on this machine, for tests that compare with it.

volclava is an open relative of LSF (github.com/bytedance/volclava), used from an installation
outside the project that BFTRAINER_VOLCLAVA names. Each of its hosts is a UTS namespace with an
address of its own; all are in one network and one process namespace, which end with ``down``.
"""

from tests.support.volclava.cluster import RealVolclava
from tests.support.volclava.config import PREFIX_VARIABLE, VolclavaConfig, why_not

__all__ = ["PREFIX_VARIABLE", "RealVolclava", "VolclavaConfig", "why_not"]
