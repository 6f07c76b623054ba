"""``scripts/draw_pictures.py``: pictures are those of their texts, which name what there is."""

from __future__ import annotations

import importlib
import re
from functools import reduce
from pathlib import Path
from xml.etree import ElementTree as ET

import draw_pictures
import pytest

from bftrainer.fleet.lifecycle import PILOT_CHANGES, PilotPhase

ROOT = Path(__file__).parents[3]
SOURCES = sorted(draw_pictures.PICTURES.glob("*.txt"))
PAGE = ROOT / "docs" / "how-it-works.md"


def missing(code: str) -> str:
    """Return what of ``module:Name`` does not exist; "": all of it does."""
    module_name, _, names = code.partition(":")
    try:
        whole: object = importlib.import_module(module_name)
        reduce(_part, names.split("."), whole)
    except (ImportError, AttributeError) as problem:
        return str(problem)
    return ""


def _part(whole: object, name: str) -> object:
    fields = getattr(whole, "model_fields", {})  # pydantic's are no attributes of the class
    return fields[name] if name in fields else getattr(whole, name)


def test_pictures_are_current() -> None:
    for path, text in draw_pictures.pictures():
        assert path.read_text(encoding="utf-8") == text, "run: python scripts/draw_pictures.py"


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_picture_names_what_the_code_has(source: Path) -> None:
    diagram = draw_pictures.read(source)
    codes = [line.code for line in diagram.lines if line.code]
    assert len(codes) > 5
    assert [problem for problem in map(missing, codes) if problem] == []


@pytest.mark.parametrize(
    "code",
    ["bftrainer.fleet.nowhere:Pilot", "bftrainer.fleet.lifecycle:PilotPhase.FORGOTTEN"],
)
def test_a_name_that_is_gone_would_be_seen(code: str) -> None:
    assert missing(code)


def test_the_life_of_a_pilot_has_all_phases_and_only_possible_changes() -> None:
    diagram = draw_pictures.read(draw_pictures.PICTURES / "pilot.txt")
    phases = {line.words[0]: PilotPhase(line.texts[0]) for line in diagram.of("box")}
    assert set(phases.values()) == set(PilotPhase)
    changes = [tuple(phases[word] for word in line.words) for line in diagram.of("arrow")]
    assert [(old, new) for old, new in changes if new not in PILOT_CHANGES[old]] == []


def test_every_picture_is_shown_where_it_is_explained() -> None:
    """And tells by itself what it shows, in both of the reader's colours."""
    page = PAGE.read_text(encoding="utf-8")
    for path, text in draw_pictures.pictures():
        assert f"](pictures/{path.name})" in page or path.stem == "recording"
        root = ET.fromstring(text)  # noqa: S314 - our own
        named = {child.get("id"): child.text for child in root}
        assert named["title"]
        assert named["about"]
        assert "prefers-color-scheme:dark" in text
        assert not re.search(r"https?://(?!www\.w3\.org)", text)


def test_a_line_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("kind: boxes\ncircle a 1 2 3 | A | b |\n")
    with pytest.raises(ValueError, match="circle"):
        draw_pictures.read(path)
