"""Runs a training script whose pauses end once a file ``hurry`` is in its working directory.

    python hurried.py SCRIPT ARGUMENTS...

A test that does things to a training wants it to be slow until they are done, however long
that takes on a busy machine, and to be over soon afterwards. For conformance tests.
"""

from __future__ import annotations

import runpy
import sys
import threading
import time
from pathlib import Path
from typing import Any

SHORTEST_S = 0.01  # shorter ones are no pauses of a training but somebody's wait
HURRY = Path("hurry").absolute()
_sleep = time.sleep


def pause(seconds: Any) -> None:
    """Sleep, or not; threads of the runtime sleep as before."""
    is_own = threading.current_thread() is threading.main_thread() and seconds >= SHORTEST_S
    _sleep(0 if is_own and HURRY.exists() else seconds)


if __name__ == "__main__":
    time.sleep = pause
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
