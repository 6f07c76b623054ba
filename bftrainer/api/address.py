"""The daemon's socket, the check of its path, and ``daemon.json`` of a user's own daemon.

Called by the server before it binds and by the client before it connects. A user who can write to a
directory on the path could replace our socket, so such paths are refused.

Several hosts see the directory of a user's own daemon (docs/adr/0027-own-daemon.md). The daemon
writes ``daemon.json`` when it answers; verbs on other hosts read from it which daemon to ask, and
the next daemon whether one is alive. The file, and the key beside it, are readable by the user
alone.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import stat
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from bftrainer.ground.regular_file import read_file
from bftrainer.model.errors import BftError, ExitCode

SOCKET_NAME, ADDRESS_NAME = "daemon.sock", "daemon.json"
SITE_SOCKET = Path("/run/bftrainer") / SOCKET_NAME  # of a site's daemon, for all users
SYSTEM_UIDS = 1000  # accounts of services are below (login.defs(5): UID_MIN)
MAX_SOCKET_PATH_BYTES = 107  # sun_path of Linux, without its final NUL
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
KEY_NAME = "client.key"
MAX_BYTES = 4096
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def state_dir(environ: Mapping[str, str]) -> Path:
    """Return this user's state directory of the daemon.

    That is ``$BFTRAINER_STATE_DIR``, else ``~/.bftrainer``, or the one directory below it in which
    a daemon of ``bftrainer up`` is or was.

    Raises:
        BftError: BFT-1108, there are several.
    """
    if directory := environ.get("BFTRAINER_STATE_DIR"):
        return Path(directory)
    home = Path(environ.get("HOME") or Path.home()) / ".bftrainer"
    if _has_daemon(home):
        return home
    try:
        clusters = sorted(path for path in home.iterdir() if _has_daemon(path))
    except OSError:
        return home
    if len(clusters) > 1:
        raise BftError(
            "BFT-1108",
            f"You have daemons on several clusters: {', '.join(p.name for p in clusters)}.",
            f"Choose one: export BFTRAINER_STATE_DIR={clusters[0]}",
            exit_code=ExitCode.USAGE,
        )
    if not clusters:
        return home
    return clusters[0]


def _has_daemon(directory: Path) -> bool:
    return any(os.path.lexists(directory / name) for name in (SOCKET_NAME, ADDRESS_NAME))


def own_state_dir(environ: Mapping[str, str], cluster: str) -> Path:
    """Return the state directory of this user's own daemon on a cluster (``bftrainer up``)."""
    if directory := environ.get("BFTRAINER_STATE_DIR"):
        return Path(directory).absolute()
    return (Path(environ.get("HOME") or Path.home()) / ".bftrainer" / cluster).absolute()


def socket_path(option: str | None, environ: Mapping[str, str]) -> Path:
    """Return the socket to use: option, BFTRAINER_SOCKET, state directory, or the site's."""
    if path := option or environ.get("BFTRAINER_SOCKET"):
        return Path(path).absolute()
    directory = state_dir(environ)
    is_named = bool(environ.get("BFTRAINER_STATE_DIR"))
    if not is_named and not _has_daemon(directory) and os.path.lexists(SITE_SOCKET):
        return SITE_SOCKET
    return (directory / SOCKET_NAME).absolute()


def site_uid(directory: Path) -> int | None:
    """Return the account of a site's daemon whose socket is there; None: it is no such place.

    Only root can have given a service a directory in one that is root's alone.
    """
    try:
        info = directory.lstat()
        above = [ancestor.stat() for ancestor in directory.resolve(strict=True).parents]
    except OSError:
        return None
    is_roots = all(i.st_uid == 0 and not i.st_mode & _OTHERS_WRITE for i in above)
    if not is_roots or info.st_uid >= SYSTEM_UIDS:
        return None
    return info.st_uid


