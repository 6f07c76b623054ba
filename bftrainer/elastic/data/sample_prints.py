"""Compares what the members' datasets yield for the same indices.

Two workers may have datasets of one length with other samples in them: split, listed or generated
from numbers that differ by process or node. Each would train on what another holds back. So each
worker reads a few samples, the same indices everywhere, and a print of each is compared whenever a
generation forms (``StateTransfer.agree``); joiners are compared with those that train.

A sample is read twice from equal random streams. What differs then is random by design: it is told
in the log and not compared. Real numbers and pixels are compared with a tolerance, because
processors and libraries of two nodes may round differently; integers, text and shapes exactly. Of
absolute paths only the last part counts: nodes stage files in directories of their own.

What it costs is bounded: ``INDICES`` samples, ``MOST_VALUES`` values of each tensor, no further
sample after ``ENOUGH_S``. Reading goes the way of the training: in this process, or in one of the
loader's, where handles that the dataset opens must not be shared.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset

from bftrainer.elastic.checkpoints.checkpoint import bytes_of
from bftrainer.elastic.script.batch import mix
from bftrainer.elastic.state.state import streams_of
from bftrainer.ground.errors import ElasticError

log = logging.getLogger("bftrainer.elastic")

INDICES = 4
ENOUGH_S = 1.0  # no further sample after this
LIMIT_S = 10.0  # for a process of the loader to start and read one
MOST_VALUES = 1 << 16  # of a tensor, evenly spaced
MOST_LEAVES = 256  # of a sample
MOST_TEXT = 1 << 16
DEEPEST = 8
TOLERANCE = 1e-3  # far above rounding; other values differ by about 1
_TINY = 1e-6  # below it values are noise
_STREAM = 9  # tells these random streams from others
_ODD = 0x9E3779B1
NOT_COMPARED = 0
_MOST_NAMED = 3  # ranks of a kind


class SamplePrint(NamedTuple):
    """What two equal samples have in common."""

    exact: int = NOT_COMPARED  # hash of structure, shapes, integers and text, 56 bits
    real: float = 0.0  # of all real numbers; alike within ``TOLERANCE``

    def is_like(self, other: SamplePrint) -> bool:
        """Return whether the samples are the same but for rounding."""
        return self.exact == other.exact and abs(self.real - other.real) <= TOLERANCE


UNKNOWN = SamplePrint()
Prints = Sequence[SamplePrint]  # one for each of the chosen indices


# ---- the print of a sample ---------------------------------------------------------------


@dataclass(slots=True)
class _Reading:
    """The print in the making."""

    hash: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=7))
    real: float = 0.0
    leaves: int = 0

    def note(self, *words: object) -> None:
        """Take what must be equal."""
        self.hash.update(repr(words).encode(errors="replace"))

    def take(self, thing: Any, depth: int = 0) -> None:
        """Take a sample or a part of one."""
        self.leaves += 1
        if self.leaves > MOST_LEAVES or depth > DEEPEST:
            return
        self.note(type(thing).__qualname__)
        if isinstance(thing, torch.Tensor):
            self._tensor(thing)
        elif isinstance(thing, bool | int | None):
            self.note(thing)
        elif isinstance(thing, float):
            self._values(torch.tensor([thing], dtype=torch.float64))
        elif isinstance(thing, str | bytes | os.PathLike):
            self._text(thing)
        elif isinstance(thing, Mapping):
            for key in sorted(thing, key=repr)[:MOST_LEAVES]:
                self.note(key)
                self.take(thing[key], depth + 1)
        elif isinstance(thing, set | frozenset):
            self.note(*sorted(map(repr, thing)))
        elif isinstance(thing, tuple | list):
            self.note(len(thing))
            for part in thing[:MOST_LEAVES]:
                self.take(part, depth + 1)
        elif hasattr(type(thing), "__array_interface__"):  # numpy's arrays, images
            self._array(sys.modules["numpy"].asarray(thing))
        else:
            self.take(getattr(thing, "__dict__", None), depth + 1)

    def _text(self, text: str | bytes | os.PathLike[str]) -> None:
        beginning = os.fspath(text)[:MOST_TEXT]
        if isinstance(beginning, bytes):
            beginning = beginning.decode(errors="replace")
        if os.path.isabs(beginning):  # noqa: PTH117 - text
            beginning = os.path.basename(beginning)  # noqa: PTH119 - text
        self.note(beginning)

    def _array(self, array: Any) -> None:
        self.note(array.shape, str(array.dtype))
        if array.dtype.kind not in "biufc":  # objects, texts, times
            self.take(array.reshape(-1)[:MOST_LEAVES].tolist(), DEEPEST)
            return
        values = array.reshape(-1)[:: _stride(array.size)]
        if array.dtype.kind in "fc" or array.dtype.itemsize == 1:
            dtype = "c16" if array.dtype.kind == "c" else "f8"
            self._values(torch.from_numpy(values.astype(dtype)))
        else:
            self.hash.update(values.tobytes())

    def _tensor(self, tensor: torch.Tensor) -> None:
        self.note(tuple(tensor.shape), str(tensor.dtype))
        if tensor.layout is not torch.strided or tensor.is_quantized:
            return
        values = tensor.detach().reshape(-1)[:: _stride(tensor.numel())].cpu()
        if values.is_complex() or values.is_floating_point() or values.dtype is torch.uint8:
            self._values(values)
        else:
            self.hash.update(bytes_of(values.contiguous()))

    def _values(self, values: torch.Tensor) -> None:
        if values.is_complex():
            values = torch.view_as_real(values).reshape(-1)
        values = values.double()
        is_finite = values.isfinite()
        self.note(int(is_finite.sum()))
        values = torch.where(is_finite, values, 0.0)
        norm = values.norm().item() + _TINY
        places = torch.arange(len(values)) * _ODD
        signs = ((places ^ (places >> 15)) >> 7 & 1) * 2 - 1
        # Direction and length; for each leaf with another weight, or leaves could be exchanged.
        weight = 1.0 + self.leaves % 16 / 16
        self.real += weight * ((values * signs).sum().item() / norm + math.log(norm))


def _stride(count: int) -> int:
    return max(1, -(-count // MOST_VALUES))


def print_of(sample: Any) -> SamplePrint:
    """Return the print of a sample."""
    reading = _Reading()
    reading.take(sample)
    return SamplePrint(1 + int.from_bytes(reading.hash.digest(), "big"), reading.real)


# ---- reading ---------------------------------------------------------------------------


def chosen(samples: int, order: torch.Tensor | None = None) -> list[int]:
    """Return the indices to compare, those of the script's ``order`` if it has one."""
    count = samples if order is None else len(order)
    if count == 0:
        return []
    places = [0, count - 1]
    places += [mix(count, number) % count for number in range(INDICES - len(places))]
    if order is None:
        return places
    return [int(order[place]) for place in places]


