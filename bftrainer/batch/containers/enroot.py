"""Enroot, on which Slurm's plug-in pyxis is built: ``enroot start IMAGE.sqsh PROGRAM``.

After the documentation of enroot 3.5 (doc/cmd/start.md, doc/image-format.md,
doc/standard-hooks.md). An image is the squashfs file that ``enroot import`` makes, which
``srun --container-image`` takes, too. A container gets the image's environment and what ``--env``
names. Its command script, the image's entrypoint, is handed the program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bftrainer.batch.containers.runtime import ContainerCall, Find, GpuVendor, ImageForm

GPU_VARIABLES: Final = "NVIDIA_VISIBLE_DEVICES"  # read by the hook that adds driver and devices
# Enroot has no option for the working directory.
_IN_DIRECTORY: Final = ("/bin/sh", "-c", 'cd -- "$0" && exec "$@"')


class Enroot:
    """Enroot, for squashfs files."""

    name = "enroot"
    forms = frozenset({ImageForm.SQUASHFS})
    becomes = True
    forwards = True
    reads_help = False
    lingers = False

    def detect(self, find: Find) -> str:
        """Return the path of its program; "": this machine lacks it."""
        return find("enroot") or ""

    def fault(self, call: ContainerCall) -> str:
        """Say what of a call it cannot do; "": nothing."""
        for mount in call.mounts:
            if not set(": \t").isdisjoint(mount.source + mount.target):
                return f"enroot cannot mount {mount.source}, whose name has a colon or a blank"
        return ""

    def command(self, call: ContainerCall) -> list[str]:
        """Return the command line."""
        words = [call.program, "start"]
        for mount in call.mounts:
            options = "x-create=auto,rbind"
            if mount.is_read_only:
                options += ",ro"
            words += ["--mount", f"{mount.source}:{mount.target}:none:{options}"]
        for name in self._names(call):  # with its value in our environment
            words += ["--env", name]
        return [*words, call.image, *_IN_DIRECTORY, call.workdir, *call.argv]

    def environment(self, call: ContainerCall, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the host's environment, of which the variables named go in."""
        if call.gpus is GpuVendor.NVIDIA:
            return {GPU_VARIABLES: "all", **environ}
        return dict(environ)

    def _names(self, call: ContainerCall) -> tuple[str, ...]:
        if call.gpus is GpuVendor.NVIDIA and GPU_VARIABLES not in call.variables:
            return (*call.variables, GPU_VARIABLES)
        return call.variables
