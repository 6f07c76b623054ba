"""Two controllers of one Slurm, each with a relay: the second takes over, and its jobs are told."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.fleet.wire.keys import generate_pair
from slurm_plugins.hook import scripts
from slurm_plugins.hook.relay import shown
from slurm_plugins.hook.relay_receiver import RelayedHook
from slurm_plugins.hook.squeue_row import ClusterFacts
from slurm_plugins.hook.watch import Heard
from slurm_plugins.testcluster import FAST_CYCLE, ClusterConfig
from tests.integration.slurm_fixtures import enterable_directory, need_slurm, remove_cluster
from tests.support.controllers import BACKUP, BackupCluster
from tests.support.relays import RelayProcess, free_port, heard
from tests.support.waiting import wait_for

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="a second controller needs namespaces"),
]


class TwoHooks(BackupCluster):
    """One whose second controller has a hook's file of its own, as on another host."""

    @property
    def second_file(self) -> Path:
        return self.directory / "second" / "told"

    def start_backup(self) -> None:
        self.second_file.parent.mkdir(mode=0o755)
        super().start_backup()
        # Slurm reads a script again before its next use if it is younger than the last reading, in
        # whole seconds (job_submit/lua, 22.05).
        script = self.directory / "backup" / scripts.LUA_NAME
        script.write_text(scripts.lua(self.second_file))
        later_s = time.time() + 5
        os.utime(script, (later_s, later_s))


@pytest.fixture
def cluster() -> Iterator[TwoHooks]:
    need_slurm()
    directory = enterable_directory()
    made = TwoHooks(
        ClusterConfig(
            directory=directory,
            n_nodes=1,
            gpus_per_node=0,
            has_hook=True,
            bf_interval_s=2,
            message_timeout_s=3,
            scheduler_parameters=FAST_CYCLE,
        )
    )
    try:
        made.up()
        yield made
    finally:
        remove_cluster(made)


def relay(directory: Path, file: Path, port: int, daemon_key: str) -> RelayProcess:
    directory.mkdir()
    (directory / "slurm.conf").write_text(f"SlurmUser={os.getuid()}\n")
    return RelayProcess(directory=directory, file=file, port=port, daemon_key=daemon_key)


def test_the_backup_controllers_jobs_are_told_by_its_relay(
    cluster: TwoHooks, tmp_path: Path
) -> None:
    keys, port = generate_pair(), free_port()
    first = relay(tmp_path / "1", cluster.config.hook_file, port, shown(keys.public))
    second = relay(tmp_path / "2", cluster.second_file, port, shown(keys.public))
    cluster.start_backup()
    both = (first.keys.public, second.keys.public)
    with heard(*both, port=port, keys=keys) as relays:
        relays.start()
        try:
            first.start()
            wait_for(lambda: relays.telling == 1, what="the first tells")
            hook = RelayedHook(relays, Heard("bf", ClusterFacts))
            wait_for(lambda: not hook.hears_all, what="it knows that one is missing")
            second.start()
            wait_for(lambda: hook.hears_all, what="the second waits for its controller")
            assert not cluster.second_file.exists()
            users: list[str] = []

            def told(number: int) -> bool:
                users.extend(said.job.user for said in hook.read() if said.job is not None)
                return len(users) >= number

            cluster.submit(n_nodes=1, duration_s=0, limit_s=60, extra_args=("--hold",))
            wait_for(lambda: told(1), what="a job of the first")
            assert cluster.command("scontrol", "takeover").is_ok
            ping = ("scontrol", "ping")
            wait_for(lambda: "DOWN" in cluster.command(*ping).stdout, what="the first is gone")
            wait_for(lambda: cluster.command("sinfo").is_ok, what="the backup answers")

            def is_told() -> bool:
                cluster.submit(n_nodes=1, duration_s=0, limit_s=60, extra_args=("--hold",))
                return relays.telling == 2

            wait_for(is_told, what=f"{BACKUP} has a file, and its relay reads it", interval_s=1.0)
            told(0)
            users.clear()
            cluster.submit(n_nodes=1, duration_s=0, limit_s=60, extra_args=("--hold",))
            wait_for(lambda: told(1), what=f"a job of {BACKUP}")
            assert hook.hears_all
            assert set(users) == {"nobody"}
            assert "lost" not in relays.counts()
        finally:
            first.end()
            second.end()
