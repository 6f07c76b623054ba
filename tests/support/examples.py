"""How many examples a property test takes."""

from __future__ import annotations

from hypothesis import settings

FEWEST = 5


def examples(fresh: int) -> int:
    """Return as many where they are fresh (make test-long); a quarter where always the same."""
    if settings.get_current_profile_name() == "fresh":
        return fresh
    return min(fresh, max(FEWEST, fresh // 4))
