"""All that ``bftrainer.elastic`` uses of torch and that torch does not promise to keep.

Nothing else in this package names a private part of torch; a test sees to that, and another one
imports every entry of ``NAMES`` against the torch that is there. Each function says since when
torch has what it uses (all of 2.4 to 2.15, if nothing is said) and what happens without it.
``hooks/*_compat.py`` are the same for the frameworks. What is public is used under its public name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch.utils import _pytree
from torch.utils.data._utils import pin_memory as _pin_memory

# What can be looked up without an object; the rest are attributes of objects.
NAMES = (
    "torch.distributed.distributed_c10d.ProcessGroupGloo._Options",
    "torch.distributed.distributed_c10d.ProcessGroupGloo.create_device",
    "torch.distributed.distributed_c10d.ProcessGroupGloo._allgather_base",
    "torch.distributed.ProcessGroup._get_backend",
    "torch.distributed.Backend._plugins",
    "torch._C._distributed_c10d._DistributedBackendOptions",
    "torch._C._error_if_any_worker_fails",
    "torch.autograd.Variable._execution_engine.queue_callback",
    "torch.utils._pytree.tree_map",
    "torch.utils.data._utils.pin_memory.pin_memory",
    "torch.nn.modules.batchnorm._BatchNorm",
)
NAMES_OF_SHARDS = (
    "torch.distributed.tensor._utils.compute_local_shape_and_global_offset",
    "torch.distributed.tensor.placement_types._StridedShard",
)
GLOO_THREADS = 2
# What torch counts by itself in a schedule's state. A name that is missing there is not left out.
COUNTED_BY_SCHEDULES = frozenset({"_last_lr", "_step_count", "_get_lr_called_within_step"})
WITHIN = "_schedulers"  # in the state of a chain
BATCH_NORM: type[torch.nn.Module] = torch.nn.modules.batchnorm._BatchNorm  # noqa: SLF001 - the base
_c10d: Any = torch.distributed  # its type stubs lack what depends on the build
HashStore, FileStore = _c10d.HashStore, _c10d.FileStore


# ---- process groups ------------------------------------------------------------------------


def new_gloo(store: Any, rank: int, size: int, *, address: str, timeout: timedelta) -> Any:
    """Return a new process group of gloo, which listens at an address of this host.

    Without the options there is no elastic training: the public way (``init_process_group``) has
    one group for the life of a process, and takes the address from the environment.
    """
    gloo = _c10d.ProcessGroupGloo
    options = gloo._Options()  # noqa: SLF001
    options._timeout = timeout  # noqa: SLF001
    options._devices = [gloo.create_device(hostname=address)]  # noqa: SLF001
    options._threads = GLOO_THREADS  # noqa: SLF001
    return gloo(store, rank, size, options)


def nccl_class() -> Any:
    """Return the class of NCCL's process groups (RCCL's under ROCm).

    Raises:
        ImportError: this torch has no NCCL.
    """
    from torch.distributed.distributed_c10d import ProcessGroupNCCL  # noqa: PLC0415 - may lack

    return ProcessGroupNCCL


def new_nccl(nccl: Any, store: Any, place: tuple[int, int, torch.device], limit: timedelta) -> Any:
    """Return a new process group of this class, connected; blocks.

    Without any of its options the members train with gloo: whatever fails here is a failed attempt.
    ``place``: rank, size and device.

    Raises:
        RuntimeError: torch or NCCL failed; with their message.
    """
    rank, size, device = place
    options = nccl.Options()
    options.is_high_priority_stream = True  # reductions before the backward pass
    options.config.blocking = 0  # so that connecting can be aborted
    options._timeout = limit  # noqa: SLF001 - as for gloo
    pg = nccl(store, rank, size, options)
    pg.eager_connect_single_device(device)
    return pg


def new_registered(
    name: str, store: Any, place: tuple[int, int, torch.device], limit: timedelta
) -> Any:
    """Return a new process group of another back end (XCCL, HCCL, UCC), which may connect later.

    As torch's own ``init_process_group`` makes them, for a group that is not torch's default one.
    None of them has been run. Without what is used here the attempt fails, as with NCCL.

    Raises:
        ImportError: this torch has no such back end.
        RuntimeError: torch or the back end failed; with their message.
    """
    rank, size, _ = place
    plugin = _c10d.Backend._plugins.get(name.upper())  # noqa: SLF001 - of packages beside torch
    if plugin is not None and plugin.extended_api:
        options = torch._C._distributed_c10d._DistributedBackendOptions()  # noqa: SLF001
        options.store, options.timeout = store, limit
        options.group_rank, options.group_size, options.group_id = rank, size, name
        options.global_ranks_in_group = list(range(size))
        return plugin.creator_fn(options, None)
    if plugin is not None:
        return plugin.creator_fn(store, rank, size, limit)
    group_type = getattr(_c10d.distributed_c10d, f"ProcessGroup{name.upper()}", None)
    if group_type is None:
        raise ImportError(f"this torch has no {name.upper()}")
    if not hasattr(group_type, "Options"):
        return group_type(store, rank, size, timeout=limit)
    options = group_type.Options()
    options._timeout = limit  # noqa: SLF001
    return group_type(store, rank, size, options)


def aborts_nccl() -> bool:
    """Return whether a communicator of NCCL can be aborted, since 2.6.

    Without it a collective with a lost member would hold the GPU for ever: gloo is used.
    """
    return hasattr(getattr(_c10d, "ProcessGroupNCCL", None), "abort")


def abort(pg: Any) -> None:
    """End the collectives of a process group; gloo's can since 2.7.

    Without it they end when the last reference to the group goes, 80 ms later, or at their limit.
    """
    end = getattr(pg, "abort", None)
    if end is not None:
        end()


def broadcast(pg: Any, tensor: torch.Tensor, root: int) -> Any:
    """Start to broadcast rank ``root``'s tensor; return a ``Work``."""
    options = _c10d.distributed_c10d.BroadcastOptions()
    options.rootRank = root
    return pg.broadcast([tensor], options)


