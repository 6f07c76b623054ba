"""How many examples a property test takes."""

from __future__ import annotations

from hypothesis import settings

FEWEST = 5


def examples(fresh: int, *, of: int = 8) -> int:
    """Return as many where they are fresh (make test-long); where always the same, one of ``of``.

    Those that are the same at every run find what a change breaks, and more of them little else.
    """
    if settings.get_current_profile_name() == "fresh":
        return fresh
    return min(fresh, max(FEWEST, fresh // of))
