"""A report as its readers get it: the answer, then sentences, pictures and tables. Pure.

``lab.html`` makes a page of it and ``lab.verbs.report_text`` prints it, so that both say the same
under the same headings. A terminal has no pictures: it gets ``Section.drawn``.
"""

from __future__ import annotations

from dataclasses import dataclass

from bftrainer.model.columns import TextTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A drawing with its words."""

    drawing: str  # an element of the page; see ``bftrainer.lab.html.picture``
    title: str
    caption: str
    key: str = ""  # by which links find it


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a report: sentences, then pictures, then tables, then what is left to say."""

    title: str = ""
    text: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()
    is_small: bool = False  # the pictures stand side by side
    drawn: tuple[str, ...] = ()  # lines that stand for pictures where there are none
    tables: tuple[TextTable, ...] = ()
    code: str = ""
    items: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPage:
    """One report."""

    title: str
    answers: tuple[str, ...]  # a sentence each: what the reader wanted to know
    more: tuple[str, ...] = ()  # what else to know before anything else
    warnings: tuple[str, ...] = ()
    sections: tuple[Section, ...]
    command: str = ""  # repeats what is shown
