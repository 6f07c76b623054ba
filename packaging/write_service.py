"""Writes the files of the service below a directory, as ``bftrainer site init`` makes them.

Called by ``build.sh`` with the interpreter of the package. A site's own files, in /etc, come before
these.
"""

from __future__ import annotations

import sys
from pathlib import Path

from slurm_plugins.site_files import usual_service

if __name__ == "__main__":
    for file in usual_service():
        path = Path(sys.argv[1]) / "usr/lib" / file.path.removeprefix("/etc/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text, encoding="utf-8")
