"""The hosts themselves: they are apart, a cut is silent, and nothing of them is left."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from bftrainer.batch import process
from tests.support.hosts import Cluster, HostError, Names, running_hosts
from tests.support.hosts.cluster import cluster_of_hosts
from tests.support.processes import below, is_running
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm
ROOT = Path(__file__).parents[2]

# Connects, says so, and then what the connection does: a line, an end, an error.
_LISTEN = """\
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.create_server((sys.argv[1], 7000), family=family) as server:
    print("listens", flush=True)
    peer, _ = server.accept()
    print("connected", flush=True)
    peer.settimeout(float(sys.argv[2]))
    while True:
        try:
            print(repr(peer.recv(100)), flush=True)
        except OSError as problem:
            print(type(problem).__name__, flush=True)
            break
"""
_CONNECT = """\
import socket, sys, time
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[3])) as one:
    one.sendall(b"hello")
    time.sleep(float(sys.argv[4]))
"""


cluster = cluster_of_hosts(n_nodes=4)


def reaches(cluster: Cluster, host: str, other: str, port: int = 22) -> bool:
    """Whether packets of a host come back from another: nobody listens, so it is refused."""
    done = cluster.run(
        *(host, sys.executable, "-c", _CONNECT, cluster.plan.address(other), str(port), "1", "0")
    )
    return "ConnectionRefusedError" in done.stderr


@pytest.mark.long
def test_four_nodes_are_idle_and_ordinary_jobs_run_on_them(cluster: Cluster) -> None:
    said = cluster.does("login", "srun", "-N4", "sh", "-c", "hostname; id -un", user="ada")
    assert sorted(said.split()) == ["ada"] * 4 + ["n1", "n2", "n3", "n4"]


@pytest.mark.long
def test_only_the_home_is_shared(cluster: Cluster) -> None:
    for place in ("/tmp", "/run", "/var/tmp", "/etc", "/dev/shm", "/home"):
        cluster.does("n1", "touch", f"{place}/of-n1")
    seen = cluster.does("n2", "sh", "-c", "ls /*/of-n1 /var/tmp/of-n1 /dev/shm/of-n1 || true")
    assert seen.split() == ["/home/of-n1"]
    assert not Path("/etc/of-n1").exists()
    assert cluster.disk("n1", "/var/tmp/of-n1").exists()
    assert (cluster.home / "of-n1").exists()


@pytest.mark.long
def test_hosts_are_told_apart(cluster: Cluster) -> None:
    script = "hostname; cat /proc/sys/kernel/random/boot_id /etc/machine-id; hostname -i"
    said = [cluster.does(host, "sh", "-c", script).split() for host in cluster.plan.hosts]
    for of_one_kind in zip(*said, strict=True):
        assert len(set(of_one_kind)) == len(cluster.plan.hosts)


@pytest.mark.long
def test_a_cut_is_silent_and_what_was_said_meanwhile_arrives_when_it_is_mended(
    cluster: Cluster, tmp_path: Path
) -> None:
    with (tmp_path / "heard").open("wb") as heard:
        cluster.popen("n1", sys.executable, "-c", _LISTEN, "10.77.0.11", "3", output=heard)

    def says(text: str) -> None:
        wait_for(lambda: text in (tmp_path / "heard").read_text(), what=f"n1 says {text}")

    says("listens")
    speaker = cluster.popen("n2", sys.executable, "-c", _CONNECT, "10.77.0.11", "7000", "60", "600")
    says("b'hello'")
    cluster.cut("n2")
    assert not reaches(cluster, "n2", "n1")
    for pid in cluster.processes("n2", "create_connection"):
        os.kill(pid, signal.SIGKILL)  # its FIN stays in the cable
    speaker.wait()
    says("TimeoutError")  # neither an end nor an error was heard
    carrier = cluster.does("n2", "cat", "/sys/class/net/eth0/operstate")
    assert carrier.strip() == "up"
    cluster.mend("n2")
    assert wait_for(lambda: reaches(cluster, "n2", "n1"), what="packets pass again")


@pytest.mark.long
def test_two_hosts_do_not_hear_each_other(cluster: Cluster) -> None:
    cluster.block("n1", "n2")
    assert not reaches(cluster, "n1", "n2")
    assert not reaches(cluster, "n2", "n1")
    assert reaches(cluster, "n1", "n3")
    cluster.unblock("n1", "n2")
    assert reaches(cluster, "n1", "n2")


@pytest.mark.long
def test_one_host_does_not_hear_another_that_hears_it(cluster: Cluster) -> None:
    count = "cat /proc/net/snmp | grep ^Tcp: | tail -1 | cut -d' ' -f11"  # segments received
    cluster.block("n3", "n4", one_way=True)
    before = int(cluster.does("n4", "sh", "-c", count))
    assert not reaches(cluster, "n3", "n4")
    assert int(cluster.does("n4", "sh", "-c", count)) > before
    cluster.unblock("n3", "n4")


@pytest.mark.long
def test_only_the_ports_of_a_firewall_are_open(cluster: Cluster) -> None:
    cluster.firewall("n1", "6818", "60001-63000")
    assert not reaches(cluster, "n2", "n1", 22)
    assert reaches(cluster, "n2", "n1", 60007)
    assert reaches(cluster, "n1", "n2")  # answers are let in
    cluster.no_firewall("n1")
    assert reaches(cluster, "n2", "n1", 22)


@pytest.mark.long
def test_packets_are_lost(cluster: Cluster) -> None:
    cluster.lose("n1", 100)
    assert not reaches(cluster, "n2", "n1")
    cluster.lose("n1", 0)
    assert reaches(cluster, "n2", "n1")


@pytest.mark.long
def test_a_cable_has_a_rate(cluster: Cluster) -> None:
    if not cluster.has_rates:
        pytest.skip("this kernel has no tbf")
    shown = ("tc", "qdisc", "show", "dev", "eth0")
    cluster.limit_rate("n1", "100mbit")
    assert "rate 100Mbit" in cluster.does("n1", *shown)
    cluster.limit_rate("n1", "")
    assert "tbf" not in cluster.does("n1", *shown)


@pytest.mark.long
def test_a_full_and_a_read_only_file_system_are_those_of_one_host(cluster: Cluster) -> None:
    def error(host: str, path: str) -> str:
        return cluster.run(host, "dd", "if=/dev/zero", f"of={path}", "bs=64k", "count=4").stderr

    for place, path in (("/", "/var/tmp/zero"), ("/tmp", "/tmp/zero")):
        cluster.fill("n1", place)
        assert "No space left on device" in error("n1", path)
        assert "copied" in error("n2", path)
        cluster.empty("n1", place)
        assert "copied" in error("n1", path)
    cluster.make_read_only("n1", "/home/ada")
    assert "Read-only file system" in error("n1", "/home/ada/zero")
    assert "copied" in error("n2", "/home/ada/zero")
    cluster.make_writable("n1", "/home/ada")
    assert "copied" in error("n1", "/home/ada/zero")


@pytest.mark.long
def test_after_a_power_failure_a_host_is_the_same_with_another_boot_id(cluster: Cluster) -> None:
    def boot_id() -> str:
        return cluster.does("n4", "cat", "/proc/sys/kernel/random/boot_id")

    before = boot_id()
    cluster.does("n4", "touch", "/var/tmp/kept", "/tmp/lost")
    cluster.off("n4")
    assert not reaches(cluster, "n1", "n4")
    with pytest.raises(HostError, match="n4 is off"):
        cluster.run("n4", "true")
    cluster.on("n4")
    assert boot_id() != before
    assert cluster.run("n4", "test", "-e", "/var/tmp/kept").is_ok
    assert not cluster.run("n4", "test", "-e", "/tmp/lost").is_ok
    cluster.await_idle("n4")
    assert cluster.does("login", "srun", "-w", "n4", "hostname", user="bob") == "n4\n"


@pytest.mark.long
def test_slurms_daemons_stop_and_start(cluster: Cluster) -> None:
    cluster.stop_slurm("ctl")
    assert not cluster.run("login", "scontrol", "ping").is_ok
    cluster.start_slurm("ctl")
    cluster.await_idle()


@pytest.mark.long
def test_an_unknown_host_is_named() -> None:
    with running_hosts(n_nodes=1) as small, pytest.raises(HostError, match="n2 is off, or no host"):
        small.cut("n2") if small.pid("n2") else None


@pytest.mark.long
@pytest.mark.parametrize(
    ("names", "on_login", "on_node"),
    [
        ("debian", "127.0.1.1", "10.77.0.3"),
        ("outside", "198.18.9.3", "198.18.9.3"),
        ("ipv6", "fd77::3", "fd77::3"),
    ],
)
def test_names_have_the_addresses_of_their_style(names: Names, on_login: str, on_node: str) -> None:
    with running_hosts(n_nodes=1, names=names) as styled:
        for host, expected in (("login", on_login), ("n1", on_node)):
            assert styled.does(host, "getent", "ahosts", "login").split()[0] == expected
        assert reaches(styled, "n1", "login")
        if names == "outside":
            public = styled.plan.address("login", 1)
            said = styled.run("n1", sys.executable, "-c", _CONNECT, public, "22", "1", "0").stderr
            assert "Network is unreachable" in said


@pytest.mark.long
def test_of_two_networks_one_can_be_cut() -> None:
    with running_hosts(n_nodes=2, two_networks=True) as cluster:
        assert cluster.does("n1", "getent", "hosts", "n2-fast").split()[0] == "10.78.0.12"
        cluster.cut("n2", network=1)
        assert reaches(cluster, "n1", "n2")
        cluster.mend("n2", network=1)


@pytest.mark.long
def test_nothing_is_left() -> None:
    before = below(os.getpid())
    with running_hosts(n_nodes=2) as cluster:
        child = cluster.popen("n1", "sleep", "infinity", user="ada")
        mine, directory = below(os.getpid()) - before, cluster.rack.directory
        assert child.pid in mine
        inner = {pid for host in cluster.plan.hosts for pid in cluster.processes(host)}
        assert len(inner) > 8
    assert [pid for pid in inner | mine if is_running(pid)] == []
    assert not directory.exists()
    assert str(directory) not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.long
def test_nothing_is_left_by_a_test_that_was_killed() -> None:
    code = (
        "import os, signal, tests.support.hosts as hosts\n"
        "with hosts.running_hosts(n_nodes=1) as cluster:\n"
        "    print(cluster.rack.directory, *cluster.processes('ctl'), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    said = process.run((sys.executable, "-c", code), timeout_s=120, cwd=ROOT)
    assert said.returncode == -signal.SIGKILL, said.stderr
    directory, *pids = said.stdout.split()
    wait_for(lambda: not any(is_running(int(pid)) for pid in pids), what="all processes end")
    with running_hosts(n_nodes=1):  # sweeps
        assert not Path(directory).exists()
