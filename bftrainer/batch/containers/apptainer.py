"""Apptainer, and Singularity, which it comes from: ``apptainer exec IMAGE PROGRAM``.

After the user guide of Apptainer 1.3 ("Bind Paths and Mounts", "Environment and Metadata", "GPU
Support") and that of SingularityCE 4.1. Neither isolates pids, network or shared memory by default,
and both hand the host's environment on; the image's own values win unless a variable has the prefix
APPTAINERENV_ (SINGULARITYENV_), which also keeps values off the command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bftrainer.batch.containers.runtime import ContainerCall, Find, GpuVendor, ImageForm

GPU_OPTIONS: Final = {GpuVendor.NVIDIA: ["--nv"], GpuVendor.AMD: ["--rocm"], GpuVendor.NOBODY: []}


class Apptainer:
    """Apptainer or Singularity, which differ in their names."""

    forms = frozenset(ImageForm)
    becomes = False
    forwards = True
    reads_help = False
    lingers = False

    def __init__(self, name: str, prefix: str) -> None:
        """``prefix``: of variables that win over the image's own."""
        self.name, self.prefix = name, prefix

    def detect(self, find: Find) -> str:
        """Return the path of its program; "": this machine lacks it."""
        return find(self.name) or ""

    def fault(self, call: ContainerCall) -> str:
        """Say what of a call it cannot do; "": nothing."""
        for mount in call.mounts:
            if not set(":,").isdisjoint(mount.source + mount.target):
                return f"{self.name} cannot mount {mount.source}, whose name has a colon or comma"
        return ""

    def command(self, call: ContainerCall) -> list[str]:
        """Return the command line."""
        words = [call.program, "exec", *GPU_OPTIONS[call.gpus], "--pwd", call.workdir]
        for mount in call.mounts:
            words += ["--bind", mount.words]
        return [*words, call.image, *call.argv]

    def environment(self, call: ContainerCall, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the host's environment, with what has to win marked so."""
        marked = {self.prefix + name: environ[name] for name in call.variables if name in environ}
        return {**environ, **marked}
