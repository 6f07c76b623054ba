"""Sites of the lab on this machine: a batch system with a daemon, in a directory of its own.

Used by the demonstration, ``bftrainer try``, tests and benchmarks. ``DemoSite`` is the base of a
site on the embedded batch system (here) and of one on a stand-in of LSF (``lsf_site``).
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from bftrainer.batch.local.adapter import LocalBatchSystem
from bftrainer.batch.local.client import LocalServer, start_server
from bftrainer.batch.local.workload import JobWorkload, WorkItem, delays_s
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.cluster import Snapshot
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

# Waits so many seconds for the end of a script; returns whether it has ended.
HasEnded = Callable[[float], bool]


class DemoSite:
    """A site on this machine."""

    n_nodes: int

    def __init__(self, sidecar: DaemonProcess) -> None:
        self.sidecar, self.client = sidecar, sidecar.client

    def await_ready(self) -> None:
        """Wait until trainers would start without delay."""

    def look(self) -> Snapshot:
        """Poll the batch system."""
        raise NotImplementedError

    def start_workload(self, workload: JobWorkload) -> None:
        """Begin to submit ordinary jobs at their times."""
        raise NotImplementedError

    def run_plain(
        self, argv: Sequence[str], environment: Mapping[str, str], log: Path, /
    ) -> HasEnded:
        """Start a script without bftrainer, as ``python`` would; it ends with the site."""
        raise NotImplementedError

    def delays_s(self) -> tuple[float, ...]:
        """Return how much later each ordinary job started than without bftrainer, at most."""
        raise NotImplementedError


class LocalSite(DemoSite):
    """The embedded batch system, a daemon, and a directory for trainers."""

    cycle_s = 0.5  # pause between two passes of the scheduler over its queue

    def __init__(self, base: Path, server: LocalServer, sidecar: DaemonProcess) -> None:
        super().__init__(sidecar)
        self.base, self.server = base, server
        self.n_nodes = len(server.client.info()["nodes"])

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
            with sidecar:
                site = cls(base, server, sidecar)
                site.cycle_s = cycle_s
                yield site

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
    ) -> HasEnded:
        """Start a script in a copy of the host's template, which has imported torch."""
        run = {"argv": list(argv), "environment": dict(environment), "log": str(log)}
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(str(self.server.template_path))
        connection.send(json.dumps({"run": run}).encode())

        def has_ended(wait_s: float) -> bool:
            connection.settimeout(wait_s)
            try:
                connection.recv(1)  # returns when the script ends
            except TimeoutError:
                return False
            connection.close()
            return True

        return has_ended

    def delays_s(self) -> tuple[float, ...]:
        """Return how much later each ordinary job started than it would have without bftrainer."""
        client = self.server.client
        delay_of = delays_s(
            client.history(),
            n_nodes=self.n_nodes,
            cycle_s=self.cycle_s,
            cycle_at_s=client.snapshot()["cycle"]["ended_s"] or 0.0,
        )
        return tuple(max(0.0, delay_s) for delay_s in delay_of.values())

    def clear(self) -> None:
        """Cancel what has not ended and bring every node up."""
        for view in self.client.trainers():
            if not view.record.state.is_final:
                self.client.cancel(view.record.trainer_id, now=True)
        for node in self.client.nodes():
            self.server.client.set_node(node.name, is_up=True)


def laptop_site(
    scratch: Path, *, n_nodes: int, warm: Sequence[str] | None, policy: str = ""
) -> contextlib.AbstractContextManager[LocalSite]:
    """Start batch system and daemon below ``scratch``; both end with the context.

    ``policy`` are settings besides those for short idle spans. ``warm`` are modules that one
    process imports for all nodes, besides torch; None: each node imports for itself.
    """
    options = ["--preempt-in-cycles"]
    if warm is not None:
        options += ["--warm", *warm]
    return LocalSite.open(
        scratch, n_nodes=n_nodes, policy=POLICY + policy, cycle_s=CYCLE_S, options=options
    )


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
    return workload_of(
        (0.0, quarter, 6.0, "alice"), (12.0, half, 5.0, "bob"), (22.0, quarter, 4.0, "carol")
    )


def workload_of(*jobs: tuple[float, int, float, str], repeat_s: float | None = None) -> JobWorkload:
    """Return jobs: time, nodes, duration and user; people ask for more time than they need."""
    items = [
        WorkItem(
            at_s=at_s, n_nodes=n_nodes, duration_s=duration_s, limit_s=2.0 * duration_s, user=user
        )
        for at_s, n_nodes, duration_s, user in jobs
    ]
    return JobWorkload(jobs=tuple(items), repeat_s=repeat_s)
