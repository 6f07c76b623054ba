"""Shell scripts that stand for a batch system's commands."""

from __future__ import annotations

from pathlib import Path


def write_command(path: Path, text: str) -> None:
    """Write a script of these lines that everybody may execute."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
