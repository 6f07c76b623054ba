"""The published JSON schemas of a problem and of an allocation.

The files beside this module are what ``milp.codec`` reads and writes, for programs that
are not ours. ``python -m milp.schema problem`` prints one, ``load`` returns it.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any, Final

NAMES: Final = ("problem", "allocation")


def load(name: str) -> dict[str, Any]:
    """Return one of the schemas of ``NAMES``."""
    schema: dict[str, Any] = json.loads(text(name))
    return schema


def text(name: str) -> str:
    """Return the file of one of ``NAMES`` as it is."""
    if name not in NAMES:
        raise ValueError(f"no schema {name!r}; there are {' and '.join(NAMES)}")
    return resources.files(__name__).joinpath(f"{name}.schema.json").read_text(encoding="utf-8")
