"""A machine with CSM on top of the stand-in of LSF: launch node, jsrun, jobstat."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from lsf_adapters.adapter import LsfBatchSystem, create
from lsf_adapters.testcluster import LsfTestCluster
from tests.support.csm import jsrun, layer

LAUNCH = layer.LAUNCH
_LAYER = ("bsub", "bjobs", "bhosts", "lshosts", "lsload", "bslots", "jobstat")
_PLAIN = ("lsid", "bparams", "bqueues", "bkill", "badmin")


def install(cluster: LsfTestCluster) -> Path:
    """Write the machine's commands for a cluster that is up; return their directory."""
    home = cluster.directory / "csm"
    (home / "bin").mkdir(parents=True)
    (home / "requests").mkdir()
    (home / "requests").chmod(0o1777)
    for name in (*_LAYER, *_PLAIN):
        _write(home / "bin" / name, Path(layer.__file__))
    _write(home / "bin" / "jsrun", Path(jsrun.__file__))
    return home / "bin"


def _write(path: Path, source: Path) -> None:
    # The interpreter itself, not a virtual environment's link, which other users may not reach.
    path.write_text(f"#!{os.path.realpath(sys.executable)} -IS\n{source.read_text()}")
    path.chmod(0o755)


def csm_adapter(cluster: LsfTestCluster, bindir: Path, **options: Any) -> LsfBatchSystem:
    """The adapter with ``launch: csm``, pointed at the machine."""
    first = {**cluster.config.batch_options(), "bindir": str(bindir), "launch": "csm"}
    return create({**first, "rarely_s": 0, "command_timeout_s": 5, **options})
