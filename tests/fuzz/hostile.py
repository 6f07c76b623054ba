"""Hostile inputs: what is valid, bent; and what no honest program would write."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from bftrainer.ground import files

LONGEST = 1 << 20  # characters
ODD = (
    *("(", ")", "[", "]", "{", "}", ",", "|", "&", "*", "-", ":", "=", "\t", "\n", "\\", '"', "'"),
    *("\0", "\x1b", "\x7f", "\ud800", "\u202e", "\u0660", "é", "%", "/", "..", "~"),
    *("NaN", "nan", "Infinity", "-inf", "1e999", "-1", "0", "9" * 19, "9" * 400, "1e-320"),
    *("null", "true", "(null)", "N/A", "UNLIMITED", "[1-200000]", "n[0-9][0-9][0-9][0-9][0-9]"),
    *("(" * 600, "[" * 600, "(a|b)&" * 18, "a|" * 60_000, "a," * 20_000, '{"a":' * 5_000),
)
_odd = st.sampled_from(ODD)


def texts(*samples: str) -> SearchStrategy[str]:
    """Draw text: samples with pieces cut, doubled, repeated and put in, or anything at all."""
    anything = st.lists(_odd | st.text(max_size=12), max_size=12).map("".join)
    return (_bent(samples) | anything) if samples else anything


def bytestrings(*samples: bytes) -> SearchStrategy[bytes]:
    """Draw the same as bytes, with invalid UTF-8 among it."""
    as_text = [sample.decode("latin-1") for sample in samples]
    return texts(*as_text).map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary(
        max_size=200
    )


def numbers() -> SearchStrategy[Any]:
    """Draw numbers as JSON can carry them, and what is none."""
    return st.one_of(
        st.sampled_from((0, -1, 10**400, -(10**400), 2**63, 1e308, -1e308, 5e-324, True, None)),
        st.sampled_from((float("nan"), float("inf"), float("-inf"), "1", "", [], {})),
        st.integers(),
        st.floats(),
    )


def documents(*samples: Any) -> SearchStrategy[Any]:
    """Draw JSON values: samples in which some values were replaced, left out or added."""
    leaf = numbers() | st.text(max_size=20) | _odd
    tree = st.recursive(leaf, _around, max_leaves=8)
    if not samples:
        return tree
    return st.tuples(st.sampled_from(samples), st.randoms(use_true_random=False), tree).map(
        lambda drawn: _with_changes(*drawn)
    )


def _around(inner: SearchStrategy[Any]) -> SearchStrategy[Any]:
    return st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)


def as_json(value: Any) -> bytes:
    """Write a drawn document the way Python's own writer does: NaN and all."""
    return json.dumps(value).encode("utf-8", "surrogatepass")


@st.composite
def _bent(draw: st.DrawFn, samples: Sequence[str]) -> str:
    text = draw(st.sampled_from(samples))
    for _ in range(draw(st.integers(0, 4))):
        first = draw(st.integers(0, len(text)))
        last = draw(st.integers(first, min(len(text), first + 40)))
        piece = text[first:last]
        middle = draw(
            st.sampled_from(("", piece * 2, piece[::-1]))
            | st.sampled_from([piece * n for n in (10, 1_000, 20_000)])
            | _odd
            | st.text(max_size=5)
        )
        text = (text[:first] + middle + text[last:])[:LONGEST]
    return text


def _with_changes(sample: Any, chance: Any, value: Any) -> Any:
    """Replace one value somewhere in a document, leave it out, or put one beside it."""
    if isinstance(sample, dict) and sample and chance.random() < 0.9:
        key = chance.choice(sorted(sample))
        rest = {k: v for k, v in sample.items() if k != key}
        what = chance.random()
        if what < 0.1:
            return rest
        if what < 0.2:
            return {**sample, f"{key}x": value}
        return {**rest, key: _with_changes(sample[key], chance, value)}
    if isinstance(sample, list) and sample and chance.random() < 0.8:
        at = chance.randrange(len(sample))
        inner = _with_changes(sample[at], chance, value)
        return [*sample[:at], *([inner] * chance.choice((0, 1, 2, 50))), *sample[at + 1 :]]
    return value


def with_checksum(header: Any) -> bytes:
    """Return a file of our own with this header and no arrays."""
    return b"".join(map(bytes, files.parts_of(header, [])))
