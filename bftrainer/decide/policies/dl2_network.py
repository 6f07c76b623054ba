"""A small network that scores the next step of an allocation, and its file.

Each trainer's actions are scored from its own row of features and the mean row, by two hidden
layers; the last score is that of *void*: stop here. So it takes any number of trainers, and the
order in which they stand changes nothing. DL2 (Peng et al., arXiv 1909.06040, section 4.1) has one
network over all rows instead, with as many outputs as there are places.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import zipfile
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from bftrainer.model.plugins import CONTENT

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
MOST_BYTES: Final = 100_000
WINDOW: Final = "window"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Network:
    """The numbers of a network: F features, W wide, K actions per trainer; all float64."""

    row_in: Array  # (F, W), from a trainer's row
    pool_in: Array  # (F + 1, W), from the mean row and the share of places taken
    bias_in: Array  # (W,)
    inner: Array  # (W, W)
    bias_inner: Array  # (W,)
    out: Array  # (W, K)
    bias_out: Array  # (K,)
    void: Array  # (F + 1,), void's score from the mean row and the share
    bias_void: Array  # (1,)
    window: int  # places: the mean row is the sum over this many

    @property
    def features(self) -> int:
        """Numbers in a row."""
        return int(self.row_in.shape[0])

    @property
    def actions(self) -> int:
        """Actions per trainer, without void."""
        return int(self.bias_out.shape[0])

    def arrays(self) -> dict[str, Array]:
        """The numbers by name."""
        arrays: dict[str, Array] = {}
        for parameter in fields(self):
            if parameter.name != "window":
                arrays[parameter.name] = getattr(self, parameter.name)
        return arrays

    def scores(self, rows: Array) -> Array:
        """Score each action of each trainer, and void.

        Args:
            rows: (J, F), at most ``window`` trainers.

        Returns:
            (J K + 1,): the actions of the first trainer, of the second, ..., void.
        """
        pool = self._pool(rows, len(rows))
        first = np.maximum(rows @ self.row_in + (pool @ self.pool_in + self.bias_in), 0.0)
        second = np.maximum(first @ self.inner + self.bias_inner, 0.0)
        scores = np.empty(len(rows) * self.actions + 1)
        scores[:-1] = (second @ self.out + self.bias_out).reshape(-1)
        scores[-1] = pool @ self.void + self.bias_void[0]
        return scores

    def _pool(self, rows: Array, present: int) -> Array:
        return np.append(rows.sum(0), float(present)) / self.window


def fresh(features: int, actions: int, window: int, width: int, seed: int) -> Network:
    """Return a network of uniform random numbers, He's range for each layer's inputs."""
    chance = np.random.default_rng((seed, 41))

    def draw(rows: int, *columns: int) -> Array:
        bound = 1.0 / np.sqrt(rows)
        return chance.uniform(-bound, bound, (rows, *columns))

    inputs = 2 * features + 1
    scale = np.sqrt(features / inputs)  # row and pool are one layer's inputs
    return Network(
        row_in=draw(features, width) * scale,
        pool_in=draw(features + 1, width) * scale,
        bias_in=draw(inputs, width)[0],
        inner=draw(width, width),
        bias_inner=draw(width, width)[0],
        out=draw(width, actions),
        bias_out=draw(width, actions)[0],
        void=draw(features + 1),
        bias_void=draw(features + 1)[:1],
        window=window,
    )


def probabilities(scores: Array, mask: Mask) -> Array:
    """Return the softmax over allowed actions; the others have 0."""
    exponents = np.where(mask, scores, -np.inf)
    powers = np.exp(exponents - exponents.max(axis=-1, keepdims=True))
    shares: Array = powers / powers.sum(axis=-1, keepdims=True)
    return shares


class ModelError(ValueError):
    """The file does not hold a network."""


def to_bytes(network: Network) -> bytes:
    """Return the file."""
    buffer = io.BytesIO()
    arrays = {**network.arrays(), WINDOW: np.array(network.window)}
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def of_bytes(content: bytes) -> Network:
    """Read a file.

    Raises:
        ModelError: it is too large, or not a network.
    """
    if len(content) > MOST_BYTES:
        raise ModelError(f"it has more than {MOST_BYTES} bytes")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            numbers = {name: np.asarray(stored[name]) for name in stored.files}
        window = int(numbers.pop(WINDOW))
        arrays = {name: array.astype(np.float64, casting="safe") for name, array in numbers.items()}
        network = Network(window=window, **arrays)
        is_whole = _is_whole(network)
    except (
        ValueError,
        KeyError,
        TypeError,
        EOFError,
        OSError,
        IndexError,
        zipfile.BadZipFile,
    ) as e:
        raise ModelError("it is not a network") from e
    if not is_whole:
        raise ModelError("its arrays do not fit together")
    return network


def _is_whole(network: Network) -> bool:
    features, width = network.row_in.shape
    actions = network.actions
    shapes = {
        "row_in": (features, width),
        "pool_in": (features + 1, width),
        "bias_in": (width,),
        "inner": (width, width),
        "bias_inner": (width,),
        "out": (width, actions),
        "bias_out": (actions,),
        "void": (features + 1,),
        "bias_void": (1,),
    }
    for name, array in network.arrays().items():
        if array.shape != shapes[name] or not np.isfinite(array).all():
            return False
    return network.window > 0


@lru_cache(maxsize=8)
def of_text(text: str) -> Network:
    """Read a file from an option that holds its content.

    Raises:
        ModelError: it is not a network.
    """
    try:
        content = base64.b64decode(text.removeprefix(CONTENT), validate=True)
    except binascii.Error as error:
        raise ModelError("it is not base64") from error
    return of_bytes(content)


def short_hash(text: str) -> str:
    """Return the first 12 digits of the SHA-256 of a model's text."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]
