"""What of a user's environment the commands of a batch system, and so the pilots, get."""

from __future__ import annotations

import pytest

from bftrainer.batch.commands import DEFAULT_PATH, KEPT, Commands, environment_of_command
from lsf_adapters.commands import LsfCommands
from slurm_plugins import commands as slurm
from slurm_plugins.commands import SlurmCommands
from tests.support.hostile_environment import HOSTILE

ORDINARY = {
    "PATH": "/opt/slurm/bin:/usr/bin",
    "LD_LIBRARY_PATH": "/opt/slurm/lib",
    "HOME": "/home/ada",
    "USER": "ada",
    "LOGNAME": "ada",
}
IDENTITY = {
    "SLURM_CONF": "/opt/slurm/etc/slurm.conf",
    "SLURM_CONF_SERVER": "ctl1:6817",
    "SLURM_JWT": "a.b.c",
    "SLURM_SACK_SOCKET": "/run/slurm/sack.socket",
}


def test_paths_and_who_asks_remain_and_nothing_else() -> None:
    assert environment_of_command({**ORDINARY, **HOSTILE, **IDENTITY}) == ORDINARY
    assert environment_of_command({}) == {"PATH": DEFAULT_PATH}
    with_conf = environment_of_command({**HOSTILE, **IDENTITY}, kept=("SLURM_CONF", "MISSING"))
    assert with_conf == {"PATH": DEFAULT_PATH, "SLURM_CONF": IDENTITY["SLURM_CONF"]}


def surrounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*KEPT, *slurm.KEPT):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**ORDINARY, **HOSTILE, **IDENTITY, "LSF_ENVDIR": "/lsf"}.items():
        monkeypatch.setenv(name, value)


def printed_environment(commands: Commands) -> dict[str, str]:
    lines = commands.query(("/usr/bin/env",)).stdout.splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_slurm_is_found_and_answers_in_our_form(monkeypatch: pytest.MonkeyPatch) -> None:
    surrounded(monkeypatch)
    form = {"LC_ALL": "C", "TZ": "UTC0", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
    assert printed_environment(SlurmCommands()) == {**ORDINARY, **IDENTITY, **form}
    assert SlurmCommands().base_environment() == {**ORDINARY, **IDENTITY}
    assert SlurmCommands(slurm_conf="/x").base_environment()["SLURM_CONF"] == "/x"


def test_lsf_is_found_and_answers_in_our_form(monkeypatch: pytest.MonkeyPatch) -> None:
    surrounded(monkeypatch)
    monkeypatch.delenv("TZ", raising=False)
    form = {"LC_ALL": "C", "TZ": "UTC0", "LSB_DISPLAY_YEAR": "Y"}
    assert printed_environment(LsfCommands()) == {**ORDINARY, "LSF_ENVDIR": "/lsf", **form}
    assert LsfCommands().base_environment() == {**ORDINARY, "LSF_ENVDIR": "/lsf"}
