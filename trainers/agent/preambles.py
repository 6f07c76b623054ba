"""Preambles and containers on a node, and the folders of a user's pilots.

``bftrainer.model.preamble`` runs preambles; one that ends in a container has its entry as the last
line (``bftrainer.model.container``). Only agents remove anything from the folders: an agent
removes its key as soon as it is read, its configuration when it leaves, and the remains of earlier
pilots of its user. Called by the agent, ``workers``, ``templates`` and ``programs``.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bftrainer.batch.containers.place import PACKAGE, command_of
from bftrainer.elastic.worker import SPENT_LOGS
from bftrainer.fleet.wire.private import write_private
from bftrainer.ground.protocol import WorkerConfig
from bftrainer.ground.regular_file import open_log
from bftrainer.model.container import AUTO, ContainerOrder, line_of
from bftrainer.model.preamble import why_not_started

_MOST_READ_BYTES = 8192
KEPT = 50  # folders of pilots that have ended, for their logs
LONGEST_S = 31 * 86_400.0  # no pilot lives as long


@dataclass(frozen=True, slots=True)
class Preamble:
    """A preamble: the file, and the directory and environment to begin with."""

    path: str = ""  # "": there is none
    cwd: str = ""
    environment: tuple[tuple[str, str], ...] = ()  # which it may change
    is_container: bool = False  # its last line enters one

    @classmethod
    def of(cls, orders: Mapping[str, Any]) -> Preamble:
        """Return that of a program's first line."""
        preamble = orders.get("preamble")
        if not preamble:
            return cls()
        environment = tuple((name, value) for name, value in preamble["environment"])
        return cls(preamble["path"], preamble["cwd"], environment, preamble["is_container"])


NO_PREAMBLE = Preamble()


def placed(config: WorkerConfig, directory: Path) -> tuple[WorkerConfig, Preamble]:
    """Write the preamble of a worker, if it has one; return what is left of its configuration.

    The trainer's variables are set before the preamble, not after it. A container is part of it.

    Raises:
        BftError: BFT-1302, it cannot be written.
    """
    if not config.preamble and not config.container:
        return config, NO_PREAMBLE
    variables = tuple(pair for pair in config.environment if pair[0] != SPENT_LOGS)
    text = config.preamble.encode()
    if config.container:
        line = line_of(_order_of(config, variables), command_of())
        text = f"{config.preamble}\n{line}".encode()
    path = directory / f"preamble-{hashlib.sha256(text).hexdigest()[:16]}.sh"
    if not path.exists():
        write_private(path, text)
    ours = tuple(pair for pair in config.environment if pair[0] == SPENT_LOGS)
    without_preamble = replace(
        config, preamble="", container="", container_mounts="", container_runtime=AUTO,
        environment=ours,
    )  # fmt: skip
    preamble = Preamble(str(path), config.cwd, variables, bool(config.container))
    return without_preamble, preamble


def _order_of(config: WorkerConfig, variables: Iterable[tuple[str, str]]) -> ContainerOrder:
    """Return what the entry is told of the container of a worker with these variables."""
    directories = []
    if config.checkpoint_dir:
        directories.append(config.checkpoint_dir)
    if config.log_path:
        directories.append(str(Path(config.log_path).parent))
    return ContainerOrder(
        image=config.container,
        runtime=config.container_runtime,
        mounts=config.container_mounts,
        directories=(str(PACKAGE), str(Path(config.script).parent), config.cwd),
        made=tuple(directories),
        variables=tuple(sorted({name for name, _ in variables})),
        workdir=config.cwd,
    )


class Output:
    """The text added to a log from now on."""

    def __init__(self, log_path: Path) -> None:
        self._log_path = log_path
        self._start = log_path.stat().st_size if log_path.exists() else 0

    def why(self, status: int, preamble: Preamble) -> str:
        """Return why a command did not start under a preamble that wrote here."""
        return why_not_started(self._tail().decode(errors="replace"), status, preamble.path)

    def copy_to(self, log_path: str) -> None:
        """Append it to a worker's log, where its user looks."""
        # Beside: the user's file system may hang.
        text = self._tail()
        if log_path:
            threading.Thread(target=_append, args=(log_path, text), daemon=True).start()

    def _tail(self) -> bytes:
        with suppress(OSError), self._log_path.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._start, end - _MOST_READ_BYTES))
            return log.read(_MOST_READ_BYTES)
        return b""


def _append(path: str, text: bytes) -> None:
    with suppress(OSError), os.fdopen(open_log(path), "ab") as log:
        log.write(text)


def tidy(folder: Path) -> None:
    """Remove our key, and old folders beside ours (blocking)."""
    forget(folder / "agent.key")
    ended: list[tuple[float, Path]] = []
    now_s = time.time()
    with suppress(OSError):
        for pilot_folder in folder.parent.iterdir():
            changed_s = pilot_folder.lstat().st_mtime
            if now_s - changed_s > LONGEST_S or not (pilot_folder / "agent.json").exists():
                ended.append((changed_s, pilot_folder))
    for _, pilot_folder in sorted(ended, reverse=True)[KEPT:]:
        shutil.rmtree(pilot_folder, ignore_errors=True)


def forget(file: Path) -> None:
    """Remove a file that may be gone."""
    with suppress(OSError):
        file.unlink(missing_ok=True)
