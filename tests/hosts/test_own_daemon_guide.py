"""docs/howto/own-daemon.md, command by command, by a user whose nodes are other hosts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.batch import process
from tests.support import pages
from tests.support.hosts import Cluster
from tests.support.hosts.cluster import cluster_of_hosts
from tests.support.hosts.own_daemon import VERB_S, OwnDaemon
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm
DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "howto" / "own-daemon.md").read_text()
SCRIPT = pages.files((DOCS / "tutorial-cluster.md").read_text())["train.py"]
N_NODES = 3


class User:
    """Somebody on the login node, in a directory with the tutorial's script."""

    def __init__(self, daemon: OwnDaemon) -> None:
        self.daemon, self.cluster = daemon, daemon.cluster
        (daemon.directory / "train.py").write_text(SCRIPT)

    def runs(self, text: str, host: str = "login") -> process.Completed:
        """Type a line; whether it succeeds is for the caller to say."""
        line = text.replace("CLUSTER", "hosts")
        words = ("sh", "-c", line)
        return self.cluster.run(host, *words, user="ada", cwd=self.daemon.work, timeout_s=VERB_S)

    def types(self, text: str) -> str:
        """Type what must succeed."""
        done = self.runs(text)
        assert done.is_ok, f"{text}: {done.stdout}{done.stderr}"
        return done.stdout

    def squeue(self, partition: str) -> list[str]:
        """Return the nodes of the jobs that run in a partition."""
        shown = ("squeue", "-h", "-p", partition, "-tR", "-o%N")
        return self.cluster.does("login", *shown).split()


cluster = cluster_of_hosts(n_nodes=N_NODES, names="debian")


@pytest.fixture
def user(cluster: Cluster) -> Iterator[User]:
    with OwnDaemon(cluster) as daemon:
        yield User(daemon)
    cluster.does("login", "scancel", "--user=ada")
    wait_for(lambda: not cluster.does("login", "squeue", "-h"), what="no job is left")
    for place in ("first", ".bftrainer"):  # its trainers would go on with the next one
        shutil.rmtree(cluster.home / "ada" / place)


def is_shown(text: str) -> bool:
    """Whether the page names a command in its sentences."""
    return f"`{text}`" in PAGE


@pytest.mark.long
def test_a_user_follows_it(user: User) -> None:
    state = user.cluster.home / "ada" / ".bftrainer" / "hosts"
    for command in pages.commands(PAGE):
        text = command.text
        if text.startswith("bftrainer doctor"):
            assert user.runs(text).stdout.count("BFT-")  # findings on a site that is not ours
            continue
        if text.startswith("bftrainer down"):
            trains_while_a_node_is_taken(user)
        said = user.types(text)
        if "--dry-run" in text:
            assert "nothing was started" in said
            assert not state.exists()
        elif text.startswith("bftrainer up"):
            again = user.runs(text).stderr
            assert "BFT-1102" in again
            assert "BFT-1102" in PAGE
    assert [line for line in pages.unmarked(PAGE) if "bftrainer" in line] == []
    wait_for(lambda: not user.squeue("scavenge"), what="down releases all nodes")
    assert (state / "policy.yaml").exists()


def trains_while_a_node_is_taken(user: User) -> None:
    """Wait for a trainer of all nodes, take one, and see it from another login node."""
    user.daemon.trains_at("t1", N_NODES)
    job = ("sbatch", "--parsable", "-pbatch", "-N1", "--exclusive", "--wrap=sleep infinity")
    taken = user.cluster.does("login", *job, user="bob").strip()
    user.daemon.trains_at("t1", N_NODES - 1)
    user.cluster.does("login", "scancel", taken)
    far = user.runs("bftrainer status", "n1")  # a login node as good as any
    assert "t1" in far.stdout, far.stderr


@pytest.mark.long
def test_own_nodes_are_a_floor(user: User) -> None:
    assert is_shown("salloc")
    user.cluster.popen(
        "login",
        *("salloc", "-pbatch", "-N1", "--exclusive", "sh", "-c"),
        "bftrainer up --partition scavenge && sleep infinity",
        user="ada",
        cwd=user.daemon.work,
    )
    wait_for(user.daemon.status, what="the daemon is there")
    user.types("bftrainer submit --nodes 1:8 train.py")
    user.daemon.trains_at("t1", N_NODES)
    (own,) = user.squeue("batch")
    two = ("sbatch", "--parsable", "-pbatch", "-N2", "--exclusive", "--wrap=sleep infinity")
    job = user.cluster.does("login", *two, user="bob").strip()
    user.daemon.trains_at("t1", 1)  # nobody preempts its own
    assert user.daemon.trainer("t1")["observed_nodes"] == [own]
    user.cluster.does("login", "scancel", job)
    user.daemon.trains_at("t1", N_NODES)
    user.types("bftrainer down --now")


@pytest.mark.long
def test_a_daemon_in_a_job(user: User) -> None:
    assert is_shown("bftrainer up --as-job")
    user.types("bftrainer up --as-job --partition scavenge --job-partition batch")
    (host,) = user.squeue("batch")
    user.types("bftrainer submit --nodes 1:8 train.py")
    user.daemon.trains_at("t1", N_NODES - 1)
    assert host not in user.squeue("scavenge")
    user.types("bftrainer down --now")
    wait_for(lambda: not user.squeue("batch"), what="its job ends")
