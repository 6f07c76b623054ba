"""Podman: ``podman run``, without a namespace of its own but for users and mounts.

After podman-run(1) of Podman 4.3 to 5. The container's processes are no children of the command:
conmon starts them. The entry adopts it, so that nothing outlives the trainer's worker. An ordinary
user, who may make no cgroup within that of a job, has all of it stay there; ``--cgroups=disabled``
would say so, but Podman then insists on pids of the container's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bftrainer.batch.containers.runtime import ContainerCall, Find, GpuVendor, ImageForm
from bftrainer.model.container import REGISTRY

STANDARD_DESCRIPTORS: Final = 2  # 0 to 2 are passed on anyway
# NVIDIA's container toolkit describes its GPUs by the name (CDI).
GPU_OPTIONS: Final = {
    GpuVendor.NVIDIA: ["--device", "nvidia.com/gpu=all"],
    GpuVendor.AMD: ["--device", "/dev/kfd", "--device", "/dev/dri", "--group-add", "keep-groups"],
    GpuVendor.NOBODY: [],
}
GLOBAL: Final = ("--cgroup-manager=cgroupfs",)  # no systemd of the user's, as in jobs
SHARED: Final = (
    *("--rm", "--pid=host", "--ipc=host", "--network=host", "--cgroups=no-conmon"),
    *("--security-opt=label=disable", "--log-driver=none", "--entrypoint="),
)


class Podman:
    """Podman, for images of registries."""

    name = "podman"
    forms = frozenset({ImageForm.REGISTRY, ImageForm.DIRECTORY})
    becomes = False
    forwards = True
    reads_help = False
    lingers = True

    def detect(self, find: Find) -> str:
        """Return the path of its program; "": this machine lacks it."""
        return find("podman") or ""

    def fault(self, call: ContainerCall) -> str:
        """Say what of a call it cannot do; "": nothing."""
        for mount in call.mounts:
            if ":" in mount.source + mount.target:
                return f"podman cannot mount {mount.source}, whose name has a colon"
        return ""

    def command(self, call: ContainerCall) -> list[str]:
        """Return the command line; the image is pulled if it is not there yet."""
        words = [
            call.program,
            *GLOBAL,
            "run",
            *SHARED,
            *GPU_OPTIONS[call.gpus],
            "--workdir",
            call.workdir,
        ]
        if not call.is_root:  # who has that id outside has it inside
            words.append("--userns=keep-id")
        if call.last_descriptor > STANDARD_DESCRIPTORS:
            words.append(f"--preserve-fds={call.last_descriptor - STANDARD_DESCRIPTORS}")
        for mount in call.mounts:
            words += ["--volume", mount.words]
        for name in call.variables:  # with its value in our environment
            words += ["--env", name]
        image = [call.image.removeprefix(REGISTRY)]
        if call.image.startswith("/"):
            image = ["--rootfs", call.image]
        return [*words, *image, *call.argv]

    def environment(
        self,
        call: ContainerCall,  # noqa: ARG002 - the command names them
        environ: Mapping[str, str],
    ) -> dict[str, str]:
        """Return the host's environment, of which the variables named go in."""
        return dict(environ)
