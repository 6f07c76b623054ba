"""Variables of an environment that no compression makes smaller."""

from __future__ import annotations

import random
import string

CHARACTERS = 4000  # of each
LETTERS = string.ascii_letters + string.digits


def incompressible(n_bytes: int, draws: random.Random) -> tuple[tuple[str, str], ...]:
    """Return variables of so many bytes in all."""
    return tuple(
        (f"V{number}", "".join(draws.choices(LETTERS, k=CHARACTERS)))
        for number in range(n_bytes // CHARACTERS)
    )
