"""The submit helper's units under a real systemd."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from bftrainer.site.submit import helper
from bftrainer.site.submit.service_files import HELPER, SOCKET_NAME
from slurm_plugins.site_files import site_files
from tests.support.machine import Machine
from tests.unit.site.test_submit_helper import SUBMIT
from tests.unit.slurm_plugins.test_slurm_doctor import GOOD

SOCKET, SBATCH, ASK = "/run/bftrainer-submit.sock", "/opt/sbatch", "/opt/ask"
_ASK = f"""\
import json, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.settimeout(60)
connection.connect("{SOCKET}")
connection.sendall(sys.stdin.buffer.read())
connection.shutdown(socket.SHUT_WR)
said = b""
while chunk := connection.recv(65536):
    said += chunk
print(said.decode() or "null")
"""


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with Machine.boot(runs_checkout=False) as booted:
        booted.does("ln -sf python3 /usr/bin/python && useradd --create-home ada")
        options = {"submit_helper": SOCKET, "user": "daemon"}
        for file in site_files(GOOD, options, program="/usr/bin/bftrainer"):
            if file.name == helper.CONFIG.name:
                config = {**json.loads(file.text), "sbatch": SBATCH}
                booted.write(str(helper.CONFIG), json.dumps(config))
            elif file.path == HELPER or "submit" in file.name:
                booted.write(file.path, file.text)
        booted.write(ASK, _ASK)
        booted.does(f"systemctl daemon-reload && systemctl start {SOCKET_NAME}")
        yield booted


def asked(machine: Machine, sbatch: str, *, as_user: str = "daemon") -> Any:
    machine.write(SBATCH, f"#!/bin/sh\n{sbatch}\n")
    machine.does(f"chmod 755 {SBATCH}")
    machine.write("/opt/request", json.dumps({**SUBMIT, "user": "ada"}))
    return json.loads(machine.does(f"runuser -u {as_user} -- python3 -I {ASK} </opt/request"))


def test_a_pilot_is_submitted_as_its_user(machine: Machine) -> None:
    answer = asked(machine, 'echo 42; touch "$HOME/ran"')
    assert answer == {"status": 0, "stdout": "42\n", "stderr": ""}
    assert machine.does("stat -c %U /home/ada/ran").strip() == "ada"
    assert machine.does("ls /home/ada/.bftrainer/pilots/*/*/agent.key")


def test_nobody_but_the_daemon_connects(machine: Machine) -> None:
    done = machine.run(f"runuser -u ada -- python3 -I {ASK} </opt/request")
    assert "Permission denied" in done.stderr


def test_a_user_whose_sbatch_takes_memory_takes_little_of_the_host(machine: Machine) -> None:
    """Seen failing before: it had what it took. The kernel need not bound services here."""
    takes = "x = b'x' * (1200 << 20); print(42, flush=True)"
    answer = asked(machine, f'exec python3 -c "{takes}"')
    assert answer["status"] == 1
    assert "MemoryError" in answer["stderr"]
    shown = machine.does("systemctl show bftrainer-submit@1 -p MemoryMax -p TasksMax")
    assert set(shown.split()) == {f"MemoryMax={128 << 20}", "TasksMax=32"}
    assert asked(machine, "echo 42")["status"] == 0  # the next one is served
