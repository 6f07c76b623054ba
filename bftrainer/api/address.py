"""Where a user's own daemon runs: the file ``daemon.json`` in its state directory.

The directory is seen by several hosts (docs/adr/0027-own-daemon.md). The daemon writes the file
when it answers; verbs on other hosts read whom to ask, and the next daemon whether one lives. The
file, and the key beside it, are readable by the user alone.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from bftrainer.api.paths import ADDRESS_NAME
from bftrainer.model.errors import BftError, ExitCode

KEY_NAME = "client.key"
MAX_BYTES = 4096
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A daemon on some host."""

    host: str
    boot_id: str  # of that host: after a reboot its processes are gone
    pid: int
    job_id: str  # of the batch job it runs in; "": none
    endpoint: str  # of its API for other hosts
    public_key: str
    nonce: str  # no two daemons write the same
    further: tuple[str, ...] = ()  # endpoints of it, if the first one does not answer

    @property
    def is_here(self) -> bool:
        """Whether it is, or was, on this host since it was booted."""
        return (self.host, self.boot_id) == this_host()

    @property
    def where(self) -> str:
        """Host and process, in words."""
        job = f", job {self.job_id}" if self.job_id else ""
        return f"process {self.pid} on {self.host}{job}"


_NAMES = tuple(field.name for field in fields(Address) if field.name != "further")


def this_host() -> tuple[str, str]:
    """Return the name of this host, and what distinguishes it from others of that name."""
    try:
        boot_id = _BOOT_ID.read_text().strip()
    except OSError:
        boot_id = ""
    return socket.gethostname(), boot_id


def own_address(endpoints: Sequence[str], public_key: str, environ: Mapping[str, str]) -> Address:
    """Return the address of this process, which answers at one of the endpoints at least."""
    host, boot_id = this_host()
    return Address(
        host=host,
        boot_id=boot_id,
        pid=os.getpid(),
        job_id=environ.get("SLURM_JOB_ID", ""),
        endpoint=endpoints[0],
        further=tuple(endpoints[1:]),
        public_key=public_key,
        nonce=secrets.token_hex(8),
    )


def write(state_dir: Path, address: Address) -> None:
    """Write the file, atomically.

    Raises:
        OSError: it cannot be written.
    """
    draft = state_dir / f".{ADDRESS_NAME}.{address.nonce}"
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w") as stream:
        json.dump(asdict(address), stream)
    draft.replace(state_dir / ADDRESS_NAME)


def read(state_dir: Path) -> Address | None:
    """Return what the file says; None: there is none, or nothing that a daemon wrote."""
    path = state_dir / ADDRESS_NAME
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as stream:
            if os.fstat(handle).st_uid not in (os.geteuid(), 0) and os.geteuid() != 0:
                return None
            given = json.loads(stream.read(MAX_BYTES))
        named = {name: given[name] for name in _NAMES}
        further = tuple(given.get("further", ()))  # not of releases before
        address = Address(**named, further=further)
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    words = (*further, *(word for name, word in named.items() if name != "pid"))
    is_whole = isinstance(address.pid, int) and all(isinstance(word, str) for word in words)
    return address if is_whole else None


def remove(state_dir: Path, address: Address) -> None:
    """Remove the file if it is still that daemon's."""
    found = read(state_dir)
    if found is not None and found.nonce == address.nonce:
        (state_dir / ADDRESS_NAME).unlink(missing_ok=True)


def is_gone(address: Address, environ: Mapping[str, str]) -> bool:
    """Whether that daemon has certainly ended: our host says so, or it was our own batch job."""
    if address.job_id and address.job_id == environ.get("SLURM_JOB_ID"):
        return True  # the batch system starts a requeued job when it has ended
    if address.host != this_host()[0]:
        return False
    if not address.is_here:
        return True
    try:
        os.kill(address.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return True  # somebody else's process has the number now
    return False


def already_running(state_dir: Path, address: Address) -> BftError:
    """Return BFT-1102, naming the daemon that answers."""
    return BftError(
        "BFT-1102",
        f"A daemon already uses the state directory {state_dir}: {address.where}.",
        "Use that daemon; or stop it first: bftrainer down.",
        exit_code=ExitCode.ALREADY_RUNNING,
    )
