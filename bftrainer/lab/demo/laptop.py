"""A site on one machine for some seconds or minutes, in a directory of its own.

What ``demo`` and ``try`` share: the policy for such a site, one warm template for all nodes, and
the directory, which is removed at the end and kept after a failure.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bftrainer.lab.demo.local_site import LocalSite
from bftrainer.model.errors import BftError

CYCLE_S = 4.0
POLICY = """\
# Everything is faster than on a real cluster: idle spans last seconds here.
t_fwd_s: 20
reserve_nodes_per_type: 0
idle_confirmations: 1
min_gap_s: 10
gap_margin_s: 2
pilot_time_limit_s: 600
hold_idle_s: 2
join_window_s: 0.5
poll_interval_s: 0.25
"""


@contextlib.contextmanager
def laptop_site(
    scratch: Path, *, n_nodes: int, warm: Sequence[str] | None, policy: str = ""
) -> Iterator[LocalSite]:
    """Start batch system and daemon below ``scratch``; both end with the context.

    ``policy`` are settings besides those for short idle spans. ``warm`` are modules that one
    process imports for all nodes, besides torch; None: each node imports for itself.
    """
    options = ["--preempt-in-cycles"]
    if warm is not None:
        options += ["--warm", *warm]
    with LocalSite.open(
        scratch, n_nodes=n_nodes, policy=POLICY + policy, cycle_s=CYCLE_S, options=options
    ) as site:
        yield site


@contextlib.contextmanager
def scratch_directory(prefix: str) -> Iterator[Path]:
    """Make a directory that is removed at the end, and kept and named after a failure."""
    path = Path(tempfile.mkdtemp(prefix=prefix))  # short: sockets are made in it
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield path
    except BftError as problem:
        problem.next_step += f" Logs are kept in {path}."
        raise
    except Exception as problem:
        problem.add_note(f"Logs are kept in {path}.")
        raise
    except BaseException:  # interrupted: nobody will look
        shutil.rmtree(path, ignore_errors=True)
        raise
    shutil.rmtree(path)
