"""Reports in a real Chromium: they fit a phone, take the dark of the system, load nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from bftrainer.lab import html, report
from bftrainer.lab.report_page import Picture, ReportPage, Section
from bftrainer.model.columns import TextTable
from bftrainer.study.plots import new_canvas
from tests.support.browser import chromium, complaints, resize

HOSTILE = '<img src=x onerror="document.title=1">"\'&\u202e</td><script>alert(1)</script>'
DARK, LIGHT = "rgb(13, 17, 23)", "rgb(255, 255, 255)"  # --ground of the live page
INK_OF_DARK = "rgb(230, 237, 243)"  # --ink


@pytest.fixture
def page(tmp_path: Path) -> Path:
    canvas = new_canvas((9.0, 4.0), "")
    axes = canvas.add_subplot()
    axes.plot([0, 1], [0, 1])
    axes.bar([0], [1], color=report.POOL_COLOUR)
    axes.set_title(html.plain(HOSTILE))
    picture = Picture(
        drawing=html.picture(canvas, HOSTILE, "week"), title=HOSTILE, caption="A line."
    )
    table = TextTable(
        headers=("POLICY", *(f">FIGURE {n}" for n in range(20)), "WHY"),
        rows=((HOSTILE, *("1,234.5 [1,000, 2,000]" for _ in range(20)), "A reason. " * 10),),
    )
    path = tmp_path / "page.html"
    html.write_page(
        path,
        ReportPage(
            title=HOSTILE,
            answers=("What the reader wanted to know.",),
            warnings=(HOSTILE,),
            sections=(Section(title=HOSTILE, pictures=(picture,), tables=(table,)),),
            command="bftrainer whatif --trace " + "x" * 300,
        ),
    )
    return path


def test_a_report_fits_a_phone_and_takes_the_dark(page: Path) -> None:
    with chromium() as driver:

        def style(selector: str, name: str) -> Any:
            script = f"return getComputedStyle(document.querySelector('{selector}')).{name}"
            return driver.execute_script(script)

        def show(scheme: str, media: str = "screen") -> None:
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            chosen = {"media": media, "features": features}
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", chosen)

        driver.get(page.as_uri())
        for width in (400, 1280):
            resize(driver, width, 900)
            wide = "return document.documentElement.scrollWidth"
            assert driver.execute_script(wide) <= width
        show("light")
        assert style("body", "backgroundColor") == LIGHT
        show("dark")
        assert style("body", "backgroundColor") == DARK
        assert style("figure svg", "fill") == INK_OF_DARK  # of its letters
        assert style("figure svg path", "fill") == DARK  # its ground
        idle = style('figure svg [style*="--idle"]', "fill")
        assert max(int(part) for part in re.findall(r"\d+", idle)) < 100  # nothing glares
        show("dark", "print")
        assert style("body", "backgroundColor") == LIGHT
        assert driver.title == HOSTILE
        assert driver.execute_script("return document.images.length") == 0
        first = "return document.querySelector('main').firstElementChild.className"
        assert driver.execute_script(first) == "answer"
        assert complaints(driver) == []
