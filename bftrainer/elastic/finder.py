"""Makes ``bftrainer.elastic`` and its ground importable in an interpreter that has neither.

The template calls ``ensure_importable`` first. If the interpreter would import another
``bftrainer`` or none, a finder serves these two subpackages and nothing else, so that none of our
other packages can shadow one of the user's. Standard library only.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

SERVED = ("elastic", "ground")  # elastic needs its ground, which needs the standard library alone


class ElasticFinder:
    """Finds ``bftrainer`` and the subpackages that are ``SERVED`` in one directory."""

    def __init__(self, package_dir: Path) -> None:
        self.package_dir = package_dir

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find our packages; their modules are found through the package path."""
        del path, target
        if fullname == "bftrainer":
            spec = importlib.util.spec_from_file_location(
                fullname, self.package_dir / "__init__.py", submodule_search_locations=[]
            )
            if spec is not None:
                # The call above fills in the directory. Emptied, it hides the sidecar's
                # other packages.
                spec.submodule_search_locations = []
            return spec
        package, _, subpackage = fullname.partition(".")
        if package != "bftrainer" or subpackage not in SERVED:
            return None
        directory = self.package_dir / subpackage
        return importlib.util.spec_from_file_location(
            fullname, directory / "__init__.py", submodule_search_locations=[str(directory)]
        )


def ensure_importable(package_dir: Path) -> bool:
    """Install the finder for ``package_dir`` if necessary; return whether it was."""
    spec = importlib.util.find_spec("bftrainer")
    if spec is not None and spec.origin is not None:
        origin = Path(spec.origin).resolve()
        if origin == (package_dir / "__init__.py").resolve():
            return False
    sys.meta_path.insert(0, ElasticFinder(package_dir))
    return True
