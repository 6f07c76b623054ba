"""Parts of manual pages in roff, for both groff and mandoc."""

from __future__ import annotations

import re
import textwrap
import time

WIDTH = 76  # of lines in the source; mandoc(1) wants them short
_ESCAPED = {"\\": r"\e", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti"}
_CODE = re.compile(r"`([^`]+)`")
_OPTION = re.compile(r"(?<![\w-])(--?[A-Za-z][\w-]*)")


def plain(text: str) -> str:
    """Return a text that roff prints as it is; a line of it must not begin with a dot."""
    return "".join(
        _ESCAPED.get(one, one if one.isascii() else rf"\[u{ord(one):04X}]") for one in text
    )


def bold(text: str) -> str:
    """Return a text in bold."""
    return rf"\fB{plain(text)}\fR"


def paragraph(text: str) -> str:
    r"""Return lines of a paragraph; what is between \` is bold."""
    return _lines(_marked(_CODE, " ".join(text.split())))


def options(names: str) -> str:
    """Return names of an option in bold, their values not."""
    return _marked(_OPTION, names)


def entry(tag: str, text: str) -> str:
    """Return an entry of a list: a tag, in roff already, and what it means."""
    body = paragraph(text) or r"\&"
    return f".TP\n{_guarded(tag)}\n{body}"


def example(line: str) -> str:
    """Return a command line, which is not filled."""
    return f".RS 4\n.nf\n{_guarded(plain(line))}\n.fi\n.RE"


def heading(title: str, section: int, at_s: float, source: str) -> str:
    """Return the first lines of a page.

    Args:
        title: name of the page.
        section: of the manual.
        at_s: when it was written, seconds since 1970.
        source: name and version of the product.
    """
    date = time.strftime("%Y-%m-%d", time.gmtime(at_s))
    title_line = f'.TH {plain(title.upper())} {section} {date} "{plain(source)}"'
    return f"{title_line}\n.nh\n.ad l"  # names and paths stay whole


def _marked(pattern: re.Pattern[str], text: str) -> str:
    """Return a text with each match in bold."""
    parts = pattern.split(text)  # odd ones are matches
    return "".join(bold(one) if at % 2 else plain(one) for at, one in enumerate(parts))


def _lines(text: str) -> str:
    wrapped = textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join(_guarded(line) for line in wrapped)


def _guarded(line: str) -> str:
    return rf"\&{line}" if line.startswith(".") else line
