"""The places of the entry into a container, and of what every worker in one needs of ours."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import bftrainer

PACKAGE: Final = Path(bftrainer.__file__).resolve().parent
ENTRY: Final = PACKAGE / "batch" / "containers" / "entry.py"


def command_of() -> tuple[str, ...]:
    """Return the command line of the entry, but for its order and the program."""
    return (sys.executable, "-I", "-S", str(ENTRY))