def gather_all(pg: Any, whole: torch.Tensor, part: torch.Tensor) -> Any:
    """Start to gather the parts of all ranks into one tensor; return a ``Work``.

    Without it: ``allgather`` on views, which copies everything once more.
    """
    return pg._allgather_base(whole, part)  # noqa: SLF001


def backend_of(group: Any, device: torch.device) -> Any:
    """Return the back end with which a group of torch's serves a device.

    Without it a node's workers could not prove themselves to each other (BFT-1344).
    """
    return group._get_backend(device)  # noqa: SLF001


# ---- sharded models: from torch 2.9 on -----------------------------------------------------


def local_box(shape: tuple[int, ...], mesh: Any, placements: Sequence[Any]) -> tuple[Any, Any]:
    """Return shape and offset of this worker's part of a ``DTensor``, as torch's checkpoints do.

    Since 2.5 in this place. Without it sharded models cannot be resharded.
    """
    from torch.distributed.tensor import _utils  # noqa: PLC0415 - takes 0.2 s

    return _utils.compute_local_shape_and_global_offset(shape, mesh, placements)


def strided_shard(dim: int, split_factor: int) -> Any:
    """Return the placement of a dimension that FSDP2 cuts after tensor parallelism, since 2.5."""
    from torch.distributed.tensor.placement_types import _StridedShard  # noqa: PLC0415 - as above

    return _StridedShard(dim, split_factor=split_factor)


# ---- the graph of a loss -------------------------------------------------------------------


def at_end_of_backward(action: Callable[[], None]) -> None:
    """Run an action at the end of this backward pass, after those that were asked for before.

    DDP and FSDP do the same; without it gradients would be reduced by ``step`` alone.
    """
    torch.autograd.Variable._execution_engine.queue_callback(action)  # noqa: SLF001


