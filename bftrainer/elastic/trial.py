"""The parameters of a trial, and the trial that wrote a checkpoint. Standard library only.

A trial that starts from another one's state (population based training) keeps what is its own:
the options of its optimizers (``state_transfer``) and, in every runtime, the metrics it reported.
"""

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


KEY = "trial"  # in headers of checkpoints


def mark() -> dict[str, str]:
    """Return what a checkpoint's header says of this process's trial; empty: it is none."""
    study, number = os.environ.get("BFT_STUDY"), os.environ.get("BFT_TRIAL")
    return {KEY: f"{study}/{number}"} if study and number else {}


def is_inherited(header: Mapping[str, Any]) -> bool:
    """Return whether this is a trial and the checkpoint is not its own."""
    own = mark()
    return bool(own) and header.get(KEY) != own[KEY]
