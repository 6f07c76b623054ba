"""The request of a command to the server, and the answer: plain data and its codec."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call of a command."""

    argv: list[str]
    cwd: str
    umask: int
    extra: list[str]  # what an esub changed
    environment: dict[str, str]
    stdin: bytes
    uid: int
    gid: int
    user: str  # name of the account, or its number if it has none

    @property
    def verb(self) -> str:
        """Name of the command."""
        return self.argv[0]

    def is_from(self, administrators: tuple[str, ...]) -> bool:
        """Return whether one of them asks, root, or whoever started the cluster."""
        return self.uid in (0, os.geteuid()) or self.user in administrators

    @classmethod
    def decode(cls, head: bytes, stdin: bytes, uid: int, gid: int) -> Self:
        """Read what ``client.request`` wrote; raises ``ValueError``: it is not that."""
        words = [word.decode(errors="surrogateescape") for word in head.split(b"\0")]
        n_argv = int(words[0])
        argv = words[1 : 1 + n_argv]
        cwd, umask, n_extra, *extra_and_variables = words[1 + n_argv :]
        extra = extra_and_variables[: int(n_extra)]
        variables = extra_and_variables[int(n_extra) :]
        if not argv:
            raise ValueError("no command")
        return cls(
            argv=argv,
            cwd=cwd,
            umask=int(umask, 8),
            extra=extra,
            environment=dict(word.split("=", 1) for word in variables if "=" in word),
            stdin=stdin,
            uid=uid,
            gid=gid,
            user=_name(uid),
        )


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


@dataclass(slots=True, kw_only=True)
class Answer:
    """The output of a command and its exit status."""

    status: int = 0
    out: str = ""
    err: str = ""

    def encode(self) -> bytes:
        """Return what ``client.ask`` reads."""
        out = self.out.encode(errors="surrogateescape")
        err = self.err.encode(errors="surrogateescape")
        return b"%d %d %d\n%s%s" % (self.status, len(out), len(err), out, err)