def check_directory(directory: Path, *, uid: int | None = None) -> None:
    """Refuse a directory in which another user could replace our socket.

    The directory itself must be real (not a link), ours or root's, and writable only by its
    owner. Its ancestors are judged by their real paths: a shared one is accepted if its sticky bit
    keeps others from renaming our files, as in /tmp.

    Raises:
        BftError: BFT-1104, naming the directory and the reason.
    """
    owner = os.geteuid() if uid is None else uid
    try:
        info = directory.lstat()
        if stat.S_ISLNK(info.st_mode):
            raise _refusal(directory, "is a symbolic link")
        if not stat.S_ISDIR(info.st_mode):
            raise _refusal(directory, "is not a directory")
        _check_owner(directory, info, owner)
        if info.st_mode & _OTHERS_WRITE:
            raise _refusal(directory, "is writable by its group or by everybody")
        for ancestor in directory.resolve(strict=True).parents:
            _check_ancestor(ancestor, owner)
    except OSError as problem:
        raise _refusal(directory, f"cannot be examined ({problem.strerror})") from problem


def check_socket(path: Path, *, uid: int | None = None) -> None:
    """Refuse ``path`` unless it is a socket owned by us or root.

    Raises:
        FileNotFoundError: it does not exist.
        BftError: BFT-1104, naming the path and the reason.
    """
    owner = os.geteuid() if uid is None else uid
    info = path.lstat()
    if stat.S_ISLNK(info.st_mode):
        raise _refusal(path, "is a symbolic link")
    if not stat.S_ISSOCK(info.st_mode):
        raise _refusal(path, "is not a socket")
    _check_owner(path, info, owner)


def check_length(path: Path) -> None:
    """Refuse a path that does not fit into a socket address (BFT-1104)."""
    length = len(os.fsencode(path))
    if length > MAX_SOCKET_PATH_BYTES:
        raise BftError(
            "BFT-1104",
            f"The socket path {path} has {length} bytes; the system allows "
            f"{MAX_SOCKET_PATH_BYTES}.",
            "Use a shorter --socket or BFTRAINER_STATE_DIR.",
            exit_code=ExitCode.USAGE,
        )


def _check_ancestor(ancestor: Path, owner: int) -> None:
    info = ancestor.stat()
    _check_owner(ancestor, info, owner)
    if info.st_mode & _OTHERS_WRITE and not info.st_mode & stat.S_ISVTX:
        raise _refusal(ancestor, "is writable by its group or by everybody")


def _check_owner(path: Path, info: os.stat_result, owner: int) -> None:
    if info.st_uid not in (owner, 0):
        raise _refusal(path, f"belongs to user {info.st_uid}, not to {owner} or root")


def _refusal(path: Path, reason: str) -> BftError:
    return BftError(
        "BFT-1104",
        f"The socket is not safe: {path} {reason}.",
        "Keep the socket in a directory that only you can write to (chmod 700), "
        "named by --socket or BFTRAINER_STATE_DIR.",
        exit_code=ExitCode.NOT_PERMITTED,
    )


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
        """Return whether the daemon is, or was, on this host since the host was booted."""
        return (self.host, self.boot_id) == this_host()

    @property
    def where(self) -> str:
        """Host and process, in words."""
        job = f", job {self.job_id}" if self.job_id else ""
        return f"process {self.pid} on {self.host}{job}"


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
        # Root may ask for the daemon of any user.
        document = json.loads(read_file(path, MAX_BYTES, is_typed=os.geteuid() == 0))
        names = [field.name for field in fields(Address) if field.name != "further"]
        values = {name: document[name] for name in names}
        further = tuple(document.get("further", ()))  # not of releases before
        address = Address(**values, further=further)
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    words = (*further, *(word for name, word in values.items() if name != "pid"))
    if not isinstance(address.pid, int) or not all(isinstance(word, str) for word in words):
        return None
    return address


def remove(state_dir: Path, address: Address) -> None:
    """Remove the file if it is still that daemon's."""
    written = read(state_dir)
    if written is not None and written.nonce == address.nonce:
        (state_dir / ADDRESS_NAME).unlink(missing_ok=True)


def is_gone(address: Address, environ: Mapping[str, str]) -> bool:
    """Return whether that daemon has certainly ended: so says its host, or it was our batch job."""
    if address.job_id and address.job_id == environ.get("SLURM_JOB_ID"):
        return True  # the batch system starts a requeued job when it has ended
    host, _ = this_host()
    if address.host != host:
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
