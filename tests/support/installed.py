"""A package that declares a policy, installed for as long as a test lasts."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bftrainer.decide.policies.base import ENTRY_POINT_GROUP


def write_package(site: Path, name: str, source: str) -> Path:
    """Write a distribution of one module that declares its ``POLICY`` under ``name``."""
    module = name.replace("-", "_")
    (site / f"{module}.py").write_text(source)
    info = site / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\n{name} = {module}:POLICY\n")
    return site


@contextmanager
def installed(site: Path, name: str) -> Iterator[None]:
    """Let this process find a package that was written there."""
    sys.path.insert(0, str(site))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(site))
        sys.modules.pop(name.replace("-", "_"), None)
        importlib.invalidate_caches()
