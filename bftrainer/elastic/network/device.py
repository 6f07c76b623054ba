"""The collectives of a generation whose members have a GPU each: NCCL, or another back end.

Only ``new_nccl`` and ``new_collective`` are specific to one; everything else also runs, and is
tested, with a back end for CPUs. The process group is our own, never torch's default one. Used by
``group``.

NCCL does not notice a lost member: a collective with it waits for ever, on the GPU. So the host
polls the event at its end, with a deadline, and checks in between whether a newer generation
has been announced; ``abort`` then frees the GPU.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from bftrainer.elastic.network.collective import (
    GROUP_TIMEOUT_S,
    Collective,
    CollectiveWork,
    ExpiredError,
)
from bftrainer.elastic.process.worker_keeper import temporary_place
from bftrainer.elastic.script import torch_compat
from bftrainer.ground.backend_choice import NCCL
from bftrainer.ground.errors import ElasticError

POLL_S = 50e-6  # between two queries of an event
PROBE_S = 20.0  # limit for connecting a communicator and one all-reduce
HURRIED_S = 5.0  # the same after a loss, when no member trains meanwhile
FOREIGN_SHARE = 0.1  # of a GPU's memory, that others may hold; a context takes about 1/50
FOREIGN_PATIENCE_S = 5.0  # a worker before us may be about to end
OUR_PLACE = f"TMPDIR={temporary_place()}".encode()  # in the template: the pilot's

# torch 2.13, ProcessGroupNCCL.hpp. Its threads must not end the process when a member is lost,
# nor poll our store for signals; ``wait`` must not block.
SETTINGS = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_BLOCKING_WAIT": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_NONBLOCKING_TIMEOUT": f"{PROBE_S:.0f}",
}


def is_on_device(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is not in host memory."""
    return tensor.device.type != "cpu"


@contextmanager
def using(device: torch.device) -> Iterator[None]:
    """Make ``device`` this thread's current one; a new thread begins with device 0."""
    module: Any = None if device.type == "cpu" else getattr(torch, device.type, None)
    if hasattr(module, "device"):
        with module.device(device):
            yield
    else:
        yield


def host_memory(shape: Sequence[int] | int, like: torch.Tensor) -> torch.Tensor:
    """Return new host memory of ``like``'s type, pinned if ``like`` is on a GPU."""
    return torch.empty(shape, dtype=like.dtype, pin_memory=like.device.type == "cuda")


def await_kernels(device: torch.device) -> None:
    """Wait until all streams of this process on ``device`` are idle."""
    if device.type != "cpu":
        torch_compat.await_all_kernels(device)


def is_used() -> bool:
    """Return whether this process works on a GPU."""
    return bool(torch.cuda.is_initialized())


def current() -> torch.device:
    """Return the GPU that this process works on."""
    return torch.device("cuda", torch.cuda.current_device())


def require_free_memory(place: torch.device) -> None:
    """Wait until processes of others hold little memory of a GPU.

    Raises:
        ElasticError: BFT-1445, they still do after ``FOREIGN_PATIENCE_S``.
    """
    until_s = time.monotonic() + FOREIGN_PATIENCE_S
    while (problem := memory_held(place)) is not None:
        if time.monotonic() > until_s:
            raise problem
        time.sleep(FOREIGN_PATIENCE_S / 20)


def memory_held(place: torch.device) -> ElasticError | None:
    """Return BFT-1445 if processes outside of our pilot hold much memory of a GPU.

    Costs one call to the driver where nobody else uses it.
    """
    free_bytes, total_bytes = torch.cuda.mem_get_info(place)
    foreign_bytes = total_bytes - free_bytes - torch.cuda.memory_reserved(place)
    if foreign_bytes <= FOREIGN_SHARE * total_bytes:
        return None
    holders = _holders(place)
    holders.pop(os.getpid(), None)
    foreign = {pid: size for pid, size in holders.items() if not _is_of_our_pilot(pid)}
    if holders:  # else nvidia-smi is missing, or another container's processes are hidden
        foreign_bytes = sum(foreign.values())
    if foreign_bytes <= FOREIGN_SHARE * total_bytes:
        return None
    pids = ""
    if foreign:
        pids = f" (pid {', '.join(map(str, sorted(foreign)))})"
    return ElasticError(
        "BFT-1445",
        f"Other processes{pids} hold {foreign_bytes / 2**30:.1f} GiB of the"
        f" {total_bytes / 2**30:.1f} GiB of {place} on {os.uname().nodename}.",
        "The trainer avoids this node for a while. End those processes, often of an earlier job.",
    )


