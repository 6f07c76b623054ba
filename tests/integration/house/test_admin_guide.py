"""docs/howto/slurm-site.md, command by command, by root on a machine with systemd and Slurm."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.slurm_fixtures import need_slurm
from tests.support import pages, slurm_site
from tests.support.machine import Machine
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm
PAGE = (Path(__file__).parents[3] / "docs" / "howto" / "slurm-site.md").read_text()
LOOKS = ("sinfo", "squeue", "bftrainer nodes", "bftrainer report", "bftrainer status")
PATIENCE_S = 90
NO_CGROUPS = "BFT-1556"  # slurmd cannot track processes by cgroup in the test's namespaces
NOT_YET = "BFT-1503"  # the service is not enabled before the daemon's start
_COMMAND = re.compile(
    r"(\$ |#? ?)?(bftrainer|systemctl|scontrol|sacctmgr|sbatch|apt-get|install|su)\b"
)


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    need_slurm()
    with Machine.boot() as booted:
        slurm_site.prepare(booted)
        yield booted


def test_every_command_is_run_or_says_why_not() -> None:
    assert [line for line in pages.unmarked(PAGE) if _COMMAND.match(line)] == []
    assert len([one for one in pages.commands(PAGE) if not one.not_run]) > 20


@pytest.mark.long
def test_a_stranger_installs_it(machine: Machine) -> None:
    directory = "/root"
    for command in pages.commands(PAGE):
        if command.text.startswith("cd "):
            directory = f"{directory}/{command.text.removeprefix('cd ')}"
        elif not command.not_run:
            types(machine, command, directory)
        if command.text.startswith("bftrainer site init"):
            # Their policy is edited so that there is less to wait for.
            quick = "poll_interval_with_hook_s: 1\nrequests_per_minute_with_hook: 1000\n"
            machine.does(f"printf '{quick}' | tee -a {directory}/*/policy.yaml")


def types(machine: Machine, command: pages.Command, directory: str) -> None:
    """Type a command; those that only show something are repeated, as a reader would."""
    said = ""

    def is_as_shown() -> bool:
        nonlocal said
        done = machine.run(command.text, directory=directory)
        said = f"{done.returncode}: {done.stdout}{done.stderr}"
        if "doctor" in command.text:  # only what this machine cannot have is left
            return set(re.findall(r"BFT-\d{4}", done.stdout)) - {NOT_YET} == {NO_CGROUPS}
        return done.is_ok and command.is_seen_in(done.stdout)

    try:
        if command.text.startswith(LOOKS):
            wait_for(is_as_shown, timeout_s=PATIENCE_S, interval_s=0.3)
        else:
            assert is_as_shown()
    except AssertionError:
        log = machine.run("journalctl --unit bftrainer --no-pager --output cat | tail -40").stdout
        raise AssertionError(f"{command}\nprinted {said}\nlog of the daemon:\n{log}") from None
