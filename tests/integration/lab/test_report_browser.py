"""Reports in a real Chromium: they fit a phone, take the dark of the system, load nothing."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from bftrainer.lab import html, report
from bftrainer.lab.report_page import Picture, ReportPage, Section
from bftrainer.lab.whatif import Assumptions, study
from bftrainer.lab.whatif import page as whatif_page
from bftrainer.lab.whatif.replays import Estimate
from bftrainer.model.columns import TextTable
from bftrainer.study.plots import new_canvas
from tests.simulate.test_whatif import blinking
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


# Elements that stand out of the page and are in no box that scrolls.
OUTSIDE = """
return [...document.querySelectorAll('body *')].filter(element =>
  !element.closest('.wide table') && element.getBoundingClientRect().right > innerWidth + 0.5
).map(element => element.tagName)
"""
# Boxes with more than they show, by what is in them.
SCROLLING = """
return [...document.querySelectorAll('.wide')].filter(box => box.scrollWidth > box.clientWidth)
  .map(box => [box.firstElementChild.tagName.toLowerCase(),
               getComputedStyle(box).backgroundImage != 'none'])
"""


@pytest.fixture
def week(tmp_path: Path) -> Path:
    """Return a page of ``whatif`` with figures as long as those of a large machine."""
    assumed = Assumptions(t_fwd_s=(60.0, 120.0), p_jmax=(1, 2), hold_down_s=(0.0,))
    case = study(blinking(4, n_nodes=2), assumed)
    (milp,) = case.expected
    figure = Estimate(value=8940.3, low=8761.2, high=9012.7)
    share = Estimate(value=0.9691, low=0.9534, high=0.9815)
    milp = dataclasses.replace(
        milp, utilization=share, harvested_share=share, node_hours_per_day=figure,
        reference_node_h_per_day=figure, samples_per_day=Estimate(value=2.3e10, low=2.2e10,
        high=2.4e10), completed=1234,
    )  # fmt: skip
    other = dataclasses.replace(milp, policy="equal-share", work_against=share)
    path = tmp_path / "week.html"
    found = dataclasses.replace(case, expected=(milp, other))
    whatif_page.write_page(path, found, "idle.npz", "bftrainer whatif")
    return path


def test_nothing_of_a_week_is_cut(week: Path) -> None:
    with chromium() as driver:
        driver.get(week.as_uri())
        resize(driver, 1280, 900)
        assert driver.execute_script(OUTSIDE) == []
        assert driver.execute_script(SCROLLING) == []  # all tables and pictures fit
        resize(driver, 400, 900)
        assert driver.execute_script(OUTSIDE) == []
        scrolling = driver.execute_script(SCROLLING)
        assert scrolling  # the widest table
        assert all(content == "table" and is_shown for content, is_shown in scrolling)
