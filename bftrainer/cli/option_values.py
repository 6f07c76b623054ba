"""The values of options of ``submit`` that are neither numbers nor plain text.

``converter`` finds them by the names that declarations of fields use (``SubmitOption.takes``).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from bftrainer.api.admission import check_after, check_sizes, read_request
from bftrainer.cli.environment import parse_variables
from bftrainer.cli.sbatch_values import parse_dependency, parse_mail_types
from bftrainer.ground.protocol import MAX_GPUS
from bftrainer.model.container import AUTO, RUNTIMES, image_fault, mounts_of, text_of
from bftrainer.model.errors import UsageError
from bftrainer.model.time_limits import parse_time_limit
from bftrainer.model.trainer_spec import LATEST_BEGIN_S

NEXT_BATCH: Final = (
    "Write --batch MIN:MAX --batch-per-worker N, as in --batch 128:1024 --batch-per-worker 64."
)
MAX_ARRAY = 1000  # trainers of one array
MAX_SET_CHARS = 512
_RANGE = re.compile(r"(\d{1,9}):(\d{1,9})\Z", re.ASCII)
_UNITS_S = {"": 1, "s": 1, "second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
_FROM_NOW = re.compile(r"now(?:\+(\d{1,9})([a-z]*))?\Z", re.ASCII)
_FORMS = ("%H:%M", "%H:%M:%S", "%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S")
_PART = re.compile(r"(\d{1,6})(?:-(\d{1,6})(?::(\d{1,6}))?)?\Z", re.ASCII)
_TYPE = r"(?:(?P<type>[A-Za-z0-9_]*[A-Za-z_][\w.+-]*):)?"  # digits alone are a number
_GPUS = re.compile(rf"{_TYPE}(?P<sizes>[\d,:.-]+)\Z", re.ASCII)
_UNIT = re.compile(rf"{_TYPE}(?P<count>\d{{1,9}})\Z", re.ASCII)
_SIZES = re.compile(r"(\d{1,9})(?:(?:[:-]|\.\.)(\d{1,9}))?\Z", re.ASCII)
_IMAGE_FILES = (".sif", ".sqsh", ".sqfs", ".squashfs")
_NEXT_IMAGE = "Give the path of a SIF or squashfs file or of a directory, or docker://"
_SET = re.compile(r"\d{1,9}(?:,\d{1,9})+\Z", re.ASCII)


def parse_range(text: str) -> tuple[int, int]:
    """Return the least and the greatest batch of ``128:1024``; raise BFT-1067."""
    match = _RANGE.match(text)
    if match is None:
        raise UsageError("BFT-1067", f"{text[:60]!r} is not a range of batches.", NEXT_BATCH)
    return int(match[1]), int(match[2])


class NodeSizes(NamedTuple):
    """Value of ``--nodes``."""

    n_min: int
    n_max: int
    only: tuple[int, ...]  # (): all from n_min to n_max


class GpuSizes(NamedTuple):
    """Value of ``--gpus``."""

    gpu_type: str  # "": any
    sizes: NodeSizes  # in GPUs


class UnitOption(NamedTuple):
    """Value of ``--gpus-per-node``."""

    gpu_type: str  # "": any
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayOption:
    """Value of ``--array``."""

    indices: tuple[int, ...]  # in the order of submission
    limit: int | None = None  # so many have nodes at once


def parse_ids(text: str) -> tuple[str, ...]:
    """Return the trainers of ``t1,t2``; raise BFT-1044 if one of them is no id."""
    ids = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    check_after(ids)
    return ids


def parse_begin(text: str, now_s: float | None = None) -> float:
    """Return the time of ``now+1hour``, ``HH:MM`` or ``YYYY-MM-DDTHH:MM``, as for sbatch.

    Raises:
        UsageError: BFT-1045 if this is none of them.
    """
    if now_s is None:
        now_s = time.time()
    if match := _FROM_NOW.match(text):
        unit = (match[2] or "").removesuffix("s") or (match[2] or "")
        if unit in _UNITS_S:
            return now_s + int(match[1] or 0) * _UNITS_S[unit]
    for form in _FORMS:
        try:
            at = datetime.strptime(text, form)  # noqa: DTZ007 - local time, as for sbatch
            if form.startswith("%H"):
                present = datetime.fromtimestamp(now_s)  # noqa: DTZ006 - likewise
                at = datetime.combine(present.date(), at.time())
                if at <= present:
                    at += timedelta(days=1)  # the next time it is so late
            if 0 <= (begin_s := at.timestamp()) <= LATEST_BEGIN_S:
                return begin_s
        except (ValueError, OverflowError, OSError):
            continue
    raise UsageError(
        "BFT-1045",
        f"{text[:60]!r} is not a time.",
        "Write --begin now+2hours (seconds, minutes, hours, days, weeks), 22:30 or"
        " 2031-12-24T22:30.",
    )


def parse_array(text: str) -> ArrayOption:
    """Return the indices of ``0-9``, ``1,4-8:2`` or ``0-99%10``, as for sbatch.

    Raises:
        UsageError: BFT-1046 if it is malformed or has too many.
    """
    listed, has_limit, limit = text.partition("%")
    indices: dict[int, None] = {}
    for part in listed.split(","):
        match = _PART.match(part)
        if match is None:
            raise _no_array(f"{text[:60]!r} is not a list of indices.")
        first, last = int(match[1]), int(match[2] or match[1])
        step = int(match[3] or 1)
        if last < first or not step:
            raise _no_array(f"{part!r} is not a range of indices.")
        if (last - first) // step >= MAX_ARRAY:
            raise _no_array(f"{part!r} has more than {MAX_ARRAY} indices.")
        indices |= dict.fromkeys(range(first, last + 1, step))
    if len(indices) > MAX_ARRAY:
        raise _no_array(f"It has {len(indices)} indices; the limit is {MAX_ARRAY}.")
    if has_limit and not re.fullmatch(r"[1-9]\d{0,5}", limit, re.ASCII):
        raise _no_array(f"{limit[:20]!r} is not a number of trainers at once.")
    at_once = None
    if limit:
        at_once = int(limit)
    return ArrayOption(indices=tuple(sorted(indices)), limit=at_once)


def _no_array(cause: str) -> UsageError:
    return UsageError("BFT-1046", cause, "Write --array 0-9, 1,3,5-7 or 0-99%10 (10 at once).")


def parse_sizes(text: str) -> NodeSizes:
    """Return n_min, n_max and the set of ``4``, ``1:8`` (``1-8`` as in sbatch) or ``1,2,4``.

    Raises:
        UsageError: BFT-1002 when this is not a range.
    """
    return _sizes(text, "--nodes")


def _sizes(text: str, option: str) -> NodeSizes:
    only: tuple[int, ...] = ()
    if len(text) <= MAX_SET_CHARS and _SET.match(text):
        only = tuple(sorted(set(map(int, text.split(",")))))
        n_min, n_max = only[0], only[-1]
    elif match := _SIZES.match(text):
        n_min, n_max = int(match[1]), int(match[2] or match[1])
    else:
        what = option.removeprefix("--")
        raise UsageError(
            "BFT-1002",
            f"{text[:60]!r} is not a number of {'GPUs' if what == 'gpus' else what}.",
            f"Write {option} N, {option} MIN:MAX or a set of sizes, {option} 1,2,4.",
        )
    check_sizes(n_min, n_max, only, option)
    return NodeSizes(n_min, n_max, only)


def parse_gpus(text: str) -> GpuSizes:
    """Return the type and the sizes of ``4``, ``1:16``, ``1,2,4``, ``a100:4`` or ``a100:1:16``.

    Raises:
        UsageError: BFT-1002 when this is not a range.
    """
    match = _GPUS.match(text)
    if match is None:
        return GpuSizes("", _sizes(text, "--gpus"))  # which refuses it
    return GpuSizes(match["type"] or "", _sizes(match["sizes"], "--gpus"))


def parse_unit(text: str) -> UnitOption:
    """Return the type and the number of ``4`` or ``a100:4``; raise BFT-1016 if it is no such."""
    match = _UNIT.match(text)
    count = 0
    if match is not None:
        count = int(match["count"])
    if match is None or not 1 <= count <= MAX_GPUS:
        raise UsageError(
            "BFT-1016",
            f"--gpus-per-node is {text[:60]!r}.",
            f"Write --gpus-per-node K or TYPE:K, where K is from 1 to {MAX_GPUS}.",
        )
    return UnitOption(match["type"] or "", count)


def parse_gres(text: str) -> str:
    """Return the GPU request; raise BFT-1040 if it is invalid."""
    read_request(text, "")
    return text


def parse_constraint(text: str) -> str:
    """Return the constraint; raise BFT-1040 if it is invalid."""
    read_request("", text)
    return text


def parse_image(text: str) -> str:
    """Return the image with an absolute path, or as it is if it names a registry's.

    Raises:
        UsageError: BFT-1080, it is neither.
    """
    image = text
    if text and "://" not in text:
        is_path = text.startswith(".") or "/" in text or os.path.lexists(text)
        if is_path or text.endswith(_IMAGE_FILES):
            image = os.path.abspath(text)  # noqa: PTH100 - not resolved, as other paths
        if not image.startswith("/") or (":" in image and not os.path.lexists(image)):
            raise UsageError(
                "BFT-1080", f"There is no image {text[:200]} here.", f"{_NEXT_IMAGE}{text[:200]}."
            )
    if image and (fault := image_fault(image)):
        raise UsageError("BFT-1080", f"{fault}.", f"{_NEXT_IMAGE}NAME.")
    return image


def parse_container_runtime(text: str) -> str:
    """Return the name of a runtime, or ``auto``; raise BFT-1080 if it is neither."""
    if text not in (AUTO, *RUNTIMES):
        raise UsageError(
            "BFT-1080",
            f"There is no container runtime {text[:60]!r}.",
            f"Write --container-runtime {AUTO} or one of {', '.join(RUNTIMES)}.",
        )
    return text


def parse_mounts(text: str) -> str:
    """Return SRC:DST[:ro],... with absolute sources; raise BFT-1080 if it is malformed."""
    words = []
    for word in text.split(","):
        source, colon, target = word.strip().partition(":")
        if source:
            words.append(os.path.abspath(source) + colon + target)  # noqa: PTH100 - likewise
    try:
        return text_of(mounts_of(",".join(words)))
    except ValueError as problem:
        raise UsageError(
            "BFT-1080",
            f"--container-mounts: {problem}.",
            "Write --container-mounts /data:/data:ro,/scratch: a directory here, its place in the"
            " container unless it is the same, and ro if it must not be changed.",
        ) from problem


def converter(name: str) -> Callable[[str], Any]:
    """Return the converter that a declaration names."""
    converters: Mapping[str, Callable[[str], Any]] = {
        "array": parse_array,
        "begin": parse_begin,
        "container_runtime": parse_container_runtime,
        "constraint": parse_constraint,
        "dependency": parse_dependency,
        "gpus": parse_gpus,
        "gres": parse_gres,
        "ids": parse_ids,
        "image": parse_image,
        "mail_type": parse_mail_types,
        "mounts": parse_mounts,
        "nodes": parse_sizes,
        "range": parse_range,
        "time_limit": lambda text: parse_time_limit(text) or None,
        "unit": parse_unit,
        "variable": parse_variables,
    }
    return converters[name]
