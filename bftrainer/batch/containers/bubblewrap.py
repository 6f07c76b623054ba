"""Bubblewrap: ``bwrap`` over a directory that holds the image's files.

After bwrap(1) of bubblewrap 0.8. Where the directory lacks a place that a mount needs, bubblewrap
makes it there, before the whole is made read-only; a directory of somebody else must have them. It
waits for the program and does not send signals on, so the entry does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bftrainer.batch.containers.charliecloud import SEARCHED
from bftrainer.batch.containers.runtime import ContainerCall, Find, ImageForm

PROGRAM: Final = "bwrap"
OF_THE_HOST: Final = (
    *("--dev-bind", "/dev", "/dev", "--bind", "/proc", "/proc", "--ro-bind", "/sys", "/sys"),
    *("--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf"),
    *("--ro-bind-try", "/etc/hosts", "/etc/hosts"),
    *("--ro-bind-try", "/etc/passwd", "/etc/passwd", "--ro-bind-try", "/etc/group", "/etc/group"),
)


class Bubblewrap:
    """Bubblewrap, which knows no images: a directory it is."""

    name = "bwrap"
    forms = frozenset({ImageForm.DIRECTORY})
    becomes = False
    forwards = False
    reads_help = False
    lingers = False

    def detect(self, find: Find) -> str:
        """Return the path of its program; "": this machine lacks it."""
        return find(PROGRAM) or ""

    def fault(self, call: ContainerCall) -> str:  # noqa: ARG002 - it can do all
        """Say what of a call it cannot do; "": nothing."""
        return ""

    def command(self, call: ContainerCall) -> list[str]:
        """Return the command line."""
        words = [call.program, "--die-with-parent", "--bind", call.image, "/", *OF_THE_HOST]
        for mount in call.mounts:
            words += [
                "--ro-bind" if mount.is_read_only else "--bind",
                mount.source,
                mount.target,
            ]
        return [*words, "--remount-ro", "/", "--chdir", call.workdir, "--", *call.argv]

    def environment(self, call: ContainerCall, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the host's environment, with the PATH of an image unless the user sets one."""
        path = SEARCHED
        if "PATH" in call.variables:
            path = environ.get("PATH", SEARCHED)
        return {**environ, "PATH": path}
