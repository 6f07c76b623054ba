"""Tables and JSON of the option -o, in both dialects, for jobs, hosts and queues."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lsf_adapters.testcluster.arguments import BadArgumentError

Row = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One field of a format, and its width."""

    name: str
    width: int
    is_right: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """The columns and the delimiter that -o asks for."""

    columns: tuple[Column, ...]
    delimiter: str = ""


def read_format(text: str, widths: Mapping[str, int], *, is_ibm: bool) -> Format:
    """Read the value of -o: names of fields, at IBM also widths and a delimiter.

    Raises:
        BadArgumentError: it names a field that does not exist.
    """
    delimiter = ""
    option = re.search(r"delimiter=(['\"]?)(.)\1", text)
    if option and is_ibm:
        delimiter = option[2]
        text = text[: option.start()] + text[option.end() :]
    columns = []
    for word in text.split():
        name, colon, width = word.partition(":")
        lower = name.lower()
        if (colon and not is_ibm) or lower not in widths:
            raise BadArgumentError(
                f"<{word.upper()}> in the format string is not a valid field name.", status=99
            )
        n_characters = widths[lower]
        digits = width.removeprefix("-")
        if digits.isdigit():
            n_characters = int(digits)
        is_right = width.startswith("-")
        columns.append(Column(name=lower, width=n_characters, is_right=is_right))
    return Format(columns=tuple(columns), delimiter=delimiter)


def table(rows: Sequence[Row], form: Format, *, is_ibm: bool, has_header: bool = True) -> str:
    """Return the rows as text; what a job does not have is "-"."""
    header = [column.name.upper() for column in form.columns]
    rows_of_cells = [_cells(row, form) for row in rows]
    if has_header:
        rows_of_cells.insert(0, header)
    if is_ibm and not form.delimiter:
        rows_of_cells = [list(map(_padded, cells, form.columns)) for cells in rows_of_cells]
    delimiter = form.delimiter or " "  # volclava has no other
    return "".join(delimiter.join(cells) + "\n" for cells in rows_of_cells)


def _cells(row: Row, form: Format) -> list[str]:
    return [row[column.name] or "-" for column in form.columns]


def records(rows: Sequence[Row], form: Format) -> list[Row]:
    """Return the columns of the format as JSON has them, with names in capitals."""
    return [_record(row, form) for row in rows]


def _record(row: Row, form: Format) -> Row:
    return {column.name.upper(): row[column.name] for column in form.columns}


def _padded(text: str, column: Column) -> str:
    if len(text) > column.width:
        text = "*" + text[len(text) - column.width + 1 :]
    if column.is_right:
        return text.rjust(column.width)
    return text.ljust(column.width)


def as_json(
    command: str, count_name: str, records: Sequence[Mapping[str, str]], *, is_ibm: bool
) -> str:
    """Return records in the layout of the dialect; all values are strings."""
    if is_ibm:
        head = {"COMMAND": command, count_name: len(records), "RECORDS": list(records)}
        text = json.dumps(head, indent=2, separators=(",", ":"), ensure_ascii=False)
        return text.replace('"RECORDS":[]', '"RECORDS":[\n\n  ]') + "\n"
    body = ", ".join(map(_tabbed, records))
    return (
        f'{{\n\t"COMMAND":\t{_json(command)},\n\t"{count_name}":\t{len(records)},'
        f'\n\t"RECORDS":\t[{body}]\n}}\n'
    )


def _tabbed(record: Mapping[str, str]) -> str:
    lines = (f"\t\t\t{_json(name)}:\t{_json(value)}" for name, value in record.items())
    return "{\n" + ",\n".join(lines) + "\n\t\t}"


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
