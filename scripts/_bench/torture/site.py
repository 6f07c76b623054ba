"""Several hosts with a real Slurm, its hook, a daemon and submit helper for all, and three users.

Ada is innocent, bob submits ordinary jobs, eve means harm; each has processes on every host. The
daemon, its helper and the hook are on the controller's host, where all three may log in, too.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from _bench.torture.eve import Eve, Setup
from _bench.waiting import wait_until
from bftrainer.model.views import TrainerView
from tests.support import submit_helper
from tests.support.accounts import scratch
from tests.support.hosts import Cluster, Plan
from tests.support.hosts.own_daemon import OwnDaemon
from tests.support.hosts.plan import CONTROLLER, USERS
from tests.support.hosts.site import HostsDaemon

WORKLOADS = Path(__file__).resolve().parents[2] / "workloads"
PATIENCE_S = 300.0
HOOK = "/run/bftrainer-hook/told"
SAMPLE_S = 0.008
# Two of eve's, one of bob's or of ada's studies, two that are free: she may ask for nodes anew
# each time she gives one up, and jobs that Slurm refuses may cost one (SECURITY.md).
SPARE = 5
POLICY = """\
run_as: submitter
reserve_nodes_per_type: 0
min_gap_s: 60
gap_margin_s: 5
hold_idle_s: 3600
max_nodes_by_user: {eve: 2}
submissions_per_minute_per_user: 100000
written_mb_per_day_per_user: 100000
"""
_HOOK = f"""\
install -d -o slurm -g slurm {Path(HOOK).parent}
{sys.executable} -m slurm_plugins.hook --file {HOOK} --directory /etc/slurm
printf 'JobSubmitPlugins=lua\\nEpilogSlurmctld=/etc/slurm/bftrainer_epilog.sh\\n' \
    >> /etc/slurm/slurm.conf
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What runs; the innocent trainer has all nodes but ``SPARE``."""

    cluster: Cluster
    daemon: HostsDaemon
    ada: OwnDaemon  # her verbs and records; the daemon is everybody's
    directory: Path  # all hosts see it
    socket: Path
    innocent: str  # trainer id
    size: int  # of the innocent, in nodes
    eves: tuple[Eve, ...]

    @property
    def wrong_sums(self) -> int:
        """All-reduces so far whose sum the script of the innocent found to be wrong."""
        return sum(len(f.read_text().splitlines()) for f in self.ada.directory.glob("wrong-*"))

    def view(self) -> TrainerView:
        """The innocent trainer."""
        return self.daemon.client.trainer(self.innocent)

    def keep(self, directory: Path) -> None:
        """Copy what explains a run."""
        directory.mkdir(parents=True, exist_ok=True)
        notes = [p for kind in ("bft-*/logs/*", "wrong-*") for p in self.ada.directory.glob(kind)]
        state = (*self.daemon.state_dir.glob("journal*"), self.daemon.log)
        for path in (*state, *notes, *self.directory.glob("eve-*.log")):
            shutil.copy(path, directory)


@contextmanager
def site(size: int, only: Sequence[str]) -> Iterator[Site]:
    """Set everything up and take it down again."""
    directory = scratch("bft-torture-", "/run")
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        plan = Plan(n_nodes=size + SPARE, shared=(str(directory),))
        cluster = stack.enter_context(Cluster(plan))
        daemon, socket = _daemon(stack, cluster, directory)
        ada = OwnDaemon(cluster, "ada", CONTROLLER, {"BFTRAINER_SOCKET": str(socket)})
        innocent = _innocent(ada, size)
        _front(cluster, ada)
        wait_until(
            lambda: len(daemon.client.trainer(innocent).observed_nodes) == size,
            f"trainer {innocent} has {size} nodes; see {daemon.log}",
            patience_s=PATIENCE_S,
        )
        eves = _eves(stack, cluster, directory, socket, innocent, only)
        yield Site(
            cluster=cluster, daemon=daemon, ada=ada, directory=directory, socket=socket,
            innocent=innocent, size=size, eves=eves,
        )  # fmt: skip


def _daemon(stack: ExitStack, cluster: Cluster, directory: Path) -> tuple[HostsDaemon, Path]:
    cluster.does(CONTROLLER, "sh", "-ec", _HOOK)
    cluster.stop_slurm(CONTROLLER)
    cluster.start_slurm(CONTROLLER)
    cluster.await_idle()
    config = submit_helper.write_config(
        directory / "submit-helper.json",
        daemon_user="bftrainer",
        partition="bf",
        agent=[sys.executable, "-I", "-m", "trainers.agent"],
        users=["ada", "bob", "eve"],
    )
    helper_socket = directory / "submit.sock"
    enter = ("nsenter", f"--target={cluster.pid(CONTROLLER)}", "--all", "--wdns=/", "--")
    stack.enter_context(submit_helper.listening(helper_socket, config, enter))
    place = directory / "run"
    place.mkdir(mode=0o755)
    shutil.chown(place, USERS["bftrainer"], USERS["bftrainer"])
    daemon = HostsDaemon(
        cluster, directory / "state", POLICY, host=CONTROLLER, user="bftrainer",
        options={"submit_helper": str(helper_socket), "hook_file": HOOK},
        socket=place / "daemon.sock",
    )  # fmt: skip
    stack.callback(daemon.stop)
    daemon.start()
    return daemon, place / "daemon.sock"


def _innocent(ada: OwnDaemon, size: int) -> str:
    text = (WORKLOADS / "torture_train.py").read_text()
    words = ("-J", "innocent", "--nodes", f"1:{size}", "--epochs", "1000000")
    return ada.submit(text, *words, args=(str(SAMPLE_S), ada.work))


def _front(cluster: Cluster, ada: OwnDaemon) -> None:
    """Let ada have a rendezvous of Horovod on a node, and ask it all the time."""
    script = ada.directory / "front.py"
    shutil.copy(WORKLOADS / "torture_front.py", script)
    argv = (sys.executable, f"{ada.work}/front.py", f"{ada.work}/front.log")
    cluster.popen("n1", *argv, user="ada", cwd=ada.work)


def _eves(stack: ExitStack, cluster: Cluster, directory: Path, socket: Path, innocent: str,
          only: Sequence[str]) -> tuple[Eve, ...]:  # fmt: skip
    plan = cluster.plan
    setup = Setup(
        victim=USERS["ada"], trainer=innocent, socket=str(socket), n_nodes=plan.n_nodes,
        addresses={host: plan.address(host) for host in (CONTROLLER, *plan.nodes)},
    )  # fmt: skip
    argv = (sys.executable, "-m", "_bench.torture.on_host")
    env = {"PYTHONPATH": str(WORKLOADS.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    eves = []
    for host in setup.addresses:
        full = cluster.argv(host, *argv, json.dumps(setup.on(host, only)), user="eve", env=env)
        eves.append(stack.enter_context(Eve(host, full, directory / f"eve-{host}.log")))
    for word in ("prepare", "stop", "arm"):
        for eve in eves:
            eve.tell(word)
        for eve in eves:
            eve.done()
    return tuple(eves)
