"""Ends a worker's process after its script: as Python would, but within a time limit.

The main thread of the script has unlimited time; what it leaves behind (threads, pools, exit
handlers) has ``GRACE_S``. Children in the worker's process group end with it. Called by
``worker``.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
import threading
import time
import traceback
from contextlib import suppress
from typing import NoReturn

GRACE_S = 10.0  # for threads and exit handlers
FLUSH_S = 1.0  # for flushing files, when a thread may hold a stream's lock
_BUFFERED = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def leave(status: int) -> NoReturn:
    """End as Python does, without the teardown that native threads may hang in."""
    flush_output()
    threading.Thread(target=_end_late, args=(status,), name="bft-ending", daemon=True).start()
    try:
        # Ends pools, then joins threads: in the other order they wait for ever.
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - as Python does
    except BaseException:  # noqa: BLE001 - as Python does
        traceback.print_exc()
    # os._exit below would skip exit handlers.
    atexit._run_exitfuncs()  # noqa: SLF001 - the only way to run them by hand
    _flush_files()
    os._exit(status)


def flush_output() -> None:
    """Flush stdout and stderr, unless the script has closed them."""
    for stream in (sys.stdout, sys.stderr):
        _flush(stream)


def _flush_files() -> None:
    """Write out the files that the script left open, as Python does when it ends."""
    flush_output()
    for thing in gc.get_objects():
        if type(thing) in _BUFFERED:  # isinstance would ask objects that pretend
            _flush(thing)


def _flush(stream: object) -> None:
    with suppress(Exception):  # closed, None, a full disk: cannot be reported any more
        stream.flush()  # type: ignore[attr-defined]


def _end_late(status: int) -> None:
    """End the process after ``GRACE_S`` and print what was still running."""
    time.sleep(GRACE_S)
    text = f"bftrainer: killed {_who()}, still running {GRACE_S:.0f} s after the script's end."
    # Not through sys.stderr: a stuck thread may hold its lock.
    os.write(2, f"{text}\n".encode())
    last = threading.Thread(target=_flush_files, name="bft-last-words", daemon=True)
    last.start()
    last.join(FLUSH_S)
    os._exit(status)


def _who() -> str:
    main, own = threading.main_thread(), threading.current_thread()
    frames = sys._current_frames()  # noqa: SLF001 - the only way to see other threads
    threads = [t for t in threading.enumerate() if not (t.daemon or t in (main, own))]
    names = [f"thread {t.name!r}{_place_of(frames.get(t.ident or 0))}" for t in threads]
    return ", ".join(names) or f"an exit handler{_place_of(frames.get(main.ident or 0))}"


def _place_of(frame: object) -> str:
    stack = traceback.extract_stack(frame)  # type: ignore[arg-type]  # a frame, or None
    if frame is None or not stack:
        return ""
    return f" in {stack[-1].name} ({stack[-1].filename}, line {stack[-1].lineno})"
