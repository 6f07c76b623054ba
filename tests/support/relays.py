"""Relays of the hook as processes, and what hears them, without a Slurm."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bftrainer.fleet.wire.keys import KeyPair, generate_pair, load_or_create_pair
from slurm_plugins.hook.relay import shown
from slurm_plugins.hook.relay_receiver import Relays


def free_port() -> int:
    """A port on loopback that nobody uses."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@dataclass(slots=True, kw_only=True)
class RelayProcess:
    """``bftrainer-slurm-hook --relay``; may be killed and started again."""

    directory: Path  # of slurm.conf, and of its log
    file: Path
    port: int
    daemon_key: str
    name: str = "relay"
    process: subprocess.Popen[bytes] | None = None

    @property
    def keys(self) -> KeyPair:
        return load_or_create_pair(self.directory / f"{self.name}.key")

    @property
    def key(self) -> str:
        return shown(self.keys.public)

    @property
    def log(self) -> str:
        return (self.directory / f"{self.name}.log").read_text()

    def start(self) -> None:
        assert self.key  # written
        argv = [sys.executable, "-m", "slurm_plugins.hook", "--file", str(self.file)]
        argv += ["--directory", str(self.directory), "--key", f"{self.directory}/{self.name}.key"]
        argv += ["--relay", f"tcp://127.0.0.1:{self.port}", "--daemon-key", self.daemon_key]
        with (self.directory / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log)

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(how)
            process.wait(20)


@contextmanager
def heard(*allowed: str, port: int = 0, keys: KeyPair | None = None) -> Iterator[Relays]:
    """What the daemon hears with; ``allowed`` are public keys of relays."""
    relays = Relays(
        host="127.0.0.1",
        port=port or free_port(),
        keys=keys or generate_pair(),
        allowed=frozenset(allowed),
    )
    try:
        yield relays
    finally:
        relays.close()


def hook_file(directory: Path) -> Path:
    """What the scripts have made, and a slurm.conf beside it."""
    place = directory / "hook"
    place.mkdir(mode=0o755, parents=True)
    (directory / "slurm.conf").write_text(f"SlurmUser={os.getuid()}\n")
    file = place / "told"
    file.write_text("bftrainer-hook 1\n")
    file.chmod(0o644)
    return file


def end(number: int) -> str:
    """Return the hook's line about the end of a job."""
    return f"end\t{number}\t5\tbatch\tn1\n"
