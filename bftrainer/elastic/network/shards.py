"""Models that are sharded over the workers of a node, and replicated over the nodes.

A script cuts its model with ``fully_shard`` (FSDP2), tensor parallelism or both, on the mesh of
``node_mesh``. Torch's collectives then stay inside the node. Between nodes each worker averages the
gradients of its shards with the workers of its local rank, and a joining worker gets its shards
from one of them, so nothing is ever whole on a node.

The workers of a node do everything together: a collective that one of them does not join waits for
ever. Whatever only one of them may know (a broken reduction, a commit that has just arrived) counts
when ``NodeTeam`` has made it common. One that dies takes its node along, so that a node has either
committed a step or not.

Used by ``run``, ``membership``, ``buckets`` and ``checkpoint``.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from bftrainer.elastic.network.group import NONCE_BYTES, prove_pairs
from bftrainer.elastic.process import control as control_module
from bftrainer.elastic.process.worker_keeper import node_place
from bftrainer.elastic.script import torch_compat
from bftrainer.ground.errors import ElasticError, sharded
from bftrainer.ground.protocol import WorkerConfig
from bftrainer.ground.versions import LEAST_TORCH_OF_SHARDS, dotted

SHARD, TENSOR = "shard", "tensor"  # dimensions of the mesh
STRIDED = "_StridedShard"  # in checkpoints, too
_unfit = partial(ElasticError, "BFT-1401")
_ADVICE = "See docs/howto/train-sharded.md."


class NodeTeam:
    """This worker among those of its node; torch's default process group is theirs."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

    def sums(self, *numbers: int) -> list[int]:
        """Return the sums of these numbers over the workers of the node."""
        if self.size == 1:
            return list(numbers)
        total = torch.tensor(numbers)
        dist.all_reduce(total)
        return list(total.tolist())

    def any(self, flag: bool) -> bool:
        """Return whether it is true for one of the workers."""
        return self.sums(int(flag))[0] > 0

    def all(self, flag: bool) -> bool:
        """Return whether it is true for all workers."""
        return self.sums(int(flag))[0] == self.size

    def first(self, text: str) -> str:
        """Return the text of the first worker."""
        if self.size == 1:
            return text
        data = text.encode() if self.rank == 0 else b""
        (length,) = self.sums(len(data))
        if not length:
            return ""
        words = torch.frombuffer(bytearray(data or length), dtype=torch.uint8)
        dist.broadcast(words, 0)
        return bytes(words.tolist()).decode()  # torch may be without numpy


_mesh: list[Any] = []


