"""The service under a real systemd: it starts without a controller, comes back, and ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from bftrainer.batch.service_files import service_files
from tests.support.machine import ROOT, Machine
from tests.support.waiting import wait_for

PROGRAM = ROOT / ".venv" / "bin" / "bftrainer"
STUCK = "/run/bft-stuck"
LATER_US = 3_000_000  # longer than the watchdog of the test waits
SHOW = "systemctl show bftrainer --property={name} --value"
POLICY = "/etc/bftrainer/policy.yaml"
QUICK = "poll_interval_s: 0.1\npoll_interval_with_hook_s: 0.1\nrequests_per_minute: 100000\n"


class Service:
    """The service of one test."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def shows(self, name: str) -> str:
        return self.machine.does(SHOW.format(name=name)).strip()

    def becomes(self, name: str, right: Callable[[str], bool]) -> str:
        def asked() -> str:
            value = self.shows(name)
            return value if right(value) else ""

        return wait_for(asked, timeout_s=60, interval_s=0.2, what=f"{name} of the service")

    def log(self) -> str:
        return self.machine.does("journalctl --unit bftrainer --no-pager --output cat")

    def policy(self) -> str:
        status = json.loads(self.machine.does(f"{PROGRAM} status --json"))
        return str(status["policy_hash"])

    def reads(self, policy: str) -> None:
        self.machine.write(POLICY, policy)
        self.machine.does("systemctl reload bftrainer")

    def is_changed(self, settings: str) -> None:
        """With a drop-in of the administrator."""
        self.machine.write("/etc/systemd/system/bftrainer.service.d/test.conf", settings)
        self.machine.does("systemctl daemon-reload && systemctl restart --no-block bftrainer")


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with Machine.boot() as booted:
        for file in service_files("slurm", program=str(PROGRAM)):
            booted.write(file.path, file.text)
        booted.write(POLICY, QUICK)
        booted.does("systemd-sysusers && systemctl daemon-reload")
        yield booted


@pytest.fixture
def service(machine: Machine) -> Service:
    """Running, as it was installed."""
    machine.run(f"rm -f {STUCK}; systemctl reset-failed bftrainer; systemctl start bftrainer")
    return Service(machine)


def test_it_runs_confined_and_without_a_controller(service: Service) -> None:
    assert service.shows("User") == "bftrainer"
    text = service.becomes("StatusText", lambda said: "incomplete poll" in said)
    assert text.startswith("holds 0 nodes; ")
    pid = service.shows("MainPID")
    status = service.machine.does(f"cat /proc/{pid}/status")
    assert "CapEff:\t0000000000000000" in status
    assert "Seccomp:\t2" in status
    modes = service.machine.does("cd /var/lib/bftrainer; stat -c '%n %a %U' . *").splitlines()
    assert modes[0] == ". 700 bftrainer"
    assert {(mode, owner) for _, mode, owner in map(str.split, modes[1:])} <= {
        ("600", "bftrainer"),
        ("700", "bftrainer"),
    }
    assert '"incarnation": 1' in service.machine.does(f"{PROGRAM} status --json")
    assert service.shows("NRestarts") == "0"


def test_it_comes_back_after_a_crash(service: Service) -> None:
    pid, times = service.shows("MainPID"), int(service.shows("NRestarts"))
    service.machine.does("systemctl kill --signal KILL bftrainer")
    service.becomes("MainPID", lambda other: other not in {"0", pid})
    service.becomes("ActiveState", lambda state: state == "active")
    assert int(service.shows("NRestarts")) == times + 1


@pytest.mark.long
@pytest.mark.parametrize("what", ["poll", "decision"])
def test_it_comes_back_when_it_hangs(what: str, service: Service) -> None:
    program = f"{ROOT}/.venv/bin/python -m tests.support.stuck {what} {STUCK}"
    options = f"--batch-system slurm --state-dir /var/lib/bftrainer --policy {POLICY}"
    service.is_changed(
        f"[Service]\nWatchdogSec=2\nRestartSec=1\nEnvironment=PYTHONPATH={ROOT}\n"
        f"ExecStart=\nExecStart={program} {options}\n"
    )
    service.becomes("StatusText", lambda said: "incomplete poll" in said)
    watched = service.shows("WatchdogTimestampMonotonic")
    service.becomes("WatchdogTimestampMonotonic", lambda fed: int(fed) > int(watched) + LATER_US)
    assert (service.shows("NRestarts"), service.shows("ActiveState")) == ("0", "active")
    service.machine.does(f"touch {STUCK}; chmod 666 {STUCK}")
    service.becomes("Result", lambda result: result == "watchdog")
    service.machine.does(f"rm {STUCK}")
    service.becomes("NRestarts", lambda times: int(times) > 0)
    service.becomes("ActiveState", lambda state: state == "active")
    assert "in hang" in service.log()
    service.machine.does("systemctl revert bftrainer && systemctl restart bftrainer")


def test_it_reads_its_policy_again(service: Service) -> None:
    pid, before = service.shows("MainPID"), service.policy()
    service.reads(f"{QUICK}max_nodes: 3\n")
    wait_for(lambda: service.policy() != before, timeout_s=60, interval_s=0.2, what="it is taken")
    after = service.policy()
    service.reads(f"{QUICK}max_nodes: many\n")
    wait_for(lambda: "asked to reload" in service.log(), timeout_s=60, what="it is refused")
    assert service.policy() == after
    assert (service.shows("ActiveState"), service.shows("MainPID")) == ("active", pid)
    service.reads(QUICK)


def test_it_stops_in_order(service: Service) -> None:
    service.becomes("StatusText", lambda said: "holds 0 nodes" in said)
    service.machine.does("systemctl stop bftrainer")
    assert service.shows("Result") == "success"
    assert service.shows("ExecMainStatus") == "0"


def test_a_wrong_policy_is_not_tried_again(service: Service) -> None:
    before = service.machine.does(f"cat {POLICY}")
    service.machine.does(f"echo 'pol_interval_s: 1' >> {POLICY}")
    done = service.machine.run("systemctl restart bftrainer")
    assert done.returncode != 0
    assert service.shows("ExecMainStatus") == "8"
    assert (service.shows("ActiveState"), service.shows("NRestarts")) == ("failed", "0")
    assert "pol_interval_s" in service.log()
    service.machine.write(POLICY, before)