def saved_of(node: Any, name: str, default: Any = None) -> Any:
    """Return what a node of the graph has saved under a name (``self``, ``other``, ``dim``).

    Without it the loss's reduction is not known, and the script is asked for it (``Run(loss=)``).
    """
    return getattr(node, f"_saved_{name}", default)


def all_saved(node: Any) -> list[Any]:
    """Return all that a node of the graph has saved."""
    return [getattr(node, name) for name in dir(node) if name.startswith("_saved_")]


def metadata_of(node: Any) -> Sequence[Any]:
    """Return type and shape of what a node gets; empty where torch does not tell."""
    return getattr(node, "_input_metadata", ())


# ---- loss scalers and schedules ------------------------------------------------------------


def scale_of(scaler: Any) -> torch.Tensor | None:
    """Return a ``GradScaler``'s scale where it is kept; None: it has not scaled yet.

    ``get_scale`` reads the value, which waits for the GPU.
    """
    scale: torch.Tensor | None = scaler._scale  # noqa: SLF001
    return scale


def growth_of(scaler: Any) -> torch.Tensor:
    """Return a ``GradScaler``'s number of steps since its scale changed, where it is kept."""
    growth: torch.Tensor = scaler._growth_tracker  # noqa: SLF001
    return growth


def first_scale(scaler: Any) -> tuple[float, int]:
    """Return scale and number of steps with which a ``GradScaler`` begins."""
    return scaler._init_scale, scaler._init_growth_tracker  # noqa: SLF001


def scaler_state(scaler: Any, scale: float, growth: int) -> dict[str, Any]:
    """Return what ``GradScaler.state_dict`` returns, for values that were read without waiting."""
    return {
        "scale": scale,
        "growth_factor": scaler.get_growth_factor(),
        "backoff_factor": scaler.get_backoff_factor(),
        "growth_interval": scaler.get_growth_interval(),
        "_growth_tracker": growth,
    }


def schedules_within(schedule: Any) -> Sequence[Any]:
    """Return the schedules of a chain; empty: it is none."""
    return getattr(schedule, WITHIN, ())


def is_a_mark(name: str) -> bool:
    """Return whether a value of a schedule's state says where torch is (``_is_initial``)."""
    return name.startswith("_is")


def replace_step(optimizer: Any, step: Callable[..., None]) -> None:
    """Replace an optimizer's ``step``; torch's schedules warn unless it bears this mark."""
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # noqa: SLF001
    optimizer.step = step


def mark_stepped(optimizer: Any) -> None:
    """Tell torch's schedules that an optimizer has stepped; without the mark they warn."""
    optimizer._opt_called = True  # noqa: SLF001


# ---- models and loaders --------------------------------------------------------------------

tree_map: Callable[[Callable[[Any], Any], Any], Any] = _pytree.tree_map
pinned: Callable[[Any], Any] = _pin_memory.pin_memory  # a batch, whatever its type


def modules_of(module: torch.nn.Module) -> dict[str, Any]:
    """Return a module's own submodules, the very dictionary: other ways take ten times as long."""
    return module._modules  # noqa: SLF001


def parameters_of(module: torch.nn.Module) -> dict[str, Any]:
    """Return a module's own parameters, the very dictionary."""
    return module._parameters  # noqa: SLF001


def buffers_of(module: torch.nn.Module) -> dict[str, Any]:
    """Return a module's own buffers, the very dictionary."""
    return module._buffers  # noqa: SLF001


def raise_for_lost_loader() -> None:
    """Raise ``RuntimeError`` if a process of a ``DataLoader`` has failed: torch asks at SIGCHLD.

    Without it an error after a lost loader is told as the script's.
    """
    torch._C._error_if_any_worker_fails()  # noqa: SLF001


def await_all_kernels(device: torch.device) -> None:
    """Wait until all streams of this process on a device are idle.

    ``torch.accelerator`` is of 2.6; before, only CUDA and ROCm are known here.
    """
    accelerator = getattr(torch, "accelerator", torch.cuda)
    accelerator.synchronize(device)
