"""The parameters of a trial, as its study chose them. Standard library only."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from bftrainer.elastic.errors import ElasticError

VARIABLE = "BFT_PARAMETERS"


def params() -> Mapping[str, Any]:
    """Return the parameters of this trial; an empty mapping for a script outside of a study.

    Raises:
        ElasticError: BFT-1612 when ``BFT_PARAMETERS`` is not a JSON object.
    """
    return _parsed(os.environ.get(VARIABLE, "{}"))


@functools.lru_cache(maxsize=1)
def _parsed(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ElasticError(
            "BFT-1612",
            f"{VARIABLE} is not a JSON object: {text[:80]!r}.",
            f"Unset it, or set it as a study does: {VARIABLE}='{{\"lr\": 0.1}}'.",
        )
    return MappingProxyType(found)
