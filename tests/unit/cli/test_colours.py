"""Trainers have the same colours everywhere, and no use of a node has one of theirs."""

from __future__ import annotations

import colorsys
import re
from importlib.resources import files

from bftrainer.model.colours import TRAINER_COLOURS, colour_of

ASSETS = files("bftrainer.api.page").joinpath("assets")
USES = ["ordinary", "idle", "reserve", "starting", "held", "leaving", "unavailable", "training"]


def hue_and_saturation(colour: str) -> tuple[float, float]:
    red, green, blue = (int(colour[i : i + 2], 16) / 255.0 for i in (1, 3, 5))
    hue, saturation, _ = colorsys.rgb_to_hsv(red, green, blue)
    return hue, saturation


def test_the_page_and_the_package_agree() -> None:
    [palette] = re.findall(r"const PALETTE = \[(.*?)\]", ASSETS.joinpath("picture.js").read_text())
    assert tuple(re.findall(r"#[0-9a-f]{6}", palette)) == TRAINER_COLOURS
    assert [colour_of(one) for one in ("t0", "t1", "t9")] == ["#0072b2", "#d55e00", "#d55e00"]


def test_no_use_has_a_colour_of_a_trainer() -> None:
    """Uses are greys; one is a dark red, which no trainer has."""
    style = ASSETS.joinpath("page.css").read_text()
    for use in USES:
        colours = re.findall(rf"--{use}: (#[0-9a-f]{{6}})", style)
        assert len(colours) == 2, "light and dark"
        for colour in colours:
            assert hue_and_saturation(colour)[1] < 0.35, use
    for colour in TRAINER_COLOURS:
        assert hue_and_saturation(colour)[1] > 0.35
        assert 0.04 < hue_and_saturation(colour)[0] < 0.94, "none is red"
