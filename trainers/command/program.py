"""One run of the user's program: environment, checkpoint directory, process, output.

The program is in the keeper's process group, so that one signal to the group ends both and their
children.

The checkpoint directory has a new name in every generation: the new one renames ``generation-6`` to
``generation-7``. That is atomic and copies nothing, and a process of generation 6 that is still
alive (say, on a node that was cut off) finds its directory gone. ``latest`` is a link to the
present name, for users. The first node renames; the others wait for the new name to appear.

The names of environment variables are part of the contract in docs/howto/train-command.md. Called
by ``keeper``.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from bftrainer.batch import process
from bftrainer.elastic.process.worker_keeper import temporary_place
from bftrainer.ground.fence import write_whole
from bftrainer.ground.protocol import Commit, WorkerConfig
from bftrainer.ground.regular_file import read_file
from bftrainer.model.cluster import node_of

READ_BYTES = 1 << 16
# In one turn: who prints faster than we read would leave no time for the agent's messages.
MOST_READ_BYTES = 1 << 18
MAX_LINE_BYTES = 4096  # longer lines are logged but not parsed
_NAME = re.compile(r"generation-(\d{1,12})\Z", re.ASCII)
RUN_FILE = "run"  # which submission the numbers belong to
_RUN_BYTES = 1024
LINK = "latest"


class ControlFile:
    """A file on this node that lists the requests made so far, one word per line.

    It is in memory and vanishes with the keeper, so nothing is left behind. A program in a
    container may not look into /proc of a process outside (user namespaces): for it the file is in
    the pilot's directory for temporary files, which ends with the pilot.
    """

    def __init__(self, *, is_for_container: bool = False) -> None:
        if is_for_container:
            self._fd, self.path = tempfile.mkstemp(prefix="bft-control-", dir=temporary_place())
            return
        self._fd = os.memfd_create("bft-control")
        # Any process of the user on this node can read it there.
        self.path = f"/proc/{os.getpid()}/fd/{self._fd}"

    def close(self) -> None:
        """Remove what would be left of it."""
        if not self.path.startswith("/proc/"):
            Path(self.path).unlink(missing_ok=True)

    def clear(self) -> None:
        """Empty it for another run."""
        os.ftruncate(self._fd, 0)
        os.lseek(self._fd, 0, os.SEEK_SET)

    def write(self, word: str) -> None:
        """Add a request."""
        os.write(self._fd, f"{word}\n".encode())


class Program:
    """A program that runs, or has ended."""

    def __init__(
        self, argv: Sequence[str], *, cwd: Path, environment: Mapping[str, str], log: BinaryIO
    ) -> None:
        reader, writer = os.pipe()
        try:
            self._child = process.spawn(
                argv,
                env=environment,
                cwd=cwd,
                stdout=writer,
                stderr=subprocess.STDOUT,
                new_session=False,
            )
        except OSError:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        os.set_blocking(reader, False)
        self.pid = self._child.pid
        self.output_fd = reader
        self.pidfd = os.pidfd_open(self._child.pid)
        self.started_s = time.monotonic()
        self.is_silent = False  # its output is closed
        self._log = log
        self._rest = b""

    def signal(self, number: signal.Signals) -> None:
        """Signal the program itself, not its children."""
        self._child.send_signal(number)

    def kill(self) -> None:
        """SIGKILL the program itself; its children end with our process group."""
        self._child.kill()

    def read(self) -> list[str]:
        """Copy its new output to the log, in a turn's measure; return the complete lines."""
        lines: list[str] = []
        for _ in range(MOST_READ_BYTES // READ_BYTES):
            if self.is_silent:
                break
            try:
                chunk = os.read(self.output_fd, READ_BYTES)
            except BlockingIOError:
                break
            self.is_silent = not chunk
            self._log.write(chunk)
            *complete, beginning = (self._rest + chunk).split(b"\n")
            self._rest = beginning
            if len(beginning) > MAX_LINE_BYTES:
                self._rest = b""
            lines += [line.decode(errors="replace") for line in complete]
        return lines

    def end(self) -> int:
        """Reap it after ``pidfd`` became readable; return its status, ``-N`` for signal N."""
        status = self._child.wait()
        os.close(self.pidfd)
        os.close(self.output_fd)
        return status


class FencedError(Exception):
    """A later generation of the same trainer has the checkpoints."""


def directory_of(base: Path, generation: int) -> Path:
    """Return where the checkpoints of this generation are."""
    return base / f"generation-{generation}"


def take(base: Path, *, run: str, generation: int) -> Path:
    """Rename the newest checkpoint directory for this generation; a new ``run`` counts from 1.

    ``FencedError``: the same run has a later generation already. ``OSError``: the file system
    refuses.
    """
    numbers = _numbers(base)
    newest = max(numbers, default=0)
    is_ours = _run_of(base) == run
    if is_ours and newest > generation:
        raise FencedError(f"generation {newest} has the checkpoints, this is {generation}")
    target = directory_of(base, generation)
    if newest and newest != generation:
        if target.exists():  # of an aborted earlier run: not used any more
            target.rename(base / f"{target.name}.stale-{time.time_ns()}")
        directory_of(base, newest).rename(target)
    else:
        target.mkdir(exist_ok=True)
    if not is_ours:
        write_whole(base / RUN_FILE, [run.encode()])
    fresh = base / f".{LINK}-{generation}"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target.name)
    fresh.replace(base / LINK)
    return target


def _numbers(base: Path) -> list[int]:
    return [int(m[1]) for path in base.iterdir() if (m := _NAME.match(path.name))]


def _run_of(base: Path) -> str:
    try:
        return read_file(base / RUN_FILE, _RUN_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return ""


def program_environment(
    config: WorkerConfig,
    commit: Commit,
    rank: int,
    *,
    checkpoint_dir: str,
    control_file: str,
    inherited: Mapping[str, str],
) -> dict[str, str]:
    """Return the environment of the program; the user's variables override ours.

    ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT`` are those of
    ``torch.distributed``'s ``env://``, with one process per node.
    """
    members = sorted(commit.members, key=lambda m: m.rank)
    variables = {
        "BFT_TRAINER": config.trainer_id,
        "BFT_GENERATION": str(commit.generation),
        "BFT_SIZE": str(len(members)),
        "BFT_RANK": str(rank),
        # Hosts, which ssh and mpirun know; one with several parts stands there for each of them.
        "BFT_NODES": ",".join(node_of(m.node) for m in members),
        "BFT_ADDRESSES": ",".join(m.address for m in members),
        "BFT_CHECKPOINT_DIR": checkpoint_dir,
        "BFT_CHECKPOINT_INTERVAL_S": f"{config.checkpoint_interval_s:g}",
        "BFT_CONTROL_FILE": control_file,
        "MASTER_ADDR": commit.store_host,
        "MASTER_PORT": str(commit.store_port),
        "WORLD_SIZE": str(len(members)),
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
    }
    if config.epochs is not None:
        variables["BFT_EPOCHS"] = str(config.epochs)
    if config.samples is not None:
        variables["BFT_SAMPLES"] = str(config.samples)
    if config.steps is not None:
        variables["BFT_STEPS"] = str(config.steps)
    return {**inherited, "PYTHONUNBUFFERED": "1", **variables, **dict(config.environment)}
