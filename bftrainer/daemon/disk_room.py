"""Tells that the disk with the state directory becomes full, before it is.

On a full disk nodes are given back and nothing new begins (docs/reference/failures.md). So that
somebody makes room earlier, the log and ``status`` say when less than ``LEAST_SHARE`` of the disk
and less than ``LEAST_BYTES`` are left, and metrics tell how much is.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

LOG = logging.getLogger("bftrainer.daemon")
LOOK_EVERY_S: Final = 10.0
LEAST_SHARE: Final = 0.1
LEAST_BYTES: Final = 5_000_000_000
ENOUGH: Final = 1.1  # times as much, and it is told no longer
GB: Final = 1e9


def _measured(directory: Path) -> tuple[int, int]:
    usage = shutil.disk_usage(directory)
    return usage.total, usage.free


class DiskRoom:
    """One per daemon."""

    def __init__(
        self, directory: Path, measure: Callable[[Path], tuple[int, int]] = _measured
    ) -> None:
        """Watch the disk of a directory; ``measure`` returns its bytes, and those that are free."""
        self._directory, self._measure = directory, measure
        self._looked_s = -LOOK_EVERY_S
        self.size_bytes = self.free_bytes = 0
        self._is_short = False

    def look(self, now_s: float) -> None:
        """Measure now and then, and log once that there is little room; called once a second."""
        if 0.0 <= now_s - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = now_s
        try:
            self.size_bytes, self.free_bytes = self._measure(self._directory)
        except OSError as problem:
            LOG.debug("%s cannot be measured: %s", self._directory, problem)
            return
        least_bytes = min(LEAST_SHARE * self.size_bytes, LEAST_BYTES)
        if self._is_short and self.free_bytes >= ENOUGH * least_bytes:
            self._is_short = False
            LOG.info("the disk with %s has room again", self._directory)
        elif not self._is_short and self.free_bytes < least_bytes:
            self._is_short = True
            LOG.warning("%s", self.sentence())

    def sentence(self) -> str:
        """Say that there is little room, with BFT-2230; "": there is enough."""
        if not self._is_short:
            return ""
        return (
            f"BFT-2230: The disk with {self._directory} is nearly full: {self.free_bytes / GB:.1f}"
            f" of {self.size_bytes / GB:.1f} GB are left. When it is full, trainers go on and"
            " nodes are given back, but nothing new begins for anybody."
        )
