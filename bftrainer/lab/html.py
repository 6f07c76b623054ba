"""The pages of the lab: one template, in the look of the live page, that loads nothing.

A ``ReportPage`` comes in, one HTML file goes out: the answer on top, then pictures, then tables.
Jinja2 escapes all texts; pictures are elements of the page (SVG), so that they take its colours,
light and dark. Its style is that of ``bftrainer/api/page/assets/page.css`` and what
``assets/report.css`` adds.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from bftrainer import __version__
from bftrainer.batch.traces.text import unreadable
from bftrainer.lab.report_page import ReportPage
from bftrainer.model.columns import shown
from bftrainer.study.plots import matplotlib

OTHERWISE = "leave --report out"  # what a user can do without matplotlib (BFT-4004)
# What matplotlib draws black, white and grey takes the colour that the page has for it.
_OF_PAGE = {
    "#000000": "var(--ink)",
    "#ffffff": "var(--ground)",
    "#b0b0b0": "var(--line)",
    "#bbbbbb": "var(--idle)",  # areas of idle nodes, and what is unused
}
_URL = re.compile(r"url\(#([^)]+)\)")  # an element of the same drawing, in an attribute
_NOT_XML = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_LEFT_OUT = frozenset({"metadata", "style", "title", "desc"})
_SIZE = frozenset({"width", "height", "version"})  # of the drawing: the page decides


def write_page(path: Path, report: ReportPage) -> None:
    """Write a page.

    Raises:
        TraceError: BFT-4002, no file can be there.
    """
    text = _template().render(report=report, style=_style(), version=__version__)
    write_file(path, text.encode())


def write_file(path: Path, content: bytes) -> None:
    """Write a file.

    Raises:
        TraceError: BFT-4002, no file can be there.
    """
    try:
        path.write_bytes(content)
    except OSError as problem:
        raise unreadable(path, problem) from problem


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("bftrainer.lab", "assets"), autoescape=True, undefined=StrictUndefined
    )
    environment.filters["interval_apart"] = _interval_apart
    environment.filters["trim_mark"] = lambda header: header.removeprefix(">")
    return environment.get_template("report.html")


def _interval_apart(cell: str) -> str:
    """Return a cell; where the table lacks width, an interval goes below its figure."""
    figure, bracket, ends = cell.partition(" [")
    if not (bracket and ends.endswith("]")):
        return cell
    parts = '<span class="figure"><span>{}</span> <span>[{}</span></span>'
    return Markup(parts).format(figure, ends)  # noqa: S704 - format escapes


@cache
def _style() -> Markup:
    """Return the style sheets: our own files, in which nobody's words are."""
    page = resources.files("bftrainer.api.page") / "assets" / "page.css"
    report = resources.files("bftrainer.lab") / "assets" / "report.css"
    return Markup(page.read_text("utf-8") + report.read_text("utf-8"))  # noqa: S704


def picture(figure: Any, about: str, key: str) -> Markup:
    """Return a matplotlib figure as an element of the page.

    Args:
        figure: to be drawn, on the page's ground.
        about: what it shows, for those who cannot see it.
        key: names the drawing's parts apart from those of the page's other drawings.
    """
    drawing = _NOT_XML.sub(b"", saved(figure, "svg"))
    root = ET.fromstring(drawing)  # noqa: S314 - matplotlib's, of a moment ago
    referenced = set[str]()
    for element in root.iter():
        referenced.update(_references_of(element))
    _simplify(root, referenced, key)
    root.attrib |= {"role": "img", "aria-label": shown(about)}
    return Markup(ET.tostring(root, encoding="unicode"))  # noqa: S704 - escaped by ElementTree


def _simplify(element: ET.Element, referenced: set[str], key: str) -> None:
    """Make an element, and those in it, plain SVG in HTML in the page's colours."""
    element.tag = _plain(element.tag)
    attributes: dict[str, str] = {}
    for name, value in element.attrib.items():
        plain = _plain(name)
        if plain == "id":
            if value in referenced:
                attributes["id"] = f"{key}-{value}"
        elif not (element.tag == "svg" and plain in _SIZE):
            attributes[plain] = _coloured(_renamed(plain, value, key))
    element.attrib.clear()
    element.attrib.update(attributes)
    for child in list(element):
        if _plain(child.tag) in _LEFT_OUT:
            element.remove(child)
        else:
            _simplify(child, referenced, key)


def _plain(name: str) -> str:
    """Return a name without its XML name space, which HTML does not write."""
    _, _, local_name = name.rpartition("}")
    return local_name


def _references_of(element: ET.Element) -> Iterator[str]:
    """Yield the elements that an element's attributes refer to."""
    for name, value in element.attrib.items():
        yield from _URL.findall(value)
        if _plain(name) == "href":
            yield value.removeprefix("#")


def _renamed(attribute: str, value: str, key: str) -> str:
    if attribute == "href":
        return f"#{key}-{value.removeprefix('#')}"
    return _URL.sub(rf"url(#{key}-\1)", value)


def _coloured(value: str) -> str:
    for colour, of_page in _OF_PAGE.items():
        value = value.replace(colour, of_page)
    return value


def saved(figure: Any, form: str) -> bytes:
    """Return the file of a figure without date or random names: equal figures give equal files."""
    stream = io.BytesIO()
    settings = {"svg.hashsalt": "bftrainer", "svg.fonttype": "none"}
    metadata: dict[str, None] | None = None
    if form == "svg":
        metadata = {"Date": None}
    with matplotlib("", OTHERWISE).rc_context(settings):
        figure.savefig(stream, format=form, metadata=metadata)
    return stream.getvalue()


def plain(words: object) -> str:
    """Return words of others as matplotlib shows them: no formula, no control sequence."""
    return shown(str(words)).replace("$", r"\$")
