"""Charliecloud: ``ch-run DIRECTORY -- PROGRAM``, which becomes the program.

After ch-run(1) of Charliecloud 0.31 and 0.38. It hands the host's environment on, and binds /dev,
/proc, /sys and /tmp of the host. Places that mounts need are made in memory above the image where
the release can (``--write-fake``); an earlier one needs them in the image, where the entry makes
them if the directory is the user's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bftrainer.batch.containers.runtime import ContainerCall, Find, ImageForm

PROGRAM: Final = "ch-run"
TEMPORARY: Final = "TMPDIR"
IN_MEMORY: Final = "--write-fake"
SEARCHED: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # in an image


class Charliecloud:
    """Charliecloud, for directories and squashfs files. NVIDIA's libraries: see ch-fromhost(1)."""

    name = "charliecloud"
    forms = frozenset({ImageForm.DIRECTORY, ImageForm.SQUASHFS})
    becomes = True
    forwards = True
    reads_help = True
    lingers = False

    def detect(self, find: Find) -> str:
        """Return the path of its program; "": this machine lacks it."""
        return find(PROGRAM) or ""

    def fault(self, call: ContainerCall) -> str:
        """Say what of a call it cannot do; "": nothing."""
        for mount in call.mounts:
            if ":" in mount.source + mount.target:
                return f"ch-run cannot mount {mount.source}, whose name has a colon"
            if mount.is_read_only:
                return f"ch-run cannot mount {mount.source} read-only"
        return ""

    def command(self, call: ContainerCall) -> list[str]:
        """Return the command line."""
        words = [call.program]
        if IN_MEMORY in call.help:
            words.append(IN_MEMORY)
        words += ["--cd", call.workdir]
        if call.temporary:
            words.append(f"--set-env={TEMPORARY}={call.temporary}")
        for mount in call.mounts:
            words += ["--bind", f"{mount.source}:{mount.target}"]
        return [*words, call.image, "--", *call.argv]

    def environment(self, call: ContainerCall, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the host's environment, with the PATH of an image unless the user sets one.

        TMPDIR is left to the command: ch-run would bind it to /tmp and forget it.
        """
        environment = dict(environ)
        environment.pop(TEMPORARY, None)
        if "PATH" not in call.variables:
            environment["PATH"] = SEARCHED
        environment.setdefault("PATH", SEARCHED)
        return environment
