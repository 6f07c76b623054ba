"""The second example of docs/howto/slurm-site.md, typed on a real Slurm whose jobs share GPUs.

The first example is typed on a whole machine by ``test_admin_guide.py``. Here the lines of
slurm.conf and gres.conf that the page shows replace those of a test cluster, and its commands are
typed in their order, with the files and users of the test.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from bftrainer.batch import process
from bftrainer.lab.demo.sidecar import DaemonProcess
from slurm_plugins.testcluster import SlurmTestCluster
from tests.integration.slurm_fixtures import enterable_directory, running_cluster
from tests.support import pages
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm

PAGE = (Path(__file__).parents[3] / "docs" / "howto" / "slurm-site.md").read_text()
TITLE = "## Where GPU jobs share the nodes\n"
SECTION = PAGE.partition(TITLE)[2].partition("\n## ")[0]
LOOKS = ("squeue", "bftrainer nodes", "bftrainer report", "bftrainer status")
PATIENCE_S, COMMAND_S = 90, 60
LINUXPROC = "BFT-1556"  # the test cluster has no cgroups
# The first policy of a site, as site init writes it, and looks that a test need not wait for.
POLICY = """\
max_nodes: 2
poll_interval_with_hook_s: 1
requests_per_minute_with_hook: 1000
"""
_CODE = re.compile(r"BFT-\d{4}")
# Which pilots stay, times and ages vary.
_VARIES = {
    r"p\d{6}": r"p\d{6}",
    r"\d+h\d+m": r"\d+h\d+m",
    r"\b\d+s\b": r"[\dms]+",
    r"\d+\.\d+": r"\d+\.\d+",
    r"\s+": r"\s+",
}
_PART = re.compile(f"({'|'.join(_VARIES)})")


def lines_of(name: str) -> list[str]:
    """Return the lines of a configuration file that the section shows."""
    [body] = re.findall(rf"^```text\n# {name}\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)
    return str(body).splitlines()


def node_line() -> Mapping[str, str]:
    """Return what the section's slurm.conf says of its nodes."""
    [line] = [line for line in lines_of("slurm.conf") if line.startswith("NodeName=")]
    return dict(word.split("=", 1) for word in line.split())


def key_of(line: str) -> str:
    """Return what a line of slurm.conf sets: a setting, or a partition by its name."""
    return (
        line.split(maxsplit=1)[0] if line.startswith("PartitionName=") else line.partition("=")[0]
    )


def configure(cluster: SlurmTestCluster) -> None:
    """Give the cluster the section's lines; its nodes keep their addresses and ports."""
    path, told = cluster.config.slurm_conf, lines_of("slurm.conf")
    settings = [line for line in told if not line.startswith("NodeName=")]
    replaced = {key_of(line) for line in settings}
    kept = [line for line in path.read_text().splitlines() if key_of(line) not in replaced]
    path.write_text("\n".join((*kept, *settings, "")))
    gres = path.with_name("gres.conf")
    devices = dict.fromkeys(re.findall(r"File=(\S+)", gres.read_text()))
    [line] = lines_of("gres.conf")
    named = line.replace("/dev/nvidia[0-3]", ",".join(devices))
    assert named != line
    gres.write_text(f"AutoDetect=off\n{named}\n")
    cluster.stop_controller()
    cluster.start_controller()
    assert cluster.command("scontrol", "reconfigure").is_ok


def are_as_shown(cluster: SlurmTestCluster) -> bool:
    """Return whether the nodes are idle, with the GPUs of the section."""
    asked = cluster.command("sinfo", "-h", "-N", "-p", "bf", "-o", "%N %T %G")
    expected = [f"{name} idle {node_line()['Gres']}" for name in cluster.config.node_names]
    return asked.stdout.split("\n")[:-1] == expected


@pytest.fixture
def cluster() -> Iterator[SlurmTestCluster]:
    line = node_line()
    assert line["NodeName"] == "n[1-2]"
    with running_cluster(
        n_nodes=2,
        node_types=((line["Gres"], ""),) * 2,
        cpus_per_node=int(line["CPUs"]),
        memory_mb=int(line["RealMemory"]),
        has_hook=True,
        bf_interval_s=2,
    ) as cluster:
        configure(cluster)
        wait_for(lambda: are_as_shown(cluster), what="the nodes are as the page has them")
        yield cluster