def _holders(place: torch.device) -> dict[int, int]:
    """Return the bytes of a GPU's memory by process, as nvidia-smi knows them."""
    uuid = getattr(torch.cuda.get_device_properties(place), "uuid", "")
    fields = ["--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    with suppress(OSError, subprocess.SubprocessError, ValueError):  # "[N/A]"
        output = subprocess.run(
            ["nvidia-smi", "-i", f"GPU-{uuid}", *fields],  # noqa: S607 - where the driver has it
            capture_output=True, text=True, timeout=FOREIGN_PATIENCE_S, check=True,
        ).stdout  # fmt: skip
        size_bytes: dict[int, int] = {}
        for line in output.splitlines():
            pid, mib = line.split(",")
            size_bytes[int(pid)] = int(mib) << 20
        return size_bytes
    return {}


def _is_of_our_pilot(pid: int) -> bool:
    """Return whether a process has our pilot's directory for temporary files."""
    try:
        return OUR_PLACE in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # another user's, or it has ended
        return False


class Stillborn:
    """A collective that could not be started because the communicator had failed."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def is_completed(self) -> bool:
        """Return True: it has ended."""
        return True

    def wait(self, timeout: timedelta) -> None:  # noqa: ARG002 - as in CollectiveWork
        """Raise the reason."""
        raise RuntimeError(self._reason)


class DeviceWork:
    """A collective on a device, waited for by the host."""

    def __init__(self, work: Any, limit_s: float) -> None:
        self._work = work
        self._limit_s = limit_s
        self._waited_since_s: float | None = None

    def is_completed(self) -> bool:
        """Return whether it has ended, with or without success."""
        return bool(self._work.is_completed())

    def wait(self, timeout: timedelta) -> None:
        """Wait up to ``timeout``; see ``collective.CollectiveWork``.

        Its time limit begins with the first wait: before, it may be queued on the device
        behind the backward pass.
        """
        now_s = time.monotonic()
        if self._waited_since_s is None:
            self._waited_since_s = now_s
        until_s = now_s + timeout.total_seconds()
        while not self._work.is_completed():
            now_s = time.monotonic()
            if now_s - self._waited_since_s > self._limit_s:
                raise ExpiredError(f"a collective did not end within {self._limit_s:g} s")
            if now_s > until_s:
                raise RuntimeError("a collective has not ended yet")
            time.sleep(POLL_S)
        self._work.wait()  # raises its error; orders our stream after it


class DeviceCollective(Collective):
    """Collectives in the memory of one device per member, on streams of their own.

    To end running kernels may take long; peers are released by the gloo group.
    """

    _aborts_slowly = True

    def __init__(
        self, pg: Any, device: torch.device, *, name: str, limit_s: float = GROUP_TIMEOUT_S
    ) -> None:
        super().__init__(pg)
        self.device = device
        self.name = name
        self._limit_s = limit_s

    def _start(self, start: Callable[[], Any]) -> CollectiveWork:
        try:
            return DeviceWork(start(), self._limit_s)
        except RuntimeError as problem:  # must not reach the script's backward pass
            return Stillborn(str(problem).partition("\n")[0][:300])


def new_nccl(store: Any, rank: int, size: int, device: torch.device) -> DeviceCollective:
    """Connect a communicator of all members; blocks.

    Raises:
        ImportError: this torch has no NCCL.
        RuntimeError: torch or NCCL failed; with their message.
    """
    nccl = torch_compat.nccl_class()
    os.environ.update(SETTINGS)  # read when a process group is made
    with using(device):
        limit = timedelta(seconds=GROUP_TIMEOUT_S)
        pg = torch_compat.new_nccl(nccl, store, (rank, size, device), limit)
    return DeviceCollective(pg, device, name="nccl")


def new_collective(
    name: str, store: Any, rank: int, size: int, device: torch.device
) -> DeviceCollective:
    """Connect a communicator of all members by a back end; blocks.

    Raises:
        ImportError: this torch does not have it.
        RuntimeError: torch or the back end failed; with their message.
    """
    if name == NCCL:
        return new_nccl(store, rank, size, device)
    with using(device):
        limit = timedelta(seconds=GROUP_TIMEOUT_S)
        pg = torch_compat.new_registered(name, store, (rank, size, device), limit)
    return DeviceCollective(pg, device, name=name)


def probe(collective: DeviceCollective, size: int) -> None:
    """Test a new communicator: sum ones over all members.

    Raises:
        RuntimeError: it failed, took too long or the sum is wrong.
    """
    with using(collective.device):
        total = torch.ones(1, device=collective.device)
        collective.all_reduce(total).wait(timedelta(seconds=PROBE_S))
        if total.item() != size:
            raise RuntimeError(f"the sum over {size} members was {total.item():g}")
