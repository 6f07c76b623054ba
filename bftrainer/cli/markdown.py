"""Pages of the documentation in the width of a terminal, or as plain text.

Prose breaks at spaces, tables are laid out as those of the verbs, code is left as it is: it is
there to be copied. A link says the command that opens its page.
"""

from __future__ import annotations

import io
import os
import posixpath
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from bftrainer.cli.output import legible
from bftrainer.cli.pages import command_of
from bftrainer.cli.tables import lines_of, wrapped
from bftrainer.model.columns import cell_width, shown

MOST_PROSE = 100  # cells of a line of prose, which nobody reads in 200
CODE_INDENT = 4
LEAST_KEPT = 12  # cells beside a piece of code that stays on one line
# Stand for the beginning and the end of bold and of code, and for a space in code, until all lines
# are laid out: one cell each, in no page, and printable.
BOLD, END_BOLD, CODE, END_CODE, KEPT_SPACE = "⦃⦄⦇⦈⍽"
_PLAIN = str.maketrans({BOLD: "", END_BOLD: "", CODE: "`", END_CODE: "`", KEPT_SPACE: " "})
_STYLES = {BOLD: "\x1b[1m", CODE: "\x1b[36m"}
_ENDS = {END_BOLD: BOLD, END_CODE: CODE}
_NO_STYLE = "\x1b[0m"


def page_lines(
    text: str,
    width: int,
    *,
    name: str = "",
    names: Collection[str] = (),
    is_drawn: bool = False,
) -> list[str]:
    """Return a page in lines.

    Args:
        text: Markdown.
        width: cells of a line.
        name: of the page below docs, without suffix, from which its links go.
        names: of all pages.
        is_drawn: whether bold and colours may be used.
    """
    from rich.markdown import Markdown  # noqa: PLC0415 - takes 0.1 s

    page = _Page(width, name=name, names=names, is_drawn=is_drawn)
    page.add(Markdown(text).parsed)
    if is_drawn:
        return list(_styled(page.lines))
    return [line.translate(_PLAIN) for line in page.lines]


