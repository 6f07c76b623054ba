"""Which sentences about a trouble are new: the log has each once, until the trouble is over."""

from __future__ import annotations

from collections.abc import Iterable

MOST = 100  # sentences of one trouble; later ones are not logged


class SaidOnce:
    """The sentences said since all was well."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def new(self, sentences: Iterable[str]) -> tuple[str, ...]:
        """Return the sentences that were not said yet."""
        fresh = tuple(one for one in dict.fromkeys(sentences) if one not in self._said)
        fresh = fresh[: max(0, MOST - len(self._said))]
        self._said.update(fresh)
        return fresh

    def is_over(self) -> bool:
        """Forget the trouble; return whether there was one."""
        was, self._said = bool(self._said), set()
        return was
