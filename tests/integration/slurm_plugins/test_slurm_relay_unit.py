"""The relay's unit under systemd, on a host of its own network, restarted and without privilege."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_plugins.hook.scripts import RELAY_KEY_FILE, RELAY_SERVICE_NAME, relay_service
from tests.support.machine import ROOT, Machine
from tests.support.waiting import wait_for

pytestmark = pytest.mark.long

TOLD, PORT = "/run/bftrainer-hook/told", 7321
HEARD = "/root/heard"
# The daemon's end, and a file with what it heard.
_LISTENER = f"""\
import select, sys
from pathlib import Path
from bftrainer.fleet.wire.keys import load_or_create_pair
from slurm_plugins.hook.relay import key_of
from slurm_plugins.hook.relay_receiver import Relays

keys = load_or_create_pair(Path("/root/daemon.key"))
allowed = frozenset((key_of(sys.argv[1]),))
relays = Relays(host="127.0.0.1", port={PORT}, keys=keys, allowed=allowed)
relays.start()
with open("{HEARD}", "w", buffering=1) as heard:
    while True:
        select.select([relays], [], [], 1)
        lines, _ = relays.take()
        heard.write("".join(f"{{line}}\\n" for line in lines))
"""


@pytest.fixture
def machine() -> Iterator[Machine]:
    with Machine.boot() as booted:
        booted.does(f"ln -s {ROOT}/.venv /opt/bftrainer")
        booted.does("useradd --system bftrainer")
        booted.does(f"install -d -m 2750 -g bftrainer {Path(TOLD).parent}")
        booted.does(f"echo 'bftrainer-hook 1' > {TOLD}")
        booted.write("/etc/slurm/slurm.conf", "SlurmUser=root\n")
        yield booted


def test_it_carries_lines_as_an_ordinary_user_and_comes_back(machine: Machine) -> None:
    hook = "/opt/bftrainer/bin/bftrainer-slurm-hook"
    machine.does(f"install -d -o bftrainer -m 700 {RELAY_KEY_FILE.parent}")
    key = machine.does(f"runuser -u bftrainer -- {hook} --make-key {RELAY_KEY_FILE}").strip()
    daemon_key = machine.does(f"{hook} --make-key /root/daemon.key").strip()
    machine.write("/root/listener.py", _LISTENER)
    listener = f"/opt/bftrainer/bin/python /root/listener.py {key}"
    machine.does(f"systemd-run --unit listener --setenv PYTHONPATH={ROOT} {listener}")
    unit = relay_service(
        endpoint=f"tcp://127.0.0.1:{PORT}",
        daemon_key=daemon_key,
        file=Path(TOLD),
        directory=Path("/etc/slurm"),
        account="bftrainer",
    )
    machine.write(f"/etc/systemd/system/{RELAY_SERVICE_NAME}", unit)
    machine.does(f"systemctl daemon-reload && systemctl start {RELAY_SERVICE_NAME}")

    def is_carried(number: int) -> bool:
        machine.does(f"printf 'end\\t{number}\\t5\\tbatch\\tn1\\n' >> {TOLD}")
        return f"end\t{number}\t5" in machine.run(f"cat {HEARD}").stdout

    log = f"journalctl -u {RELAY_SERVICE_NAME} -o cat --no-pager"
    try:
        wait_for(lambda: is_carried(1), what="a line is carried", timeout_s=60)
    except AssertionError:
        pytest.fail(machine.run(log).stdout + machine.run("systemctl status listener").stdout)
    machine.does(f"systemctl kill --signal=KILL {RELAY_SERVICE_NAME}")
    wait_for(lambda: is_carried(2), what="it is started again", timeout_s=60)
    pid = machine.does(f"systemctl show -P MainPID {RELAY_SERVICE_NAME}").strip()
    status = machine.does(f"cat /proc/{pid}/status")
    assert f"CapEff:\t{0:016x}" in status
    assert "Uid:\t0" not in status
    machine.does("systemctl restart listener")  # the daemon
    wait_for(lambda: is_carried(3), what="it connects again", timeout_s=60)
