"""Reads the words of one record of lsb.events in order. Pure.

Words are separated by blanks; texts are quoted, with quotes in them doubled. Texts are users':
everything takes linear time, and nothing is kept that was not asked for.
"""

from __future__ import annotations

import math
import re

from bftrainer.model.hostlist import ParseError

LONGEST_RECORD = 1 << 15  # characters
# Possessive, so that an unpaired quote is looked for once.
_WORD = re.compile(r'[ \t]*+(?:"((?:[^"]++|"")*+)"|([^\s"]++))(?=[ \t]|$)')
_WHOLE = re.compile(r"-?[0-9]{1,19}")  # 64 bits
_REAL = re.compile(r"-?[0-9]{1,19}(?:\.[0-9]{1,19})?(?:e[+-][0-9]{1,3})?")


class Words:
    """The words of a record, read one after the other.

    All methods raise ``ParseError`` if the next word is missing or of another kind.
    """

    def __init__(self, record: str) -> None:
        if len(record) > LONGEST_RECORD:
            raise ParseError(f"a record of {len(record)} characters")
        self._record, self._at = record, 0
        self._next = self._read()

    def text(self) -> str:
        """Return the next word, a text."""
        quoted = self._take()[1]
        if quoted is None:
            raise ParseError("not a text")
        return quoted.replace('""', '"')

    def texts(self, count: int) -> tuple[str, ...]:
        """Return so many texts."""
        return tuple(self.text() for _ in range(count))

    def whole(self) -> int:
        """Return the next word, an integer."""
        bare = self._bare()
        if _WHOLE.fullmatch(bare) is None:
            raise ParseError("not an integer")
        return int(bare)

    def count(self, most: int = 1 << 62) -> int:
        """Return the next word, an integer from 0 to ``most``."""
        found = self.whole()
        if not 0 <= found <= most:
            raise ParseError("out of range")
        return found

    def real(self) -> float:
        """Return the next word, a finite number."""
        bare = self._bare()
        found = float(bare) if _REAL.fullmatch(bare) else math.inf
        if not math.isfinite(found):
            raise ParseError("not a number")
        return found

    def skip(self, count: int) -> None:
        """Skip so many words of any kind."""
        for _ in range(count):
            self._take()

    def skip_texts(self) -> None:
        """Skip texts up to the next number."""
        while self._next is not None and self._next[1] is not None:
            self._take()

    def last_whole(self) -> int:
        """Skip integers up to the next text; return the last."""
        found = self.whole()
        while self._next is not None and self._next[1] is None:
            found = self.whole()
        return found

    def _bare(self) -> str:
        word = self._take()
        if word[1] is not None:
            raise ParseError("not a number")
        return word[2]

    def _take(self) -> re.Match[str]:
        word = self._next
        if word is None:
            raise ParseError("too few words")
        self._next = self._read()
        return word

    def _read(self) -> re.Match[str] | None:
        found = _WORD.match(self._record, self._at)
        if found is not None:
            self._at = found.end()
        return found
