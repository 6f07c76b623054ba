"""A real Slurm with a daemon, an innocent trainer and one of the attacker's."""

from __future__ import annotations

import getpass
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from _bench.torture.agents import Liar
from _bench.torture.attack import Attacker
from _bench.torture.jobs import submit
from _bench.torture.ports import Stranger
from _bench.torture.submissions import Submitter
from _bench.waiting import wait_until
from _bench.zero_harm.arm import light_trainers
from bftrainer.batch import process
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.trainer import TrainerSpec
from slurm_plugins.testcluster import ClusterConfig, SlurmTestCluster

WORKLOADS = Path(__file__).resolve().parents[2] / "workloads"
POLICY = "reserve_nodes_per_type: 0\nmin_gap_s: 60\ngap_margin_s: 5\nhold_idle_s: 3600\n"
PATIENCE_S = 180.0
LIAR = "lying agent"
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--pdeathsig=KILL")
_AGENT = re.compile(r"agent of (p\d+) on (\S+), pid (\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What runs; the innocent trainer has all nodes but one."""

    directory: Path
    cluster: SlurmTestCluster
    daemon: DaemonProcess
    innocent: str  # trainer id
    attackers_own: str  # trainer id

    @property
    def socket_path(self) -> Path:
        """The daemon's."""
        return self.daemon.state_dir / "daemon.sock"

    def agents(self) -> dict[str, tuple[str, int]]:
        """Pilot → node and process of the agents that live."""
        found = {}
        for log in (self.daemon.state_dir / "pilots").glob("p*/agent.log"):
            said = _AGENT.search(log.read_text(errors="replace"))
            if said and Path(f"/proc/{said[3]}").exists():
                found[said[1]] = (said[2], int(said[3]))
        return found

    def keep(self, directory: Path) -> None:
        """Copy what explains a run."""
        directory.mkdir(parents=True, exist_ok=True)
        for path in (*self.daemon.state_dir.glob("journal*"), self.daemon.log):
            shutil.copy(path, directory)

    def attackers(self, only: Sequence[str] = ()) -> list[Attacker]:
        """Everybody who means harm, or those of these names."""
        odd = Submitter(self.socket_path, self.directory / "odd", self.cluster.config.n_nodes)
        stranger = Stranger(lambda: [pid for _, pid in self.agents().values()])
        found = [
            Attacker("sbatch", lambda c: submit(self.cluster, c), pause_s=0.7, seed=1),
            Attacker("submissions", odd.submit, pause_s=0.3, seed=2),
            Attacker("strangers at ports", stranger.send, pause_s=0.3, seed=4),
        ]
        found = [attacker for attacker in found if not only or attacker.name in only]
        if not only or LIAR in only:
            found.append(Attacker(LIAR, self._liar().lie, pause_s=0.5, seed=3))
        return found

    def _liar(self) -> Liar:
        """Take over the pilot of the attacker's trainer, and end that.

        It would compete fairly for the nodes that are left.
        """
        (own,) = self.daemon.client.trainer(self.attackers_own).observed_nodes
        agents = self.agents()
        pilot = next(pilot for pilot, (node, _) in agents.items() if node == own)
        liar = Liar(self.daemon.state_dir / "pilots" / pilot, agents[pilot][1], self.innocent)
        self.daemon.client.cancel(self.attackers_own, now=True)
        return liar


@contextmanager
def site(n_nodes: int) -> Iterator[Site]:
    """Set everything up and take it down again."""
    directory = Path(tempfile.mkdtemp(prefix="bft-torture-", dir="/tmp"))
    directory.chmod(0o755)
    config = ClusterConfig(directory=directory / "c", n_nodes=n_nodes, has_hook=True)
    daemon = DaemonProcess(
        directory / "state",
        batch_system="slurm",
        batch_options=config.batch_options(),
        policy=POLICY,
    )
    try:
        with SlurmTestCluster(config) as cluster:
            try:
                yield _with_trainers(directory, cluster, daemon)
            finally:
                daemon.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _with_trainers(directory: Path, cluster: SlurmTestCluster, daemon: DaemonProcess) -> Site:
    daemon.start()
    n_nodes = cluster.config.n_nodes
    innocent = daemon.client.submit(_innocent(directory, n_nodes - 1)).record.trainer_id
    (own,) = light_trainers(directory, 1, 1)
    attackers = daemon.client.submit(own).record.trainer_id
    for trainer_id, wanted in ((innocent, n_nodes - 1), (attackers, 1)):
        wait_until(
            lambda t=trainer_id, n=wanted: len(daemon.client.trainer(t).observed_nodes) == n,  # type: ignore[misc]
            f"trainer {trainer_id} has {wanted} nodes; see {daemon.log}",
            patience_s=PATIENCE_S,
        )
    return Site(
        directory=directory,
        cluster=cluster,
        daemon=daemon,
        innocent=innocent,
        attackers_own=attackers,
    )


def _innocent(directory: Path, n_max: int) -> TrainerSpec:
    return TrainerSpec(
        name="innocent",
        user=getpass.getuser(),
        script=str(WORKLOADS / "torture_train.py"),
        cwd=str(directory),
        interpreter=sys.executable,
        n_min=1,
        n_max=n_max,
        epochs=10**6,
        checkpoint_dir=str(directory / "innocent"),
        environment=(("OMP_NUM_THREADS", "1"),),
    )


@contextmanager
def socket_client(site: Site) -> Iterator[None]:
    """Let somebody of another account at the socket, as a site with many users does."""
    site.daemon.state_dir.chmod(0o711)
    site.socket_path.chmod(0o666)
    script = site.directory / "torture_client.py"
    shutil.copy(WORKLOADS / script.name, script)
    script.chmod(0o644)
    argv = (*NOBODY, "/usr/bin/python3", "-I", "-S", str(script), str(site.socket_path))
    client = process.spawn(argv, cwd=Path("/"))
    try:
        yield
        if client.poll() is not None:
            raise RuntimeError(f"the client at the socket ended with {client.returncode}")
    finally:
        client.kill()
        with suppress(subprocess.TimeoutExpired):
            client.wait(10)
