"""Who is on the cluster of ``bench_own``: a researcher, and others whose jobs take nodes."""

from __future__ import annotations

import os
import pwd
import random
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from _bench.waiting import BenchError
from bftrainer.batch import process
from slurm_plugins.testcluster import SlurmTestCluster
from slurm_plugins.testcluster.workload import JobRecord, WorkloadItem

SCRIPT = Path(__file__).parents[2] / "workloads" / "own_train.py"
N_NODES = 4
EVERY_S = 10.0  # between two jobs of others, on average
SIZES = (1, 1, 2, 2, 3)
LENGTHS_S = (5.0, 15.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Researcher:
    """Somebody with an account and a home directory."""

    cluster: SlurmTestCluster
    home: Path
    user: str  # "": who runs the benchmark

    @classmethod
    def at(cls, cluster: SlurmTestCluster, home: Path, user: str) -> Researcher:
        """Make the home directory."""
        home.mkdir()
        if user:
            account = pwd.getpwnam(user)
            os.chown(home, account.pw_uid, account.pw_gid)
        home.chmod(0o755)
        return cls(cluster=cluster, home=home, user=user)

    @property
    def state(self) -> Path:
        """The state directory of the daemon."""
        return self.home / "state"

    def argv(self, words: Sequence[str]) -> tuple[str, ...]:
        """Return the command line that runs a command as this user."""
        if not self.user:
            return tuple(words)
        as_user = ("setpriv", f"--reuid={self.user}", f"--regid={pwd.getpwnam(self.user).pw_gid}")
        return (*as_user, "--clear-groups", "--", *words)

    def run(self, *words: str) -> str:
        """Run a command and return what it printed.

        Raises:
            BenchError: it failed.
        """
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"}
        env = {
            **environment,
            **self.cluster.env,
            "PATH": path,
            "HOME": str(self.home),
            "USER": self.user or pwd.getpwuid(os.geteuid()).pw_name,
            "BFTRAINER_STATE_DIR": str(self.state),
        }
        answer = process.run(self.argv(words), timeout_s=120, env=env, cwd=self.home)
        if not answer.is_ok:
            raise BenchError(f"{' '.join(words)}: {answer.stderr.strip()}")
        return answer.stdout.strip()

    def bftrainer(self, *words: str) -> str:
        """Run a verb."""
        return self.run(sys.executable, "-m", "bftrainer", *words)


def others(seconds: float, seed: int) -> list[WorkloadItem]:
    """Draw the jobs of other users."""
    chance = random.Random(seed)  # noqa: S311 - not a secret
    items, at_s = list[WorkloadItem](), EVERY_S
    while at_s < seconds - LENGTHS_S[1]:
        items.append(
            WorkloadItem(
                at_s=at_s,
                n_nodes=chance.choice(SIZES),
                duration_s=chance.uniform(*LENGTHS_S),
                limit_s=60,
            )
        )
        at_s += chance.uniform(0.5, 1.5) * EVERY_S
    return items


def offered_node_s(records: Sequence[JobRecord], begin_s: float, end_s: float) -> float:
    """Return the node-seconds that the others left."""
    used_node_s = 0.0
    for record in records:
        if record.started_s is not None:
            ended_s = min(end_s, record.ended_s or end_s)
            used_node_s += record.item.n_nodes * max(0.0, ended_s - max(begin_s, record.started_s))
    return N_NODES * (end_s - begin_s) - used_node_s


def fresh(directory: Path) -> Path:
    """Return the directory, empty."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory
