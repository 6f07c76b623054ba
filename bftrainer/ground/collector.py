"""How often Python's collector looks for objects that refer to each other in a circle.

It looks whenever some hundreds more objects were made than freed. A decision about thousands of
nodes makes hundreds of thousands and keeps them to its end, hardly any of them in a circle. On
2,000 hosts whose GPUs are lent one by one the collector took a fifth of it, and made single ones
three times as long as the others.
"""

from __future__ import annotations

import gc
from typing import Final

MORE_OBJECTS: Final = 50_000  # before it looks; some megabytes


def collect_rarely() -> None:
    """Let the collector look rarely, in a process that decides. Not for users' own programs."""
    _, *older_generations = gc.get_threshold()
    gc.set_threshold(MORE_OBJECTS, *older_generations)
