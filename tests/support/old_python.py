"""A Python and a torch of other releases: this Python, which says so of itself."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path


def old_python(directory: Path, python: str = "3.11.7", torch: str = "2.13.0") -> str:
    """Write such an interpreter into a new directory; return its path."""
    places = directory / f"python-{python}-{torch}"
    (places / "torch").mkdir(parents=True)
    numbers = ", ".join(python.split("."))
    (places / "sitecustomize.py").write_text(
        f"import sys\nsys.version_info = ({numbers}, 'final', 0)\n"
    )
    (places / "torch" / "version.py").write_text(f"__version__ = {torch!r}\n")
    (places / "torch" / "__init__.py").write_text("from torch.version import __version__\n")
    path = places / "python"
    command = f"PYTHONPATH={shlex.quote(str(places))} exec {shlex.quote(sys.executable)}"
    path.write_text(f'#!/bin/sh\n{command} "$@"\n')
    path.chmod(0o755)
    return str(path)
