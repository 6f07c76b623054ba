"""Where the daemon's socket is, and whether its path can be trusted.

Called by the server before it binds and by the client before it connects. A user who can write to a
directory on the path could replace our socket, so such paths are refused.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from bftrainer.model.errors import BftError, ExitCode

SOCKET_NAME, ADDRESS_NAME = "daemon.sock", "daemon.json"
SITE_SOCKET = Path("/run/bftrainer") / SOCKET_NAME  # of a site's daemon, for all users
SYSTEM_UIDS = 1000  # accounts of services are below (login.defs(5): UID_MIN)
MAX_SOCKET_PATH_BYTES = 107  # sun_path of Linux, without its final NUL
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def state_dir(environ: Mapping[str, str]) -> Path:
    """Return this user's state directory of the daemon.

    That is ``$BFTRAINER_STATE_DIR``, else ``~/.bftrainer``, or the one directory below it in which
    a daemon of ``bftrainer up`` is or was.

    Raises:
        BftError: BFT-1108, there are several.
    """
    if named := environ.get("BFTRAINER_STATE_DIR"):
        return Path(named)
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
    return clusters[0] if clusters else home


def _has_daemon(directory: Path) -> bool:
    return any(os.path.lexists(directory / name) for name in (SOCKET_NAME, ADDRESS_NAME))


def own_state_dir(environ: Mapping[str, str], cluster: str) -> Path:
    """Return the state directory of this user's own daemon on a cluster (``bftrainer up``)."""
    if named := environ.get("BFTRAINER_STATE_DIR"):
        return Path(named).absolute()
    return (Path(environ.get("HOME") or Path.home()) / ".bftrainer" / cluster).absolute()


def socket_path(option: str | None, environ: Mapping[str, str]) -> Path:
    """Return the socket to use: option, BFTRAINER_SOCKET, state directory, or the site's."""
    if named := option or environ.get("BFTRAINER_SOCKET"):
        return Path(named).absolute()
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
    return info.st_uid if is_roots and info.st_uid < SYSTEM_UIDS else None


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
