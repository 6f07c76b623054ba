"""``scripts/write_json_fields.py``: the page of JSON fields has what documents have."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest
import write_json_fields

from bftrainer.api.documents import document
from bftrainer.batch.traces.fragments import make_fragments
from bftrainer.batch.traces.statistics import TraceStatistics, as_document
from bftrainer.lab.whatif import Assumptions, study
from bftrainer.lab.whatif import as_document as whatif_document
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


def test_every_field_has_a_meaning() -> None:
    without = [
        f"{cls.__name__}.{name}"
        for cls in write_json_fields.documented()
        for name, _, meaning in write_json_fields.fields(cls)
        if not meaning.strip()
    ]
    assert without == [], "write a comment beside it, or a line in scripts/json_meanings.ini"
    assert not re.findall(r"\|\s*\|$", PAGE, re.MULTILINE)


def test_a_meaning_is_written_once() -> None:
    """What ``json_meanings.ini`` has is of a field that is there and has no comment."""
    sections = write_json_fields.meanings()
    used = {
        (cls.__name__, name)
        for cls in write_json_fields.documented()
        for name, _, meaning in write_json_fields.fields(cls)
        if meaning == sections.get(cls.__name__, {}).get(name)
    }
    assert used == {(cls, name) for cls, names in sections.items() for name in names}


def test_a_composed_document_has_the_fields_that_the_page_names() -> None:
    trace = make_fragments(names=["a"], node=[0], start_s=[0], end_s=[10], span_s=(0.0, 20.0))
    (line,) = re.findall(r"^\| `bftrainer/trace-info/1` .*$", PAGE, re.MULTILINE)
    named = set(re.findall(r"`(\w+)`", line.rpartition(" | ")[2]))
    assert set(as_document(trace, "x")) == {"schema", *named, *section(TraceStatistics)}
    (line,) = re.findall(r"^\| `bftrainer/whatif/1` .*$", PAGE, re.MULTILINE)
    named = set(re.findall(r"`(\w+)`", line.rpartition(" | ")[2]))
    found = study(trace, Assumptions(t_fwd_s=(120.0,), p_jmax=(1,), hold_down_s=(0.0,)))
    assert set(whatif_document(found, "x")) == {"schema", *named}


def test_no_two_documents_have_one_name() -> None:
    names = [name for name, *_ in (*write_json_fields.DOCUMENTS, *write_json_fields.COMPOSED)]
    assert len(set(names)) == len(names)


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
