"""The hosts as a test uses them: start, commands, troubles, end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Literal, Self

import pytest

from bftrainer.batch import process
from tests.support.accounts import why_closed
from tests.support.hosts import etc, rules
from tests.support.hosts.boot import ROOT, Booting
from tests.support.hosts.network import Network, forget_soon
from tests.support.hosts.plan import CONTROLLER, LOGIN, Plan
from tests.support.hosts.rack import COMMAND_S, PATH, HostError, Rack, enter
from tests.support.hosts.why_not import why_not
from tests.support.waiting import wait_for

__all__ = ["Cluster", "HostError", "cluster_of_hosts", "running_hosts"]

_DAEMONS = {CONTROLLER: "slurmctld", LOGIN: ""}  # of other hosts: slurmd


@contextlib.contextmanager
def running_hosts(**settings: Any) -> Iterator[Cluster]:
    """Run a cluster; at the end nothing of it is left. ``settings`` are those of ``Plan``.

    The test is skipped where the machine cannot run one.
    """
    if why := why_not() or why_closed():
        pytest.skip(why)
    with Cluster(Plan(**settings)) as cluster:
        yield cluster


class Cluster:
    """Hosts of a plan; a context manager that runs them. Nodes are idle when it is entered."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._booted: dict[str, Booting] = {}
        self._powered: set[str] = set()
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self.rack = Rack(self.plan.hosts)
        try:
            etc.write(self.rack.inside / "etc", self.plan)
            self.network = Network(self.rack, self.plan)
            self._power_on(*self.plan.hosts)
            self.await_idle()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for host in self._booted.values():
            forget_soon(host.pid)
        self.rack.remove()
        for host in self._booted.values():
            host.await_end()
        for child in self._started:
            child.wait()

    # -- commands ----------------------------------------------------------------

    def argv(
        self, host: str, *argv: str, user: str = "root", cwd: str = "", env: Mapping[str, str] = {}
    ) -> tuple[str, ...]:
        """Return the command line that runs another on a host."""
        home = "/root" if user == "root" else f"/home/{user}"
        environment = {
            "PATH": f"{ROOT}/.venv/bin:{PATH}",
            "HOME": home,
            "USER": user,
            "LOGNAME": user,
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
            "PYTHONDONTWRITEBYTECODE": "1",
            **env,
        }
        become = ("--reuid", user, "--regid", user, "--init-groups") if user != "root" else ()
        return (
            *("nsenter", f"--target={self.pid(host)}", "--all", f"--wdns={cwd or home}", "--"),
            *(("setpriv", *become, "--") if become else ()),
            *("env", "-i", *(f"{name}={value}" for name, value in environment.items())),
            *argv,
        )

    def run(
        self, host: str, *argv: str, timeout_s: float = COMMAND_S, stdin: str = "", **how: Any
    ) -> process.Completed:
        """Run a command on a host to its end; ``how`` are options of ``argv``."""
        full = self.argv(host, *argv, **how)
        return process.run(full, timeout_s=timeout_s, env={"PATH": PATH}, stdin=stdin)

    def does(self, host: str, *argv: str, **how: Any) -> str:
        """Run what must succeed; its output.

        Raises:
            HostError: it did not.
        """
        done = self.run(host, *argv, **how)
        if not done.is_ok:
            said = f"{done.stdout}{done.stderr}".strip()
            raise HostError(f"{host}: {' '.join(argv)}: {said or done.returncode}")
        return done.stdout

    def popen(
        self, host: str, *argv: str, output: IO[bytes] | int = subprocess.DEVNULL, **how: Any
    ) -> subprocess.Popen[bytes]:
        """Start a command on a host; it ends with the host at the latest."""
        full = self.argv(host, *argv, **how)
        child = process.spawn(full, env={"PATH": PATH}, stdout=output, stderr=output)
        self._started.append(child)
        return child

    def enter(self, host: str) -> tuple[str, ...]:
        """Return what runs a command with network and name of a host, but otherwise here."""
        return ("nsenter", f"--target={self.pid(host)}", "--net", "--uts", "--")

    def commands(self, host: str, directory: Path, *names: str) -> None:
        """Write programs that run those of a host, for who looks them up in PATH.

        Environment, standard input and output are the caller's.
        """
        for name in names:
            path = directory / name
            enter = f"nsenter --target={self.pid(host)} --all --wdns=/ --"
            path.write_text(f'#!/bin/sh\nPATH={PATH}\nexec {enter} {name} "$@"\n')
            path.chmod(0o755)

    # -- looking in from outside ---------------------------------------------------

    @property
    def home(self) -> Path:
        """The hosts' /home, as this process sees it."""
        return self.rack.home

    def disk(self, host: str, path: str) -> Path:
        """Return a file that a host has written, as this process sees it, its power on or off.

        Not of /home, /tmp, /run and /dev/shm.
        """
        return self.rack.inside / "disks" / host / "upper" / path.lstrip("/")

    def pid(self, host: str) -> int:
        """Return the first process of a host, as numbered outside.

        Raises:
            HostError: its power is off.
        """
        try:
            return self._booted[host].pid
        except KeyError:
            raise HostError(f"{host} is off, or no host") from None

    @property
    def powered(self) -> frozenset[str]:
        """The hosts that have power and have booted."""
        return frozenset(self._powered)

    def processes(self, host: str, text: str = "") -> list[int]:
        """Return processes whose command line holds a text, as numbered outside: for os.kill."""
        own = Path(f"/proc/{self.pid(host)}/ns/pid").readlink()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (entry / "ns" / "pid").readlink() == own:
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                    found += [int(entry.name)] if text.encode() in line else []
        return sorted(found)

    def process(self, host: str, text: str) -> int:
        """Return the one process; what it forks looks like it until it is another program."""

        def alone() -> int:
            found = self.processes(host, text)
            return found[0] if len(found) == 1 else 0

        return wait_for(alone, what=f"one {text} on {host}")

    def await_idle(self, *nodes: str) -> None:
        """Wait until Slurm calls nodes idle; without names, all of them."""
        wanted = {f"{node} idle" for node in nodes or self.plan.nodes}

        def are_idle() -> bool:
            said = self.run(LOGIN, "sinfo", "-hN", "-pbatch", "-o%N %T").stdout
            return wanted <= set(said.splitlines())

        wait_for(are_idle, interval_s=0.1, what=f"idle: {', '.join(sorted(wanted))}")

    # -- the network's troubles ------------------------------------------------------

    def cut(self, host: str, network: int = 0) -> None:
        """Cut a cable: packets vanish, no end is told."""
        self.network.set_cable(host, network, is_cut=True)

    def mend(self, host: str, network: int = 0) -> None:
        """Mend it."""
        self.network.set_cable(host, network, is_cut=False)

    def block(self, host: str, other: str, *, one_way: bool = False) -> None:
        """Let two hosts not hear each other; ``one_way``: the first does not hear the other."""
        for here, there in ((host, other), (other, host))[: 1 if one_way else 2]:
            addresses = [self.plan.address(there, net) for net in self.plan.addresses(there)]
            rules.replace(self.pid(here), f"from_{there}", *rules.from_hosts(addresses))

    def unblock(self, host: str, other: str) -> None:
        """Let two hosts hear each other again."""
        for here, there in ((host, other), (other, host)):
            rules.replace(self.pid(here), f"from_{there}")

    def lose(self, host: str, percent: int) -> None:
        """Lose so many of 100 packets that a host is sent; 0: none."""
        rules.replace(self.pid(host), "loss", *rules.lossy(percent))

    def limit_rate(self, host: str, rate: str, network: int = 0) -> None:
        """Limit a cable, both ways, to a rate of tc(8) like ``1000mbit``; "": no longer.

        Raises:
            HostError: this kernel cannot (no tbf).
        """
        self.network.limit(host, self.pid(host), rate, network)

    @property
    def has_rates(self) -> bool:
        """Whether this kernel can limit a rate (tbf)."""
        try:
            self.limit_rate(LOGIN, "100gbit")
        except HostError:
            return False
        self.limit_rate(LOGIN, "")
        return True

    def firewall(self, host: str, *ports: str) -> None:
        """Drop all that comes in but to these TCP ports, "6818" or "60001-63000"."""
        rules.replace(self.pid(host), "firewall", *rules.only(ports), policy="drop", priority=10)

    def no_firewall(self, host: str) -> None:
        """Let everything in."""
        rules.replace(self.pid(host), "firewall")

    # -- power and daemons -------------------------------------------------------------

    def off(self, host: str) -> None:
        """Cut the power. The cable goes first, so nobody hears that processes end."""
        self._powered.discard(host)
        for net in self.plan.addresses(host):
            self.cut(host, net)
        gone = self._booted.pop(host)
        forget_soon(gone.pid)
        os.kill(gone.pid, signal.SIGKILL)
        gone.await_end()
        self.network.disconnect(host)

    def on(self, host: str) -> None:
        """Switch it on: same name, address and disk; another boot id. Rules of nft are lost."""
        self._power_on(host)

    def _power_on(self, *hosts: str) -> None:
        for host in hosts:
            up_s = self.plan.up_s.get(host, 0)
            self._booted[host] = Booting(self.rack, host, self.plan.shared, up_s)
        for host in hosts:
            self.network.connect(host, self.pid(host))
        for host in hosts:
            self._booted[host].await_end_of_boot()
            self.does(host, "setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", "munged")
            self.start_slurm(host)
            self._powered.add(host)

    def start_slurm(self, host: str) -> None:
        """Start Slurm's daemon of a host."""
        if name := _DAEMONS.get(host, "slurmd"):
            self.does(host, name)

    def stop_slurm(self, host: str) -> None:
        """Stop Slurm's daemon of a host, and wait for its end; jobs go on."""
        name = _DAEMONS.get(host, "slurmd")
        if not name:
            return
        pid = int(self.does(host, "cat", f"/run/{name}.pid"))
        self.does(host, "kill", str(pid))
        wait_for(lambda: self.run(host, "kill", "-0", str(pid)).returncode, what=f"{name} ends")

    # -- file systems ----------------------------------------------------------------------

    def fill(self, host: str, place: str) -> None:
        """Let no byte more fit: "/" (the disk), /tmp, /run, /dev/shm, or /home (of all hosts)."""
        inside = self._mount_of(host, place)
        seen = os.statvfs(f"/proc/{inside[0]}/root{inside[1]}")
        used = max(1, seen.f_blocks - seen.f_bfree) * seen.f_frsize
        enter(inside[0], ("mount",), "mount", "-o", f"remount,size={used}", inside[1])

    def empty(self, host: str, place: str) -> None:
        """Undo ``fill``."""
        pid, where = self._mount_of(host, place)
        enter(pid, ("mount",), "mount", "-o", "remount,size=50%", where)

    def _mount_of(self, host: str, place: str) -> tuple[int, str]:
        if place == "/":
            return self.rack.pid, f"{self.rack.directory}/disks/{host}"
        return self.pid(host), place

    def make_read_only(self, host: str, place: str) -> None:
        """Let a directory, not "/", be read-only for this host. Files that are open stay as is."""
        enter(self.pid(host), ("mount",), "mount", "--bind", place, place)
        enter(self.pid(host), ("mount",), "mount", "-o", "remount,bind,ro", place)

    def make_writable(self, host: str, place: str) -> None:
        """Undo ``make_read_only``."""
        enter(self.pid(host), ("mount", "pid"), "umount", "--lazy", place)


def cluster_of_hosts(*, scope: Literal["function", "module"] = "module", **settings: Any) -> Any:
    """Return a fixture: a running cluster; ``settings`` are those of ``Plan``."""

    @pytest.fixture(scope=scope)
    def cluster() -> Iterator[Cluster]:
        with running_hosts(**settings) as running:
            yield running

    return cluster
