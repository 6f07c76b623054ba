"""Which trial wrote a checkpoint: headers name it. Standard library only.

A trial that starts from another one's state (population based training) keeps what is its own:
``inheriting`` the options of its optimizers, every runtime what was reported.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

KEY = "trial"  # in headers of checkpoints


def mark() -> dict[str, str]:
    """Return what a checkpoint's header says of this process's trial; empty: it is none."""
    study, number = os.environ.get("BFT_STUDY"), os.environ.get("BFT_TRIAL")
    return {KEY: f"{study}/{number}"} if study and number else {}


def is_inherited(header: Mapping[str, Any]) -> bool:
    """Whether this is a trial and the checkpoint is not its own."""
    own = mark()
    return bool(own) and header.get(KEY) != own[KEY]
