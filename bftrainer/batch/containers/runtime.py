"""The interface of a container runtime: a pure command line, and whether a machine has it.

A runtime starts a program in an image so that it is still a process like others: it has the pid
that the host sees, the user's own id, the host's network and shared memory, and the descriptors
that are inherited. Its exit status is passed on, and so are signals. No value of a variable is on
the command line, which every user of a node can read. All runtimes pass the same tests
(``tests/conformance/container_runtime.py``).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from bftrainer.model.container import BindMount

Find = Callable[[str], str | None]  # the path of a program in PATH, as shutil.which


class GpuVendor(enum.StrEnum):
    """Whose driver a node has."""

    NVIDIA = "nvidia"
    AMD = "amd"
    NOBODY = ""


class ImageForm(enum.StrEnum):
    """What an image is, as far as runtimes differ in what they take."""

    REGISTRY = "registry"  # docker://
    LIBRARY = "library"  # oras://, library://, shub://: Apptainer's own
    SIF = "sif"
    SQUASHFS = "squashfs"
    DIRECTORY = "directory"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerCall:
    """A program that is to run in an image."""

    program: str  # path of the runtime's program
    image: str
    argv: tuple[str, ...]
    mounts: tuple[BindMount, ...] = ()  # outer ones before inner ones
    variables: tuple[str, ...] = ()  # names, of the environment of the call, that it has to have
    workdir: str = "/"
    gpus: GpuVendor = GpuVendor.NOBODY
    temporary: str = ""  # the program's TMPDIR, at the same place as outside; "": none
    last_descriptor: int = 2  # 3 to this one are inherited
    help: str = ""  # what the program prints for --help, if the runtime reads it
    is_root: bool = False  # the user is root


class ContainerRuntime(Protocol):
    """One way to run a program in an image."""

    name: str
    forms: frozenset[ImageForm]  # of images that it takes
    # The runtime's process becomes the program; else it waits for it, and its status for a program
    # that a signal ended is 128 and the signal.
    becomes: bool
    forwards: bool  # if it waits: whether it sends signals on that it gets
    reads_help: bool  # its releases differ in options that matter
    lingers: bool  # if it waits: whether a process that it leaves tidies up after the program

    def detect(self, find: Find) -> str:
        """Return the path of its program; "": this machine lacks it."""

    def fault(self, call: ContainerCall) -> str:
        """Say what of a call it cannot do; "": nothing."""

    def command(self, call: ContainerCall) -> list[str]:
        """Return the command line."""

    def environment(self, call: ContainerCall, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of that command line."""