class _Page:
    """The lines so far, and where the next one begins."""

    def __init__(self, width: int, *, name: str, names: Collection[str], is_drawn: bool) -> None:
        self.lines = list[str]()
        self._width, self._name, self._names, self._is_drawn = width, name, names, is_drawn
        self._indents = [0]  # cells before the text of each open block
        self._marker = ""  # of a list's item of which no line is written yet
        self._named = set[str]()  # commands of links of this section

    def add(self, tokens: Sequence[Any]) -> None:
        """Add the blocks that a parser of Markdown has read."""
        stream = iter(tokens)
        for token in stream:
            kind = token.type
            if kind == "heading_open":
                self._head(token.tag, next(stream))
            elif kind == "paragraph_open":
                self._prose(next(stream), is_apart=not token.hidden)
            elif kind in {"fence", "code_block"}:
                self._code(token.content)
            elif kind == "table_open":
                self._table(stream)
            elif kind == "hr":
                self._apart()
                self._put("-" * min(self._width, MOST_PROSE))
            elif kind == "list_item_open":
                self._marker = "* "
                if token.info:  # the number of an item
                    self._marker = f"{token.info}. "
                self._indents.append(self._indents[-1] + len(self._marker))
            elif kind == "blockquote_open":
                self._indents.append(self._indents[-1] + CODE_INDENT)
            elif kind in {"list_item_close", "blockquote_close"}:
                self._indents.pop()
            elif kind in {"bullet_list_open", "ordered_list_open"} and token.level == 0:
                self._apart()

    def _apart(self) -> None:
        if self.lines and self.lines[-1] and not self._marker:
            self.lines.append("")

    def _put(self, text: str, *, most: int = MOST_PROSE) -> None:
        """Add a text that breaks at spaces, after the marker of a list's item if there is one."""
        marker, self._marker = self._marker, ""
        indent = self._indents[-1]
        lines = wrapped(text, min(self._width, most), first=indent, indent=indent)
        lines[0] = f"{' ' * (indent - len(marker))}{marker}{lines[0]}"
        self.lines += lines

    def _head(self, tag: str, inline: Any) -> None:
        if tag in {"h1", "h2"}:
            self._named.clear()
        self._apart()
        text = self._text(inline)
        if self._is_drawn:
            self._put(f"{BOLD}{text}{END_BOLD}")
            return
        self._put(text)
        if tag in {"h1", "h2"}:
            longest = cell_width(text.translate(_PLAIN))
            self._put(("=" if tag == "h1" else "-") * min(longest, self._width))

    def _prose(self, inline: Any, *, is_apart: bool) -> None:
        if is_apart:
            self._apart()
        for line in self._text(inline).split("\n"):
            self._put(line)

    def _code(self, content: str) -> None:
        if self._marker:
            self._put("")
        self._apart()
        indent = " " * (self._indents[-1] + CODE_INDENT)
        for line in content.rstrip("\n").split("\n"):
            self.lines.append(f"{indent}{shown(line)}".rstrip())

    def _table(self, tokens: Iterator[Any]) -> None:
        headers, rows = list[str](), list[list[str]]()
        for token in tokens:
            if token.type == "table_close":
                break
            if token.type == "tr_open":
                rows.append([])
            elif token.type in {"th_open", "td_open"}:
                text = self._text(next(tokens)).replace("\n", " ")
                rows[-1].append(text)
                if token.type == "th_open":
                    if "right" in str(token.attrs.get("style", "")):
                        text = f">{text}"
                    headers.append(text)
        self._apart()
        indent = self._indents[-1]
        for line in self._laid_out(headers, rows[1:], self._width - indent):
            self.lines.append(f"{' ' * indent}{line}".rstrip())

    def _laid_out(
        self, headers: Sequence[str], rows: Sequence[Sequence[str]], width: int
    ) -> list[str]:
        from rich.console import Console  # noqa: PLC0415 - takes 0.1 s

        stream = io.StringIO()
        console = Console(
            file=stream,
            force_terminal=self._is_drawn,
            color_system="standard" if self._is_drawn else None,
        )
        for part, console.width in lines_of(headers, rows, width):
            console.print(part, crop=False, highlight=False)
        return stream.getvalue().splitlines()

    def _text(self, inline: Any) -> str:
        """Return one block of Markdown with stand-ins for bold and code, and no HTML."""
        parts, targets = list[str](), list[str]()
        for token in inline.children or ():
            kind = token.type
            if kind == "text":
                parts.append(legible(token.content))
            elif kind == "code_inline":
                # To be copied as it stands: ``legible`` would put commands into it.
                parts.append(self._marked_as_code(shown(token.content)))
            elif kind == "strong_open":
                parts.append(BOLD)
            elif kind == "strong_close":
                parts.append(END_BOLD)
            elif kind == "softbreak":
                parts.append(" ")
            elif kind == "hardbreak":
                parts.append("\n")
            elif kind == "image":
                parts.append(f"[picture: {shown(token.content)}]")
            elif kind == "link_open":
                targets.append(str(token.attrs.get("href", "")))
            elif kind == "link_close":
                parts.append(self._destination(targets.pop()))
        return "".join(parts)

    def _marked_as_code(self, code: str) -> str:
        return f"{CODE}{self._on_one_line(code)}{END_CODE}"

    def _on_one_line(self, words: str) -> str:
        if cell_width(words) > self._width - self._indents[-1] - LEAST_KEPT:
            return words
        return words.replace(" ", KEPT_SPACE)

    def _destination(self, target: str) -> str:
        """Return where a link leads, to be written after its text; "": to this page."""
        if "://" in target or target.startswith("mailto:"):
            where = shown(target)
        else:
            path = target.partition("#")[0]
            below_docs = posixpath.normpath(posixpath.join(posixpath.dirname(self._name), path))
            page = below_docs.removesuffix(".md")
            if not path or page == self._name:
                return ""
            where = f"in the source: {posixpath.normpath(posixpath.join('docs', below_docs))}"
            if page in self._names:
                where = command_of(page)
        if where in self._named:
            return ""
        self._named.add(where)
        return f" [{self._on_one_line(where)}]"


def _styled(lines: Sequence[str]) -> Iterator[str]:
    """Yield lines with their styles; none lasts beyond its line, where pagers would end it."""
    opened = list[str]()
    if os.environ.get("NO_COLOR"):  # no-color.org: bold is no colour
        lines = [line.replace(CODE, "`").replace(END_CODE, "`") for line in lines]
    for line in lines:
        parts = [_STYLES[style] for style in opened]
        for sign in line:
            if sign in _STYLES:
                opened.append(sign)
                parts.append(_STYLES[sign])
            elif sign in _ENDS:
                opened.remove(_ENDS[sign])
                parts.append(_NO_STYLE + "".join(_STYLES[style] for style in opened))
            elif sign == KEPT_SPACE:
                parts.append(" ")
            else:
                parts.append(sign)
        if opened:
            parts.append(_NO_STYLE)
        yield "".join(parts)
