"""A wall clock of a Python process that a test sets while the process runs.

Not libfaketime: with 0.9.10 Python's sleep fails (EINVAL of clock_nanosleep). The boot clock and
the monotonic one stay the machine's, as they do where somebody sets the clock of a host.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SHIFTED = """\
import time
from pathlib import Path

_true = time.time

def _shifted():
    return _true() + int(Path("{file}").read_text().strip().rstrip("s"))

time.time = _shifted
"""
"""A ``sitecustomize`` that adds the seconds in a file, like "+3600s"."""

SHIFTED_SBATCH = """\
#!/bin/sh
ahead_s=$(tr -d s < {file})
for word; do
    shift
    case $word in
        *=now+*) word=${{word%+*}}+$((${{word##*+}} + ahead_s)) ;;
    esac
    set -- "$@" "$word"
done
exec {sbatch} "$@"
"""
"""An sbatch that adds ``now+SECONDS`` to that clock; the real one adds to the machine's."""


@dataclass(frozen=True, slots=True)
class PythonClock:
    """Its files, in a directory."""

    directory: Path

    @property
    def file(self) -> Path:
        """How far it is ahead, as libfaketime reads it, too."""
        return self.directory / "ahead"

    def environment(self) -> dict[str, str]:
        """Return the environment in which a process has this clock."""
        python = self.directory / "python"
        python.mkdir(parents=True, exist_ok=True)
        (python / "sitecustomize.py").write_text(SHIFTED.format(file=self.file))
        return {"PYTHONPATH": str(python)}

    def set_ahead(self, seconds: int) -> None:
        """Set it, so far ahead of the machine's."""
        whole = self.file.with_name("ahead.new")
        whole.write_text(f"{seconds:+d}s\n")
        whole.rename(self.file)
