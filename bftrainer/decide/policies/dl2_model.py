"""A network as a file (.npz, no pickle) and as text, which the journal keeps with a decision."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import zipfile
from functools import lru_cache

import numpy as np

from bftrainer.decide.policies.dl2_network import Network
from bftrainer.model.plugins import CONTENT

MOST_BYTES = 100_000
WINDOW = "window"


class ModelError(ValueError):
    """What is not a network."""


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
        arrays = {name: one.astype(np.float64, casting="safe") for name, one in numbers.items()}
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
    arrays = network.arrays()
    fits = all(arrays[name].shape == shape for name, shape in shapes.items())
    return fits and network.window > 0 and all(np.isfinite(one).all() for one in arrays.values())


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
