"""The layout of the lab's pages: self-contained HTML that loads nothing and has no scripts."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from bftrainer import __version__
from bftrainer.batch.traces.text import unreadable
from bftrainer.study.plots import matplotlib

OTHERWISE = "leave --report out"
HEAD = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; \
style-src 'unsafe-inline'">
<style>body{font:16px/1.45 sans-serif;max-width:62em;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:1em 0}td,th{padding:.15em .9em;border-bottom:1px solid #ddd;
text-align:right;vertical-align:top}td:first-child,th:first-child,td:last-child,th:last-child
{text-align:left}td:last-child{color:#666;font-size:85%}figure{margin:2em 1em 0 0}
img{max-width:100%}figcaption{font-size:90%}code,pre{font-size:85%;overflow-wrap:anywhere}
.row figure{display:inline-block;width:300px}svg text{font:10px sans-serif}</style>
"""


def write_page(path: Path, title: str, command: str, parts: Iterable[str]) -> None:
    """Write a page; ``parts`` are HTML, ``command`` repeats what is shown.

    Raises:
        TraceError: BFT-4002, no file can be there.
    """
    made = f"<p>Made by bftrainer {__version__} with</p>\n<p><code>{escape(command)}</code></p>"
    head = f"{HEAD}<title>{escape(title)}</title></head>\n<body><h1>{escape(title)}</h1>"
    write_file(path, "\n".join([head, *parts, made, "</body></html>\n"]).encode())


def write_file(path: Path, content: bytes) -> None:
    """Write a file.

    Raises:
        TraceError: BFT-4002, no file can be there.
    """
    try:
        path.write_bytes(content)
    except OSError as problem:
        raise unreadable(path, problem) from problem


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of texts; without headers if none says anything."""
    found = []
    for kind, row in [("th", headers), *(("td", row) for row in rows)]:
        cells = "".join(f"<{kind}>{escape(cell)}</{kind}>" for cell in row)
        found += [f"<tr>{cells}</tr>\n"] if any(row) else []
    return f"<table>{''.join(found)}</table>"


def items(lines: Iterable[str]) -> str:
    """Return a list of sentences."""
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def picture(figure: Any, about: str) -> str:
    """Return a matplotlib figure as an embedded picture."""
    data = base64.b64encode(saved(figure, "svg")).decode()
    return f'<img alt="{escape(about)}" src="data:image/svg+xml;base64,{data}">'


def saved(figure: Any, form: str) -> bytes:
    """Return the file of a figure without date or random names: equal figures give equal files."""
    stream = io.BytesIO()
    with matplotlib("", OTHERWISE).rc_context({"svg.hashsalt": "bftrainer"}):
        figure.savefig(stream, format=form, metadata={"Date": None} if form == "svg" else None)
    return stream.getvalue()
