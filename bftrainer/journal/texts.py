"""Large parts of trainers' specs, stored once by their digest. Pure.

Each entry about a trainer has its whole record, and a trainer has many entries. An environment of
100 kB would be written with each of them. In entries and state tables a field of a spec that is
longer than ``LONG_CHARS`` is therefore a reference, ``{"text-sha256": DIGEST}``, to a row of the
table ``texts``; equal fields of a study's trials are one row. Shorter fields are written as before,
so that the release before reads such trainers; others have failed for it (BFT-1028), until a later
release reads the journal again.

A text is removed when no trainer in the state table refers to it. Entries that refer to it remain,
and are read without that field.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from bftrainer.model.canonical import parse, text_of

LONG_CHARS: Final = 1024
REFERENCE: Final = "text-sha256"
_WITH_ROWS: Final = frozenset({"name", "user"})  # columns of the state tables, too
# No text of a user can contain it: quotation marks within a text are escaped.
_REFERENCE: Final = re.compile(r'\{"text-sha256":"([0-9a-f]{64})"\}')

TextOf = Callable[[str], str | None]


def digest_of(text: str) -> str:
    """Return the name of a text."""
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def apart(record: Any, texts: dict[str, str]) -> Any:
    """Return a record with references for the long fields of its spec; add these to ``texts``.

    Args:
        record: of a trainer, as plain data; it is not modified.
        texts: by digest.
    """
    spec = dict(record["spec"])
    for name, value in spec.items():
        if not isinstance(value, str | list | dict) or name in _WITH_ROWS:
            continue
        text = text_of(value)
        if len(text) > LONG_CHARS:
            digest = digest_of(text)
            texts[digest] = text
            spec[name] = {REFERENCE: digest}
    return {**record, "spec": spec}


def references(record: str) -> set[str]:
    """Return the digests to which a record refers; ``record``: as it is written."""
    return set(_REFERENCE.findall(record))


def whole(record: Any, text_of_digest: TextOf, *, is_past: bool = False) -> Any:
    """Return a record with the fields that were set apart.

    Args:
        record: of a trainer, as plain data; it is not modified.
        text_of_digest: returns a text, None if it was removed.
        is_past: leave out a field whose text was removed; else the reference stays, with which
            no release can read the record.
    """
    spec = record.get("spec") if isinstance(record, Mapping) else None
    if not isinstance(spec, Mapping):
        return record
    restored = {}
    for name, value in spec.items():
        if not (isinstance(value, Mapping) and value.keys() == {REFERENCE}):
            restored[name] = value
        elif (text := text_of_digest(str(value[REFERENCE]))) is not None:
            restored[name] = parse(text)
        elif not is_past:
            restored[name] = value
    return {**record, "spec": restored}