def node_mesh(tensor_parallel: int = 1) -> Any:
    """Return the mesh of this node's workers, over which a model may be sharded.

    It never changes while the worker lives. Call it before ``Run``, in every worker, and shard the
    model on it: ``fully_shard(block, mesh=elastic.node_mesh())``.

    Args:
        tensor_parallel: workers that share each sample's computation. The mesh then has two
            dimensions, ``mesh["shard"]`` for ``fully_shard`` and ``mesh["tensor"]``.

    Returns:
        A ``torch.distributed.device_mesh.DeviceMesh``, on GPUs if there are any.

    Raises:
        ElasticError: BFT-1401, when the workers cannot be divided so, or the script has made a
            process group of its own.
    """
    config = control_module.current().config
    size = config.local_size
    if tensor_parallel < 1 or size % tensor_parallel:
        raise _unfit(
            f"{size} worker(s) per node cannot be divided into groups of {tensor_parallel}.",
            "Choose a divisor of --workers-per-node, which is K by default with --gpus-per-node K.",
        )
    shape: tuple[int, ...] = (size,)
    if tensor_parallel > 1:
        shape = (size // tensor_parallel, tensor_parallel)
    if not _mesh:
        _mesh.append(_connected(config, shape))
    if tuple(_mesh[0].shape) != shape:
        raise _unfit("node_mesh() was called for different meshes.", "Use one mesh for all.")
    return _mesh[0]


def has_neighbours() -> bool:
    """Return whether this worker is connected to others of its node."""
    return bool(_mesh) and _mesh[0].size() > 1


def _connected(config: WorkerConfig, shape: Sequence[int]) -> Any:
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415 - takes 0.2 s

    if dist.is_initialized():
        raise _unfit(
            "The script has made a process group before node_mesh().",
            "Leave out init_process_group: node_mesh() makes that of the node.",
        )
    backend, device = "gloo", "cpu"
    if torch.cuda.is_available():
        backend, device = "cpu:gloo,cuda:nccl", "cuda"
        torch.cuda.set_device(0)  # the only one it sees; else the mesh would go by LOCAL_RANK
        torch.cuda.init()
    rank, size = config.local_rank, config.local_size
    store: Any = torch_compat.HashStore()
    if size > 1:
        store = torch_compat.FileStore(str(_meeting(config)), size)
    with _on_loopback():
        dist.init_process_group(backend, store=store, rank=rank, world_size=size)
        mesh = init_device_mesh(device, tuple(shape), mesh_dim_names=(SHARD, TENSOR)[: len(shape)])
    groups = {id(group): group for group in (dist.group.WORLD, *mesh.get_all_groups())}
    try:
        for number, group in enumerate(groups.values()):
            _prove(store, f"{number}", group)
    except RuntimeError as problem:  # a stranger costs a start, and is no fault of the script
        control_module.end_as_loss(str(problem).partition("\n")[0])
    return mesh


def _meeting(config: WorkerConfig) -> Path:
    """Return a file that only this user can reach, the same for all workers of the node."""
    directory = node_place(config.member_id)
    directory.mkdir(mode=0o700, exist_ok=True)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise _unfit(f"{directory} belongs to somebody else.", "Remove it, or set another TMPDIR.")
    return directory / "store"


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Have gloo connect over loopback: the node's name may not be known to itself."""
    before = os.environ.get("GLOO_SOCKET_IFNAME")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        yield
    finally:
        if before is None:
            del os.environ["GLOO_SOCKET_IFNAME"]
        else:
            os.environ["GLOO_SOCKET_IFNAME"] = before


def _prove(store: Any, name: str, group: Any) -> None:
    """Demand a proof of every peer: another user of the node could have connected (BFT-1344)."""
    rank, ranks = dist.get_rank(group), dist.get_process_group_ranks(group)
    if len(ranks) == 1:
        return
    place = f"{name}/{ranks[0]}"
    if rank == 0:
        store.set(f"{place}/token", secrets.token_hex(NONCE_BYTES))
    store.set(f"{place}/{rank}", secrets.token_bytes(NONCE_BYTES))
    nonces = [store.get(f"{place}/{peer}") for peer in range(len(ranks))]
    backend = torch_compat.backend_of(group, torch.device("cpu"))
    prove_pairs(backend, rank, nonces, store.get(f"{place}/token").decode())


# ---- tensors -----------------------------------------------------------------------------


def is_sharded(tensor: object) -> bool:
    """Return whether it is a ``DTensor``, without importing their module."""
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "to_local")