class Twice(Dataset[tuple[int, float]]):
    """Prints of a dataset's samples, ``UNKNOWN`` where a second reading differs."""

    def __init__(self, dataset: Any, get: Callable[[Any, list[int]], list[Any]]) -> None:
        """``get`` returns the samples of a list of indices."""
        self._dataset = dataset
        self._get = get

    def __getitem__(self, index: int) -> tuple[int, float]:
        first, second = self._read(index), self._read(index)
        return first if first.is_like(second) else UNKNOWN

    def _read(self, index: int) -> SamplePrint:
        with streams_of(index, _STREAM):
            (sample,) = self._get(self._dataset, [index])
            return print_of(sample)


def _as_they_are(row: Any) -> Any:
    return row


def read(prints: Twice, indices: Sequence[int], loader: DataLoader[Any]) -> list[SamplePrint]:
    """Return the prints of these samples, ``UNKNOWN`` from the first that cannot be read."""
    rows: list[SamplePrint] = []
    started_s = time.monotonic()
    try:
        with streams_of(_STREAM):  # a loader draws a number
            for row in _rows(prints, indices, loader):
                rows.append(SamplePrint(*row))
                if time.monotonic() - started_s > ENOUGH_S:
                    break
    except Exception as problem:  # noqa: BLE001 - whatever it is, the training meets it, too
        log.warning("samples are not compared: %s", problem)
    by_index = zip(indices, rows, strict=False)
    if random_indices := [index for index, row in by_index if row == UNKNOWN]:
        log.warning("samples %s differ each time they are read: not compared", random_indices)
    return [*rows, *[UNKNOWN] * (INDICES - len(rows))]


