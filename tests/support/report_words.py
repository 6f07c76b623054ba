"""The words of a report on its page, and as a terminal has them."""

from __future__ import annotations

import re
from html.parser import HTMLParser

# Elements whose words a terminal has, too; not the head, the pictures and how the page was made.
WORDS_IN = {"h2", "p", "li", "th", "td", "pre"}
NOT_OF_TEXT = {"header", "figure", "footer"}
DRAWN = ("idle nodes", "Nodes over", "training, ")  # words of the pictures of a terminal


class Words(HTMLParser):
    """The texts of a page's elements, in their order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._is_read = False
        self._hidden = 0
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        self._hidden += tag in NOT_OF_TEXT
        self._is_read = tag in WORDS_IN and not self._hidden
        if self._is_read:
            self.texts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in NOT_OF_TEXT
        self._is_read = False

    def handle_data(self, data: str) -> None:
        if self._is_read:
            self.texts[-1] += data


def parts_of(text: str) -> list[str]:
    """Return sentences and cells of a printed report: cells stand two spaces apart."""
    return [part for line in text.splitlines() for part in re.split(r"\s{2,}", line) if part]


def check_same_words(page: str, text: str) -> None:
    """Check that headings, cells and sentences of a page are those that are printed."""
    on_page = {
        line.strip() for words in Words(page).texts for line in words.splitlines() if line.strip()
    }
    printed = {part for part in parts_of(text) if not set(part) & set("▁▂▃▄▅▆▇█")}
    drawn = {part for part in printed if part.startswith(DRAWN)}
    missing = sorted(on_page - printed)
    assert not missing, missing
    more = sorted(printed - on_page - drawn)
    assert not more, more