def local_of(tensor: Any) -> Any:
    """Return this worker's part of a tensor, in the same memory; all of an ordinary one."""
    if not is_sharded(tensor):
        return tensor
    return tensor.detach().to_local()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How a tensor is cut over the mesh; knows nothing of the mesh's size."""

    shape: tuple[int, ...]  # of the whole
    placements: tuple[tuple[Any, ...], ...]  # of each dimension of the mesh: (kind, dim, ...)
    dims: tuple[str, ...]  # of the mesh

    @classmethod
    def of(cls, tensor: Any) -> Cut:
        """Return that of a ``DTensor``."""
        return cls(
            shape=tuple(tensor.shape),
            placements=tuple(map(_described, tensor.placements)),
            dims=tuple(tensor.device_mesh.mesh_dim_names or ()),
        )

    @classmethod
    def read(cls, body: Sequence[Any]) -> Cut:
        """Return one from what ``body`` returned; ``ValueError`` or ``TypeError`` if it is none."""
        shape, placements, dims = body
        return cls(
            shape=tuple(map(int, shape)),
            placements=tuple(map(tuple, placements)),
            dims=tuple(map(str, dims)),
        )

    def body(self) -> list[Any]:
        """Return it as JSON."""
        return [list(self.shape), list(map(list, self.placements)), list(self.dims)]

    def box(self) -> Box:
        """Return this worker's part on its own mesh."""
        mesh = _mesh_of(self.dims)
        shape, offset = torch_compat.local_box(self.shape, mesh, self._placed())
        return Box(whole=self.shape, shape=tuple(shape), offset=tuple(offset))

    def wrap(self, local: torch.Tensor) -> Any:
        """Return a ``DTensor`` on this worker's mesh, of which ``local`` is its part."""
        from torch.distributed.tensor import DTensor  # noqa: PLC0415

        return DTensor.from_local(
            local,
            _mesh_of(self.dims),
            self._placed(),
            run_check=False,
            shape=torch.Size(self.shape),
            stride=torch.empty(self.shape, device="meta").stride(),
        )

    def _placed(self) -> list[Any]:
        return [_placement(*description) for description in self.placements]


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A part of a tensor: a range of each of its dimensions."""

    whole: tuple[int, ...]
    shape: tuple[int, ...]
    offset: tuple[int, ...]

    def copy(self, own: torch.Tensor, other: Box, values: torch.Tensor) -> None:
        """Copy into ``own``, which is this part, what another part has of it."""
        mine, theirs = [], []
        for a, n, b, m in zip(self.offset, self.shape, other.offset, other.shape, strict=True):
            low, high = max(a, b), min(a + n, b + m)
            if low >= high:
                return
            mine.append(slice(low - a, high - a))
            theirs.append(slice(low - b, high - b))
        own[tuple(mine)].copy_(values[tuple(theirs)])


def whole_box(shape: Sequence[int]) -> Box:
    """Return the box of a tensor that is not cut."""
    return Box(whole=tuple(shape), shape=tuple(shape), offset=(0,) * len(shape))


def _described(placement: Any) -> tuple[Any, ...]:
    kind = type(placement).__name__
    if kind == "Replicate":
        return (kind,)
    if kind == STRIDED:
        return (kind, placement.dim, placement.split_factor)
    if kind == "Shard":
        return (kind, placement.dim)
    raise ElasticError(
        "BFT-1407",
        f"A tensor of the state has the placement {placement}, which is not a state.",
        "Return tensors that are sharded or replicated from state_dict().",
    )


def _placement(kind: str, dim: int = 0, split_factor: int = 1) -> Any:
    from torch.distributed.tensor import Replicate, Shard  # noqa: PLC0415

    if kind == "Replicate":
        return Replicate()
    if kind == STRIDED:
        return torch_compat.strided_shard(dim, split_factor)
    return Shard(dim)


def _mesh_of(dims: Sequence[str]) -> Any:
    mesh = _mesh[0]
    if tuple(mesh.mesh_dim_names) == tuple(dims):
        return mesh
    return mesh[tuple(dims)]


# ---- models --------------------------------------------------------------------------------


class Shards:
    """A model's shards on this worker."""

    def __init__(self, model: torch.nn.Module) -> None:
        from torch.distributed.fsdp import FSDPModule  # noqa: PLC0415

        _require_mesh(model)
        mesh = _mesh[0]
        self.node = NodeTeam(mesh.get_rank(), mesh.size())
        self.parts = int(mesh.shape[0])  # of a node's samples, one for each group of workers
        self.alike = self.node.size // self.parts  # workers of a node with the same samples
        self._modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
        self.parameters: list[Any] = list(model.parameters())
        self.weight: Callable[[], float] = lambda: 1.0  # of this worker's gradients
        for p in self.parameters:
            self._check(p)
        for module in self._modules:
            _take_reduction(module, self)

    def _check(self, p: Any) -> None:
        if is_sharded(p) and self.parts > 1 and SHARD not in (p.device_mesh.mesh_dim_names or ()):
            raise _unfit(
                "A parameter is cut by tensor parallelism and not inside fully_shard.",
                f"Call fully_shard on the whole model, too. {_ADVICE}",
            )

    def require(self, *, measures: bool, has_rows: bool) -> None:
        """Refuse what needs gradients or samples of single workers.

        Raises:
            ElasticError: BFT-1403.
        """
        if measures:
            raise ElasticError(
                "BFT-1403",
                "The rule adascale compares the gradients of single workers, and those of a"
                " sharded model are added as they arise.",
                "Choose another rule (submit --lr-rule).",
            )
        if has_rows and self.alike > 1:
            raise ElasticError(
                "BFT-1403",
                "PerSample has rows of single workers, and with tensor parallelism several have"
                " the same samples.",
                "Use node_mesh() without tensor_parallel.",
            )

    def check_scaler(self, extra: Iterable[object]) -> None:
        """Refuse a ``GradScaler`` that torch could not use with these parameters.

        Raises:
            ElasticError: BFT-1401, some are sharded and some are not.
        """
        scalers = [thing for thing in extra if isinstance(thing, torch.amp.GradScaler)]
        is_scaling = any(scaler.is_enabled() for scaler in scalers)
        if is_scaling and len({is_sharded(p) for p in self.parameters if p.requires_grad}) > 1:
            raise _unfit(
                "A GradScaler cannot unscale gradients of which some are sharded and some are not.",
                f"Call fully_shard on the whole model, or use bfloat16 without a scaler. {_ADVICE}",
            )

    def is_weighted(self, p: Any) -> bool:
        """Return whether FSDP2 has summed the weighted gradients of a parameter."""
        return self.parts > 1 and is_sharded(p)

    def share_of(self, p: Any) -> float:
        """Return what the gradient of a parameter is multiplied by, beside the weight."""
        return 1.0 if is_sharded(p) else 1 / self.alike

    def sum_over_node(self, flat: torch.Tensor) -> None:
        """Sum gradients of parameters that are whole on every worker."""
        if self.node.size > 1:
            dist.all_reduce(flat)

    def reshard(self) -> None:
        """Forget gathered parameters, which an evaluation may have left: shards change."""
        for module in self._modules:
            module.reshard()