def pattern_of(line: str) -> str:
    """Return a pattern of a line that the page shows."""
    varies = [(re.compile(form), pattern) for form, pattern in _VARIES.items()]
    words = [
        next((pattern for form, pattern in varies if form.fullmatch(word)), re.escape(word))
        for word in _PART.split(line)
    ]
    return "".join(words)


def is_seen(shown: Iterable[str], printed: str) -> bool:
    """Whether these lines are in the output, in their order."""
    lines = iter(printed.splitlines())
    return all(
        any(re.fullmatch(pattern, line.rstrip()) for line in lines)
        for pattern in map(pattern_of, shown)
    )


class Administrator:
    """Types commands of the section; paths and users are those of the test."""

    def __init__(self, cluster: SlurmTestCluster, daemon: DaemonProcess, scratch: Path) -> None:
        self._daemon = daemon
        self._replaced = {
            "runuser -u bftrainer -- ": "",
            "/etc/bftrainer": str(daemon.state_dir),
            "/var/tmp": str(scratch),
        }
        self._env = {
            **os.environ,
            "PATH": f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}",
            "SLURM_CONF": str(cluster.config.slurm_conf),
            "BFTRAINER_SOCKET": str(daemon.client.socket_path),
        }

    def types(self, command: pages.Command) -> None:
        """Type a command; those that only show something are repeated, as a reader would."""
        printed = ""

        def is_as_shown() -> bool:
            nonlocal printed
            argv = ("bash", "-c", self._of_test(command.text))
            done = process.run(argv, timeout_s=COMMAND_S, env=self._env, cwd=Path("/"))
            printed = f"{done.returncode}: {done.stdout}{done.stderr}"
            if command.text == "bftrainer doctor":
                return self._is_judged_so(command, done.stdout)
            if command.text == "bftrainer report harm":  # Slurm may be quicker than the daemon
                return done.is_ok and command.is_seen_in(done.stdout)
            return done.is_ok and is_seen(map(self._of_test, command.shown), done.stdout)

        try:
            if command.text.startswith(LOOKS):
                wait_for(is_as_shown, timeout_s=PATIENCE_S, interval_s=0.3)
            else:
                assert is_as_shown()
        except AssertionError:
            log = self._daemon.log.read_text()[-4000:]
            raise AssertionError(f"{command}\nprinted {printed}\nlog:\n{log}") from None

    def _of_test(self, text: str) -> str:
        for theirs, ours in self._replaced.items():
            text = text.replace(theirs, ours)
        return text

    def _is_judged_so(self, command: pages.Command, printed: str) -> bool:
        """Compare findings, and their words; those that only the test cluster has are left out."""
        found = set(_CODE.findall(printed)) - {LINUXPROC}
        expected = set(_CODE.findall("\n".join(command.shown)))
        return found == expected and (not expected or is_seen(command.shown, printed))


def test_every_command_says_who_types_it() -> None:
    typed = pages.commands(SECTION)
    assert len(typed) >= 15
    assert [one.text for one in typed if Path(__file__).name not in one.not_run] == []


@pytest.fixture
def scratch() -> Iterator[Path]:
    """Stands for the page's /var/tmp, which every job can enter."""
    directory = enterable_directory()
    yield directory
    shutil.rmtree(directory)


@pytest.mark.long
def test_an_administrator_follows_it(
    cluster: SlurmTestCluster, tmp_path: Path, scratch: Path
) -> None:
    policy = f"{POLICY}batch_options:\n  hook_file: {cluster.config.hook_file}\n"
    policy += f"  slurm_conf: {cluster.config.slurm_conf}\n"
    state_dir = tmp_path / "state"
    with DaemonProcess(state_dir, batch_system="slurm", batch_options={}, policy=policy) as daemon:
        administrator = Administrator(cluster, daemon, scratch)
        for command in pages.commands(SECTION):
            administrator.types(command)
        queue = ("squeue", "-h", "-p", "bf")
        wait_for(lambda: not cluster.command(*queue).stdout.strip(), what="pilots are gone")