def _rows(
    prints: Twice, indices: Sequence[int], loader: DataLoader[Any]
) -> Iterator[tuple[int, float]]:
    if loader.num_workers == 0:
        return (prints[index] for index in indices)
    return iter(
        DataLoader(
            prints,
            batch_size=None,
            sampler=indices,
            num_workers=1,
            collate_fn=_as_they_are,
            timeout=LIMIT_S,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
        )
    )


# ---- comparing -------------------------------------------------------------------------


def encoded(prints: Prints) -> list[int]:
    """Return them as integers of 64 bits, always the same number."""
    numbers: list[int] = []
    for sample_print in [*prints, *[UNKNOWN] * (INDICES - len(prints))]:
        (bits,) = struct.unpack("<q", struct.pack("<d", sample_print.real))
        numbers += [sample_print.exact, bits]
    return numbers


def decoded(numbers: Sequence[int]) -> list[SamplePrint]:
    """Return what ``encoded`` was given."""
    prints = []
    for exact, bits in zip(numbers[::2], numbers[1::2], strict=True):
        (real,) = struct.unpack("<d", struct.pack("<q", bits))
        prints.append(SamplePrint(exact, real))
    return prints


def parted(prints: Prints) -> list[list[int]]:
    """Return the ranks of each kind of one sample, without those that did not compare it."""
    kinds: list[list[int]] = []
    for rank, sample_print in enumerate(prints):
        if sample_print.exact == NOT_COMPARED:
            continue
        for kind in kinds:
            if prints[kind[0]].is_like(sample_print):
                kind.append(rank)
                break
        else:
            kinds.append([rank])
    return kinds


def refuse(
    prints: Sequence[Prints],
    indices: Sequence[int],
    nodes: Sequence[str],
    *,
    source: int,
    mine: int,
    has_state: bool,
) -> ElasticError | None:
    """Return the error of members that read other samples; ``prints`` and ``nodes`` are by rank.

    Raises:
        ElasticError: BFT-1433, this worker must end. Members that read as the state's source does
            need not: the group goes on without the others.
    """
    for number, index in enumerate(indices):
        kinds = parted([prints_of_member[number] for prints_of_member in prints])
        if len(kinds) < 2:
            continue
        error = _unlike(index, kinds, nodes)
        if has_state and any(source in kind and mine in kind for kind in kinds):
            return error
        raise error
    return None


def _unlike(index: int, kinds: Sequence[Sequence[int]], nodes: Sequence[str]) -> ElasticError:
    def in_words(kind: Sequence[int]) -> str:
        ranks = []
        for rank in kind[:_MOST_NAMED]:
            node = f" ({nodes[rank]})" if nodes[rank] else ""
            ranks.append(f"rank {rank}{node}")
        words = ", ".join(ranks)
        if len(kind) > _MOST_NAMED:
            words += f" and {len(kind) - _MOST_NAMED} more"
        return words

    return ElasticError(
        "BFT-1433",
        f"The workers of this trainer read different data: sample {index} is one on"
        f" {', another on '.join(map(in_words, kinds))}.",
        "Split, list, shuffle and generate data the same way everywhere: see 'Seeds' in"
        " docs/howto/train-pytorch.md.",
    )
