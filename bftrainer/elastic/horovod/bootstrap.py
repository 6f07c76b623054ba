"""Replaces ``horovodrun``, then runs the user's script.

The command line holds the number of members that trained when this worker was ordered, the
script and its arguments. Horovod's ``init`` and the wrapper behind ``hvd.elastic.run`` are
replaced before the script can import them; everything else is Horovod's own.
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from pathlib import Path
from typing import Any

from bftrainer.elastic import control as control_module
from bftrainer.elastic.errors import ElasticError
from bftrainer.elastic.horovod.session import Session


def main() -> None:
    """Run the script given on the command line."""
    others, script, *args = sys.argv[1:]
    sys.argv = [script, *args]
    sys.path[0] = os.path.dirname(os.path.abspath(script))  # noqa: PTH100, PTH120 - as python does
    config = control_module.current().config
    for name, length in (("BFT_EPOCHS", config.epochs), ("BFT_SAMPLES", config.samples)):
        if length is not None:
            os.environ[name] = str(length)
    install(Session(control_module.current(), others=int(others)))
    runpy.run_path(script, run_name="__main__")


def install(session: Session) -> None:
    """Patch Horovod to use ``session`` instead of ``horovodrun`` and its driver.

    Raises:
        ElasticError: BFT-1430 when the interpreter has no Horovod.
    """
    os.environ["HOROVOD_ELASTIC"] = "1"  # read by optimizers and NCCL contexts
    os.environ.setdefault("HOROVOD_CONTROLLER", "gloo")
    os.environ.setdefault("HOROVOD_CPU_OPERATIONS", "gloo")
    try:
        basics: Any = importlib.import_module("horovod.common.basics")
        elastic: Any = importlib.import_module("horovod.common.elastic")
    except ImportError as problem:
        raise ElasticError(
            "BFT-1430",
            f"The interpreter {Path(sys.executable)} cannot import Horovod: {problem}.",
            "Build it with scripts/build_horovod.sh VENV, or name another --interpreter.",
        ) from None
    kind = basics.HorovodBasics
    session.world.guess_for(kind)
    session.lost_errors = (elastic.HorovodInternalError,)
    session.change_errors = (elastic.HostsUpdatedInterrupt,)
    init = kind.init

    def ours(self: Any, *args: Any, **kwargs: Any) -> None:
        session.init(lambda: init(self, *args, **kwargs), self.shutdown)

    kind.init = ours
    # Before horovod.torch.elastic and similar modules import the name.
    elastic.run_fn = session.run_fn
