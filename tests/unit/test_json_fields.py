"""``scripts/write_json_fields.py``: the page of JSON fields has what documents have."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest
import write_json_fields

from bftrainer.api.documents import document
from bftrainer.model.reports import AccountLine, AccountReport

PAGE = write_json_fields.PAGE.read_text(encoding="utf-8")
CLASSES = [cls for _, cls, *_ in write_json_fields.DOCUMENTS]


def section(cls: type) -> list[str]:
    """Return the fields that the page names for a class."""
    return re.findall(r"^\| `(\w+)` \|", _section(cls), re.MULTILINE)


def _section(cls: type) -> str:
    return PAGE.partition(f"\n## {cls.__name__}\n")[2].partition("\n## ")[0]


def test_the_page_is_current() -> None:
    assert write_json_fields.page() == PAGE, "run: python scripts/write_json_fields.py"


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_class_has_the_fields_that_the_page_names(cls: type) -> None:
    """As the interpreter knows them, not as the source is read."""
    assert section(cls) == [field.name for field in dataclasses.fields(cls)]


def test_a_document_has_the_fields_that_the_page_names() -> None:
    line = AccountLine(user="ada", harvested_h=2.0)
    report = AccountReport(
        by=("user",), since="2026-11-24", until="2026-11-25", complete_since_s=0.0,
        counted_until_s=1.0, lines=(line,), total=line,
    )  # fmt: skip
    written = json.loads(json.dumps(document("account", report)))
    assert list(written) == ["schema", *section(AccountReport)]
    assert list(written["lines"][0]) == section(AccountLine)


def test_a_comment_is_a_meaning_and_a_type_is_words() -> None:
    assert "| `day` | text | of the site, as 2026-11-24 |" in _section(AccountLine)
    assert "| `energy_kwh` | number or null | estimate; null: the" in _section(AccountLine)
    assert "| `lines` | list of [AccountLine](#accountline) |" in _section(AccountReport)
