"""The demonstration's site: a local batch system with a daemon, in a directory of its own.

Used by the demonstration, ``bftrainer try``, tests and benchmarks. ``DemoSite`` is the interface
of a site, implemented here (the embedded batch system) and in ``lsf_site`` (a stand-in of LSF).

``demo`` and ``try`` share the policy for such a site, one warm template for all nodes, and the
directory, which is removed at the end and kept after a failure.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self

from bftrainer.api.client import Client
from bftrainer.batch.local.adapter import LocalBatchSystem
from bftrainer.batch.local.client import LocalServer, start_server
from bftrainer.batch.local.workload import JobWorkload, WorkItem, delays_s
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.lab.demo.trainers import PlainRun, TemplateRun
from bftrainer.model.cluster import Snapshot
from bftrainer.model.errors import BftError


class LocalSite:
    """A batch system, a daemon, and a directory for trainers."""

    cycle_s = 0.5  # pause between two passes of the scheduler over its queue

    def __init__(self, base: Path, server: LocalServer, sidecar: DaemonProcess) -> None:
        self.base, self.server, self.sidecar = base, server, sidecar
        self.n_nodes = len(server.client.info()["nodes"])
        self.client = sidecar.client

    @classmethod
    @contextlib.contextmanager
    def open(
        cls,
        base: Path,
        *,
        n_nodes: int,
        policy: str,
        cycle_s: float = 0.5,
        options: Sequence[str] = (),
    ) -> Iterator[Self]:
        """Start both below ``base``; at the end the daemon stops first.

        ``cycle_s`` is the pause between two passes of the scheduler over its queue;
        ``options`` are more of the batch system.

        Raises:
            BatchSystemError: BFT-1258, the batch system does not start.
            BftError: BFT-1022, the daemon does not start.
        """
        with start_server(
            base / "local", n_nodes=n_nodes, cycle_s=cycle_s, more_options=options
        ) as server:
            sidecar = DaemonProcess(
                base / "state",
                batch_system="local",
                batch_options={"socket": str(server.socket_path)},
                policy=policy,
            )
            try:
                sidecar.start()
                site = cls(base, server, sidecar)
                site.cycle_s = cycle_s
                yield site
            finally:
                sidecar.stop()

    def await_ready(self) -> None:
        """Wait until the host's template has imported torch."""
        self.server.await_warm()

    def look(self) -> Snapshot:
        """Poll the batch system."""
        return LocalBatchSystem(self.server.client).snapshot()

    def start_workload(self, workload: JobWorkload) -> None:
        """Begin to submit ordinary jobs at their times."""
        self.server.client.start_workload(workload)

    def run_plain(
        self, argv: Sequence[str], environment: Mapping[str, str], log: Path, /
    ) -> TemplateRun:
        """Start a script without bftrainer, in a copy of the host's template."""
        return TemplateRun(self.server.template_path, argv, environment, log)

    def delays_s(self) -> tuple[float, ...]:
        """Return how much later each ordinary job started than it would have without bftrainer."""
        client = self.server.client
        found = delays_s(
            client.history(),
            n_nodes=self.n_nodes,
            cycle_s=self.cycle_s,
            cycle_at_s=client.snapshot()["cycle"]["ended_s"] or 0.0,
        )
        return tuple(max(0.0, delay_s) for delay_s in found.values())

    def clear(self) -> None:
        """Cancel what has not ended and bring every node up."""
        for view in self.client.trainers():
            if not view.record.state.is_final:
                self.client.cancel(view.record.trainer_id, now=True)
        for node in self.client.nodes():
            self.server.client.set_node(node.name, is_up=True)


class DemoSite(Protocol):
    """A site on this machine."""

    n_nodes: int
    client: Client
    sidecar: DaemonProcess

    def await_ready(self) -> None:
        """Wait until trainers would start without delay."""

    def look(self) -> Snapshot:
        """Poll the batch system."""

    def start_workload(self, workload: JobWorkload) -> None:
        """Begin to submit ordinary jobs at their times."""

    def run_plain(
        self, argv: Sequence[str], environment: Mapping[str, str], log: Path, /
    ) -> PlainRun:
        """Start a script without bftrainer."""

    def delays_s(self) -> tuple[float, ...]:
        """Return how much later each ordinary job started than without bftrainer, at most."""


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


def demo_workload(n_nodes: int) -> JobWorkload:
    """Return jobs that leave a busy cluster, then come back for nodes where trainers run."""
    quarter, half = max(1, n_nodes // 4), max(1, n_nodes // 2)
    jobs = ((0.0, quarter, 6.0, "alice"), (12.0, half, 5.0, "bob"), (22.0, quarter, 4.0, "carol"))
    # People ask for more time than they need.
    return JobWorkload(
        jobs=tuple(
            WorkItem(at_s=at_s, n_nodes=n, duration_s=s, limit_s=2.0 * s, user=user)
            for at_s, n, s, user in jobs
        )
    )
