"""What Slurm 22.05 prints when it does not answer (recorded), and what is made of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.batch import process
from bftrainer.batch.batch_system import PilotRequest
from bftrainer.model.errors import BatchSystemError
from slurm_plugins.commands import SlurmCommands, is_controller_away, is_unknown, why_failed
from slurm_plugins.launcher import PilotLauncher

HERE = """\
sinfo: error: If munged is up, restart with --num-threads=10
sinfo: error: Munge encode failed: Failed to access "/run/munge.sock": No such file or directory
sinfo: error: slurm_send_node_msg: auth_g_create: REQUEST_PARTITION_INFO has authentication error
slurm_load_partitions: Protocol authentication error
"""
THERE = "slurm_load_partitions: Zero Bytes were transmitted or received\n"
AWAY = "slurm_load_partitions: Unable to contact slurm controller (connect failure)\n"
LOST = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n"
FULL = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying\n"
REFUSED = "sbatch: error: Batch job submission failed: Invalid account or partition specified\n"


def failed(stderr: str, *, timed_out: bool = False) -> process.Completed:
    return process.Completed(
        argv=("sinfo",), returncode=1, stdout="", stderr=stderr, wall_s=1.0, timed_out=timed_out
    )


@pytest.mark.parametrize(
    ("done", "words", "unknown", "away"),
    [
        (failed(HERE), "BFT-1551", False, True),
        (failed(THERE), "BFT-1552", True, True),
        (failed(AWAY), "Unable to contact", False, True),
        (failed(LOST), "Socket timed out", True, False),
        (failed(FULL, timed_out=True), "BFT-1553", True, True),
        (failed(REFUSED), "Invalid account", False, False),
        (replace(failed(""), returncode=-9), "status -9", True, False),  # it ran out of memory
    ],
)
def test_what_a_failure_means(
    done: process.Completed, words: str, *, unknown: bool, away: bool
) -> None:
    assert words in why_failed(done)
    assert (is_unknown(done), is_controller_away(done)) == (unknown, away)


class Site:
    """An sbatch that notes its options, and says what it is told to."""

    def __init__(self, base: Path, says: str, status: int = 0) -> None:
        sbatch = base / "sbatch"
        sbatch.write_text(
            f"#!/bin/sh\necho \"$@\" > {base}/asked\nprintf '{says}' >&2\necho 7\nexit {status}\n"
        )
        sbatch.chmod(0o755)
        self._asked, self._base = base / "asked", base
        commands = SlurmCommands(extra_environment={"PATH": f"{base}:/usr/bin:/bin"})
        self.launcher = PilotLauncher(commands=commands, partition="bf")

    def launch(self) -> str:
        request = PilotRequest(
            pilot_id="p000001",
            node="n1",
            time_limit_s=600,
            agent_argv=("true",),
            log_path=self._base / "log",
            gpus=0,
        )
        return self.launcher.launch(request, cycle_s=30.0)

    def deadline(self) -> str:
        asked = self._asked.read_text().split()
        return next(one for one in asked if one.startswith("--deadline"))


@pytest.mark.parametrize(("says", "code"), [(LOST, "BFT-1223"), (REFUSED, "BFT-1222")])
def test_a_request_that_may_have_been_carried_out_is_not_called_refused(
    tmp_path: Path, says: str, code: str
) -> None:
    with pytest.raises(BatchSystemError) as caught:
        Site(tmp_path, says.strip(), status=1).launch()
    assert caught.value.code == code


@pytest.mark.parametrize(("ahead_s", "later_s"), [(0.0, 780), (250.4, 1030), (-100.0, 680)])
def test_the_latest_end_of_a_pilot_is_by_the_clock_of_the_controller(
    tmp_path: Path, ahead_s: float, later_s: int
) -> None:
    site = Site(tmp_path, "")
    site.launcher.ahead_s = ahead_s
    assert site.launch() == "7"
    assert site.deadline() == f"--deadline=now+{later_s}"
