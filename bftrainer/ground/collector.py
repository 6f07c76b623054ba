"""How often Python's garbage collector looks for reference cycles in a process that decides.

By default it runs whenever some hundreds more objects were made than freed. A decision about
thousands of nodes makes hundreds of thousands of objects, keeps them to its end, and puts hardly
any of them into a cycle, so these runs find nothing. On 2,000 hosts whose GPUs are lent one by one
they took a fifth of a decision's processor time, and made some decisions three times as long.
"""

from __future__ import annotations

import gc
from typing import Final

OBJECTS_BETWEEN_RUNS: Final = 50_000  # some megabytes


def collect_rarely() -> None:
    """Run the collector rarely in this process. Not for processes that run users' programs."""
    _, *older_generations = gc.get_threshold()
    gc.set_threshold(OBJECTS_BETWEEN_RUNS, *older_generations)
