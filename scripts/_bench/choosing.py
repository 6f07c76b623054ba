"""What of a benchmark is chosen on its command line; a word that chooses nothing is refused. Pure.

Called by benchmarks before they measure: an empty table that ends well looks like a result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from _bench.waiting import BenchError


def names_in(text: str) -> list[str]:
    """Split a comma-separated list."""
    return [word.strip() for word in text.split(",") if word.strip()]


def refuse_unknown(words: Iterable[str], names: Sequence[str]) -> None:
    """Refuse a word that is none of the names; raises ``BenchError``."""
    _refuse([word for word in words if word not in names], names)


def refuse_unmatched(words: Iterable[str], names: Sequence[str]) -> None:
    """Refuse a word that is in none of the names; raises ``BenchError``."""
    _refuse([word for word in words if not any(word in name for name in names)], names)


def _refuse(unknown: Sequence[str], names: Sequence[str]) -> None:
    if unknown:
        raise BenchError(
            f"nothing is named {', '.join(map(repr, unknown))}; there are: {', '.join(names)}"
        )
