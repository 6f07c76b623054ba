"""Names, paths and errors of others in pages, pictures and metrics: text, whatever is in them."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bftrainer.daemon.metrics import MetricSample, MetricsRegistry
from bftrainer.lab import html
from bftrainer.lab.report_page import Picture, ReportPage, Section
from bftrainer.model.columns import TextTable, shown
from bftrainer.study.configurations import CategoricalParameter
from bftrainer.study.plots import KINDS, draw, material, new_canvas
from tests.unit.study.test_study_plots import EVENTS, PARAMETERS, row, summary

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</svg></title></table><iframe src=javascript:alert(1)>",
    "]]><!--",
    "&lt;script&gt;",
    "$\\frac{$ $\\nothing$",
    "a\nb\r\x1b[31m\u202e\u2028",
)
ACTIVE = {"script", "img", "iframe", "object", "embed", "link", "base", "form"}


class Seen(HTMLParser):
    """Elements and attributes of a page as a browser takes them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.handlers: list[str] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_page_shows_names_as_text(tmp_path: Path, name: str) -> None:
    """All places in which the pages of replays, comparisons, what-if and studies have texts."""
    canvas = new_canvas((2.0, 2.0), "")
    canvas.add_subplot().set_title(html.plain(name))
    drawing = html.picture(canvas, name, "key")
    report = ReportPage(
        title=name,  # in the head, too
        answers=(name,),
        more=(name,),
        warnings=(name,),
        sections=(
            Section(
                title=name,
                text=(name,),
                pictures=(Picture(drawing=drawing, title=name, caption=name),),
                tables=(TextTable(headers=(name, f">{name}"), rows=((name, "1"),)),),
                code=name,
                items=(name,),
            ),
        ),
        command=f"bftrainer simulate {name}",
    )
    page = tmp_path / "page.html"
    html.write_page(page, report)
    seen = Seen(page.read_text(encoding="utf-8"))
    assert not ACTIVE & set(seen.tags)
    assert not seen.handlers
    told = "".join(seen.texts).replace("\n", " ").replace("\r", " ")
    in_picture = shown(name) == name  # escaped there otherwise
    plain = name.replace("\n", " ").replace("\r", " ")
    assert told.count(plain) == 15 + in_picture
    assert "default-src 'none'" in page.read_text(encoding="utf-8")


def test_a_name_in_a_picture_cannot_name_another_part_of_the_page() -> None:
    """What looks like an attribute in a name stays a text; the drawing's own names are its own."""
    canvas = new_canvas((2.0, 2.0), "")
    name = 'id="x" url(#y) #000000'
    axes = canvas.add_subplot()
    axes.set_title(name)
    axes.plot([0, 1], [0, 1], marker="o")
    tree = ET.fromstring(html.picture(canvas, name, "week"))  # noqa: S314 - our own
    assert name in [element.text for element in tree.iter("text")]
    names = [element.attrib["id"] for element in tree.iter() if "id" in element.attrib]
    assert names
    assert len(set(names)) == len(names)
    assert all(one.startswith("week-") for one in names)
    links = [element.attrib["href"][1:] for element in tree.iter("use")]
    assert links
    assert set(links) <= set(names)
    assert "#000000" not in {
        part for e in tree.iter() for part in e.attrib.get("style", "").split()
    }


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_shows_names_as_text(tmp_path: Path, name: str, kind: str) -> None:
    word = name if name.isprintable() else "refused in a study: see studies' documents"
    choice = CategoricalParameter(type="categorical", choices=(word, "b"))
    rows = [row(n, 0.5 - n / 10, 1, **{name: (word, "b")[n % 2]}) for n in range(6)]
    parameters = {**PARAMETERS, name: choice}
    said = dataclasses.replace(
        summary(*rows),
        metric=name,
        name=name,
        unit=name,
        state=name,
        rule={"name": name, "most": 3},
    )
    file = tmp_path / "study.svg"
    draw(material(said, parameters, EVENTS), kind, file)
    tree = ET.fromstring(file.read_bytes())  # noqa: S314 - our own
    tags = {str(one.tag).rpartition("}")[2] for one in tree.iter()}
    assert not ACTIVE & tags
    assert not [a for one in tree.iter() for a in one.attrib if a.rpartition("}")[2][:2] == "on"]


@pytest.mark.parametrize("name", HOSTILE)
def test_metrics_quote_what_is_in_a_label(name: str) -> None:
    """Users and accounts may be labels (``metrics_by_user``): no name forges a series."""
    registry = MetricsRegistry()
    sample = MetricSample(
        name="bftrainer_x", meaning="X.", labels=("kind",), by_labels=(((name,), 1.0),)
    )
    registry.add(lambda: (sample,))
    found = list(text_string_to_metric_families(registry.text()))
    samples = [one for family in found for one in family.samples if one.name == "bftrainer_x"]
    assert [one.labels for one in samples] == [{"kind": name}]
    assert len(re.findall(r"^bftrainer_x", registry.text(), re.MULTILINE)) == 1
