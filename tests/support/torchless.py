"""An interpreter whose template imports no torch, for workers whose scripts do without.

Torch is most of what a template's start takes (3 s of processor time). The rest is the product's
own: the same program forks the same keepers and workers. Not for scripts that import torch: each
worker would.

Run as a program, with the template's path and arguments, it is that template.
"""

from __future__ import annotations

import importlib.util
import shlex
import sys
from pathlib import Path

INTERPRETER = f"""#!/bin/sh
case "$1" in
*/bftrainer/elastic/template.py) exec {shlex.quote(sys.executable)} {shlex.quote(__file__)} "$@" ;;
*) exec {shlex.quote(sys.executable)} "$@" ;;
esac
"""


def interpreter(directory: Path) -> str:
    """Write the interpreter into a directory, once; return its path."""
    path = directory / "torchless-python"
    if not path.exists():
        path.write_text(INTERPRETER)
        path.chmod(0o755)
    return str(path)


def main() -> int:
    """Be the template, as it is but for what it imports in advance."""
    del sys.argv[0], sys.path[0]  # of this file: what follows is the template's
    spec = importlib.util.spec_from_file_location("template", sys.argv[0])
    assert spec is not None
    assert spec.loader is not None
    template = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(template)
    vars(template)["warm_up"] = lambda _=(): "none"
    return int(template.main())


if __name__ == "__main__":
    sys.exit(main())
