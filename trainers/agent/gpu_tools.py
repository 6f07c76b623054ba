"""What the tools of GPU drivers say: their command lines, and readers of their output. Pure.

None of them has run on a GPU of ours: the readers follow what is documented and published.

* ``nvidia-smi --query-gpu``: the manual page nvidia-smi(1), "Selective query options", and
  ``nvidia-smi --help-query-gpu``. Memory is in MiB. What it does not tell is in brackets, as in
  "[N/A]", "[Not Supported]" or, of GPUs that are cut into instances (MIG), "[Insufficient
  Permissions]" (driver 535).
* ``amd-smi metric --usage --mem-usage --json``: the AMD SMI CLI tool of ROCm 6 and 7. A list of
  GPUs, from ROCm 7 on below "gpu_data"; values have a unit, or are "N/A". Its "MB" are MiB.
* ``rocm-smi --showuse --showmeminfo vram --showuniqueid --json``: the tool before it, ROCm 5 and 6.
  An object per card; values are texts, memory in bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bftrainer.ground.fields import MOST
from bftrainer.ground.protocol import MAX_GPUS, Gpu

BYTES_PER_MIB: Final = 1024.0 * 1024.0
_CARD: Final = "card"
_WHOLE_PREFIX: Final = "GPU-"  # of the names of whole devices, not of instances (MIG)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenGpu:
    """A GPU as a tool has it."""

    index: int
    names: tuple[str, ...] = ()  # unique ones, as variables may have them
    figures: Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTool:
    """A program, and how its output is read."""

    program: str
    arguments: tuple[str, ...]
    # Of what it prints; raises ValueError if that is something else.
    read: Callable[[str], tuple[SeenGpu, ...]]
    variable: str  # in which batch systems list a job's devices


def own(seen: Sequence[SeenGpu], devices: Sequence[str] | None) -> tuple[SeenGpu, ...]:
    """Return the GPUs that a list of devices names; None: all of them.

    Args:
        seen: of the node.
        devices: indices, or names ("GPU-" and a unique beginning of the rest); others, such as
            those of instances, name no whole GPU.
    """
    if devices is None:
        return tuple(seen)
    return tuple(gpu for gpu in seen if _is_listed(gpu, devices))


def _is_listed(gpu: SeenGpu, devices: Sequence[str]) -> bool:
    return any(_is_named(gpu, device) for device in devices)


def _is_named(gpu: SeenGpu, device: str) -> bool:
    if device.isdecimal():
        return int(device) == gpu.index
    has_own_part = len(device) > len(_WHOLE_PREFIX)
    return has_own_part and any(name.lower().startswith(device.lower()) for name in gpu.names)


def _amount(value: object) -> float | None:
    """Return a number, None for whatever else stands in its place."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    if not math.isfinite(number) or not 0.0 <= number <= MOST:
        return None
    return number


def read_nvidia(text: str) -> tuple[SeenGpu, ...]:
    """Read lines of index, UUID, use in percent, memory used and in all in MiB."""
    rows = []
    for line in filter(str.strip, text.splitlines()):
        row = list(map(str.strip, line.split(",")))
        if len(row) != 5 or not row[0].isdecimal():
            raise ValueError("not the five columns that were asked for")
        rows.append(row)
    return tuple(
        SeenGpu(
            index=int(index),
            names=(uuid,),
            figures=Gpu(
                use_percent=_amount(use),
                memory_used_mib=_amount(memory_used),
                memory_total_mib=_amount(memory_total),
            ),
        )
        for index, uuid, use, memory_used, memory_total in rows[:MAX_GPUS]
    )


def read_rocm(text: str) -> tuple[SeenGpu, ...]:
    """Read an object with a card each."""
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("not an object")  # noqa: TRY004  # as for any other output
    return tuple(_cards(document))[:MAX_GPUS]


def _cards(document: dict[str, Any]) -> Iterator[SeenGpu]:
    for name, card in document.items():
        number = name.removeprefix(_CARD)
        if not (number.isdecimal() and isinstance(card, dict)):  # what it says of the system
            continue
        # ROCR_VISIBLE_DEVICES has "GPU-" and the 16 digits of the unique id.
        unique = str(card.get("Unique ID", "")).removeprefix("0x")
        yield SeenGpu(
            index=int(number),
            names=(f"{_WHOLE_PREFIX}{unique}",) if unique else (),
            figures=Gpu(
                use_percent=_amount(card.get("GPU use (%)")),
                memory_used_mib=_mib(card.get("VRAM Total Used Memory (B)")),
                memory_total_mib=_mib(card.get("VRAM Total Memory (B)")),
            ),
        )


def _mib(value: object) -> float | None:
    number = _amount(value)
    return None if number is None else number / BYTES_PER_MIB


def read_amd(text: str) -> tuple[SeenGpu, ...]:
    """Read a list of GPUs, or an object that has it."""
    gpus = json.loads(text)
    if isinstance(gpus, dict):
        gpus = gpus.get("gpu_data")
    if not isinstance(gpus, list):
        raise ValueError("not a list")  # noqa: TRY004  # as for any other output
    return tuple(
        SeenGpu(
            index=gpu["gpu"],
            figures=Gpu(
                use_percent=_valued(gpu, "usage", "gfx_activity"),
                memory_used_mib=_valued(gpu, "mem_usage", "used_vram"),
                memory_total_mib=_valued(gpu, "mem_usage", "total_vram"),
            ),
        )
        for gpu in gpus[:MAX_GPUS]
        if isinstance(gpu, dict) and type(gpu.get("gpu")) is int
    )


def _valued(gpu: dict[str, Any], part: str, name: str) -> float | None:
    """Return a value that stands alone, or beside its unit."""
    group = gpu.get(part)
    if not isinstance(group, dict):
        return None
    value = group.get(name)
    if isinstance(value, dict):
        value = value.get("value")
    return _amount(value)


TOOLS: Final = (
    GpuTool(
        program="nvidia-smi",
        arguments=(
            "--query-gpu=index,uuid,utilization.gpu,memory.used,memory.total",
            "--format=csv,noheader,nounits",
        ),
        read=read_nvidia,
        variable="CUDA_VISIBLE_DEVICES",
    ),
    GpuTool(
        program="amd-smi",
        arguments=("metric", "--usage", "--mem-usage", "--json"),
        read=read_amd,
        variable="ROCR_VISIBLE_DEVICES",
    ),
    GpuTool(
        program="rocm-smi",
        arguments=("--showuse", "--showmeminfo", "vram", "--showuniqueid", "--json"),
        read=read_rocm,
        variable="ROCR_VISIBLE_DEVICES",
    ),
)