def _require_mesh(model: torch.nn.Module) -> None:
    for p in model.parameters():
        if not is_sharded(p):
            continue
        mesh: Any = p.device_mesh  # type: ignore[attr-defined]
        if mesh not in _own_meshes():
            raise sharded(f"the mesh {mesh}")


def _own_meshes() -> list[Any]:
    """Return the node's mesh and those of its dimensions; none where ``node_mesh`` was not used."""
    meshes = list(_mesh)
    for mesh in _mesh:
        meshes += [mesh[name] for name in mesh.mesh_dim_names]
    return meshes


def _take_reduction(module: Any, shards: Shards) -> None:
    """Have FSDP2 sum the gradients of a module, each worker's by its weight."""
    try:
        module.set_gradient_divide_factor(1.0)
        module.set_custom_reduce_scatter(_WeightedReduceScatter(shards))
    except (AttributeError, NotImplementedError, RuntimeError, ValueError) as problem:
        raise _unfit(
            f"fully_shard cannot be used here ({problem}).",
            f"Use torch {dotted(LEAST_TORCH_OF_SHARDS)} or newer, whose FSDPModule has"
            f" set_custom_reduce_scatter, and one group of parameters per module. {_ADVICE}",
        ) from problem


class _WeightedReduceScatter:
    """What FSDP2 reduces with: ``torch.distributed.fsdp._fully_shard._fsdp_api.ReduceScatter``."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._reduce = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Return memory for a reduction."""
        return torch.empty(size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: Any,
        op: object,  # noqa: ARG002 - a mean over the workers, which have unequal shares
        async_op: bool = False,
    ) -> Any:
        """Sum over the group."""
        weight = self._shards.weight()
        if weight <= 0:  # not a product: NaN times zero is NaN
            input_tensor.zero_()
        elif weight != 1.0:
            input_tensor.mul_(weight)
        return self._reduce(output_tensor, input_tensor, group=group, async_op=async_op)


def shards_of(model: torch.nn.Module) -> Shards | None:
    """Return the shards of a model; None if it is not sharded.

    Raises:
        ElasticError: BFT-1401, it is sharded over something else than the node's mesh.
    """
    fsdp_module = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", ())
    for module in model.modules():
        if isinstance(module, fsdp_module):  # an evaluation may have left gathered parameters
            module.reshard()
    if not any(map(is_sharded, model.parameters())):
        return None
    return Shards(model)
