"""'In half an hour' of docs/howto/slurm-site.md, command by command, where nodes are other hosts.

The hosts have no systemd: what it would do, as the installed files say, the test does.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.batch import process
from tests.support import pages
from tests.support.hosts import Cluster, running_hosts
from tests.support.hosts.plan import CONTROLLER
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm
PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "slurm-site.md").read_text()
VERB_S = 120.0
LOG = "/var/log/bftrainer.log"


class Machine:
    """The controller's host, with an administrator."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.directory = cluster, "/root"

    def runs(self, text: str) -> process.Completed:
        argv = ("sh", "-c", text)
        return self.cluster.run(CONTROLLER, *argv, cwd=self.directory, timeout_s=VERB_S)

    def types(self, text: str) -> str:
        done = self.runs(text)
        # Of doctor, what it says counts: these hosts have another partition beside that of pilots.
        assert done.is_ok or text.startswith("bftrainer doctor"), f"{text}: {done.stderr}"
        return done.stdout

    def instead(self, text: str) -> bool:
        """Do what systemd would; False: it is not asked."""
        if text == "systemctl restart slurmctld":
            self.cluster.stop_slurm(CONTROLLER)
            self.cluster.start_slurm(CONTROLLER)
            self.cluster.await_idle()
        elif text.startswith("systemd-tmpfiles"):
            lines = self.types("cat /etc/tmpfiles.d/bftrainer.conf").splitlines()
            (line,) = (one.split() for one in lines if one.startswith("d "))
            _, path, mode, user, group, _ = line
            self.types(f"install -d -m {mode} -o {user} -g {group} {path}")
        elif text == "systemctl enable --now bftrainer":
            self.starts_the_service()
        return text.startswith(("systemctl", "systemd-"))

    def starts_the_service(self) -> None:
        unit = self.types("cat /etc/systemd/system/bftrainer.service").replace("\\\n", " ")
        given = dict(line.partition("=")[::2] for line in unit.splitlines() if line[:1] != "#")
        self.types(f"touch {LOG}")
        for key, below in (("StateDirectory", "/var/lib"), ("RuntimeDirectory", "/run")):
            mode, path = given[f"{key}Mode"], f"{below}/{given[key]}"
            self.types(f"install -d -m {mode} -o {given['User']} -g {given['User']} {path}")
        assert given["ReadWritePaths"] == "/home/bftrainer/pilots"
        assert self.types("stat -c %U:%a /home/bftrainer/pilots") == "bftrainer:700\n"
        with self.cluster.disk(CONTROLLER, LOG).open("ab") as log:
            argv = shlex.split(given["ExecStart"])
            self.cluster.popen(CONTROLLER, *argv, user=given["User"], output=log)
        self.awaits("bftrainer status", "nodes")

    def awaits(self, text: str, shown: str) -> None:
        try:
            wait_for(lambda: shown in self.runs(text).stdout, interval_s=0.5, what=text)
        except AssertionError:
            done, log = self.runs(text), self.runs(f"cat {LOG}").stdout
            raise AssertionError(f"{text}: {done.stdout}{done.stderr}\n{log}") from None


@pytest.fixture
def machine() -> Iterator[Machine]:
    with running_hosts(n_nodes=3, names="debian") as cluster:
        yield Machine(cluster)


@pytest.mark.long
def test_a_stranger_installs_it_for_nodes_that_are_other_hosts(machine: Machine) -> None:
    page = PAGE[: PAGE.index("Then continue with")]
    for command in pages.commands(page):
        text = command.text
        if text.startswith("cd "):
            machine.directory += f"/{text.removeprefix('cd ')}"
        elif text.startswith("squeue -p bf"):
            machine.awaits("bftrainer status", " 1 held")  # its agent has come
            assert "p000001" in machine.types(text)
        elif text.startswith("bftrainer report harm"):
            machine.awaits(text, "1 node to 1 job")  # given back, or taken first by Slurm
        elif not (command.not_run or machine.instead(text)):
            machine.types(text)
    assert "pilots_dir" in machine.types("cat /etc/bftrainer/policy.yaml")
