"""Which LSF answers: its commands print different columns and know different options.

From the first lines of ``lsid``. An LSF that is neither is observed only: nothing is submitted to
it, because what it does with a pilot is not known.
"""

from __future__ import annotations

import enum
import re

from bftrainer.model.hostlist import ParseError

_IBM = re.compile(r"IBM (?:Spectrum )?(?:Platform )?LSF\b.*?\b(\d+)\.(\d+)")
_VOLCLAVA = re.compile(r"volclava project (\d+)\.(\d+)")
_CLUSTER = re.compile(r"^My cluster name is (\S+)$", re.MULTILINE)


class Dialect(enum.StrEnum):
    """The relatives of LSF."""

    IBM = "ibm"  # IBM Spectrum LSF 10.1; documented, not tried
    VOLCLAVA = "volclava"  # 2.x; measured
    UNKNOWN = "unknown"

    @classmethod
    def of(cls, lsid: str) -> Dialect:
        """Return the dialect of what ``lsid`` printed.

        Raises:
            ParseError: it is not the answer of lsid.
        """
        if not _CLUSTER.search(lsid):
            raise ParseError("no cluster name")
        if (ibm := _IBM.search(lsid)) and (int(ibm[1]), int(ibm[2])) == (10, 1):
            return cls.IBM
        if (volclava := _VOLCLAVA.search(lsid)) and int(volclava[1]) == 2:
            return cls.VOLCLAVA
        return cls.UNKNOWN


def cluster_of(lsid: str) -> str:
    """Return the cluster's name; "": not said."""
    found = _CLUSTER.search(lsid)
    return found[1] if found else ""
