"""Container runtimes for tests: an image made of the host's own files, and what stands for others.

The image is a directory without any program. The host's /usr and Python are mounted into it, so it
costs nothing to make, and a program in it can import torch. Apptainer, Podman and enroot are not
needed: a script that records its command line stands for them. It takes the options that their
documents name and refuses others, hands on the variables that they would, waits for the program
where they do, and starts it beside, without an image.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
from pathlib import Path

from bftrainer.batch import process
from bftrainer.batch.containers.place import PACKAGE
from bftrainer.model.container import ContainerOrder
from tests.conformance.container_runtime import ContainerKit
from tests.support.machine import ROOT

STAND_IN = """\
#!{python} -ISB
import json, os, signal, subprocess, sys
name = os.path.basename(sys.argv[0])
words = sys.argv[1:]
values = {{
    "apptainer": ("--pwd", "--bind"), "singularity": ("--pwd", "--bind"),
    "podman": ("--workdir", "--volume", "--env", "--device", "--group-add", "--rootfs"),
    "enroot": ("--mount", "--env"),
}}[name]
flags = {{
    "apptainer": ("--nv", "--rocm"), "singularity": ("--nv", "--rocm"),
    "podman": (
        "--rm", "--pid=host", "--ipc=host", "--network=host", "--cgroups=no-conmon",
        "--security-opt=label=disable", "--log-driver=none", "--entrypoint=", "--userns=keep-id",
    ),
    "enroot": (),
}}[name]
if words[0] == "--cgroup-manager=cgroupfs" and name == "podman":
    del words[0]
assert words[0] == {{"podman": "run", "enroot": "start"}}.get(name, "exec"), words
given, at = {{}}, 1
while words[at].startswith("--"):
    if words[at] in values:
        given.setdefault(words[at], []).append(words[at + 1])
        at += 2
        if words[at - 2] == "--rootfs":
            break
    elif words[at] in flags or words[at].startswith("--preserve-fds="):
        at += 1
    else:
        sys.exit("unknown option " + words[at])
if "--rootfs" not in given:
    at += 1  # the image
with open({record!r}, "a") as file:
    file.write(json.dumps(sys.argv) + "\\n")
environ = dict(os.environ)
if "--env" in given or name in ("podman", "enroot"):
    environ = {{n: environ[n] for n in given.get("--env", ()) if n in environ}}
for prefix in ("APPTAINERENV_", "SINGULARITYENV_"):
    if name == prefix[:-4].lower():
        for key in [key for key in environ if key.startswith(prefix)]:
            environ[key.removeprefix(prefix)] = environ.pop(key)
for place in (*given.get("--pwd", ()), *given.get("--workdir", ())):
    os.chdir(place)
if name == "enroot":
    os.execve(words[at], words[at:], environ)
child = subprocess.Popen(words[at:], env=environ, close_fds=False)
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, frame: child.send_signal(number))
status = child.wait()
os._exit(status if status >= 0 else 128 - status)
"""
IMAGE_LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
IMAGE_FILES = ("etc/passwd", "etc/group", "etc/hosts", "etc/resolv.conf")
IMAGE_DIRECTORIES = ("usr", "etc", "proc", "sys", "dev", "tmp", "root", "home", "var/tmp", "run")


def host_image(directory: Path) -> Path:
    """Make an image without programs, to which the host's are mounted."""
    for name in IMAGE_DIRECTORIES:
        (directory / name).mkdir(parents=True, exist_ok=True)
    for name in IMAGE_FILES:
        (directory / name).touch()
    for name, target in IMAGE_LINKS.items():
        (directory / name).symlink_to(target)
    return directory


def host_mounts() -> str:
    """Return the mounts of what the host's Python needs, for ``--container-mounts``."""
    places = {sys.prefix, sys.base_prefix, str(ROOT), *sys.path}
    own = sorted(place for place in places if place.startswith("/") and Path(place).is_dir())
    return ",".join(["/usr", *(place for place in own if not place.startswith("/usr"))])


def real_kit(name: str, directory: Path) -> ContainerKit:
    """Return a kit of a runtime that this machine has."""
    image = host_image(directory / "image")
    order = ContainerOrder(
        image=str(image),
        runtime=name,
        mounts=host_mounts(),
        directories=(str(PACKAGE), str(directory)),
        workdir=str(directory),
    )
    return ContainerKit(order=order, mounts_read_only=name != "charliecloud")


# As a machine without CAP_SYS_RESOURCE and with cgroups of both kinds needs it.
PODMAN_CONF = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
runtime = "runc"
"""


def podman_kit(directory: Path) -> ContainerKit | None:
    """Return a kit of the real Podman; None if it starts nothing here."""
    kit = dataclasses.replace(real_kit("podman", directory), ends_with_group=False)
    conf = directory / "containers.conf"
    for text in ("", PODMAN_CONF):
        conf.write_text(text)
        kit = dataclasses.replace(kit, environ={**os.environ, "CONTAINERS_CONF": str(conf)})
        if process.run(kit.argv("-c", "pass"), timeout_s=60, env=kit.environ).is_ok:
            return kit
    return None


def stand_in(name: str, directory: Path) -> dict[str, str]:
    """Put what stands for a runtime into a directory; return an environment that finds it there."""
    programs = directory / "programs"
    programs.mkdir()
    file = programs / name
    python = Path(sys.executable).resolve()
    record = str(directory / "record")
    file.write_text(STAND_IN.format(python=python, record=record))
    file.chmod(0o755)
    return {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}


def stood_for(name: str, directory: Path) -> ContainerKit:
    """Return a kit of a runtime for which a script stands."""
    suffix = {"podman": "", "enroot": "image.sqsh"}.get(name, "image.sif")
    image = "docker://example.org/torch:1"
    if suffix:
        image = str(directory / suffix)
        Path(image).touch()
    order = ContainerOrder(
        image=image,
        runtime=name,
        directories=(str(PACKAGE), str(directory)),
        workdir=str(directory),
    )
    return ContainerKit(order=order, environ=stand_in(name, directory), is_real=False)


def recorded(directory: Path) -> list[list[str]]:
    """Return the command lines that a stand-in was given."""
    file = directory / "record"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def has(program: str) -> bool:
    """Return whether this machine has a program."""
    return shutil.which(program) is not None
