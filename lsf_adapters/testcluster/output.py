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
    found = re.search(r"delimiter=(['\"]?)(.)\1", text) if is_ibm else None
    if found:
        delimiter = found[2]
        text = text[: found.start()] + text[found.end() :]
    columns = []
    for word in text.split():
        name, colon, width = word.partition(":")
        lower = name.lower()
        if (colon and not is_ibm) or lower not in widths:
            raise BadArgumentError(
                f"<{word.upper()}> in the format string is not a valid field name.", status=99
            )
        is_right = width.startswith("-")
        digits = width.removeprefix("-")
        columns.append(
            Column(
                name=lower,
                width=int(digits) if digits.isdigit() else widths[lower],
                is_right=is_right,
            )
        )
    return Format(columns=tuple(columns), delimiter=delimiter)


def table(rows: Sequence[Row], form: Format, *, is_ibm: bool, has_header: bool = True) -> str:
    """Return the rows as text; what a job does not have is "-"."""
    lines = []
    if has_header:
        lines.append([column.name.upper() for column in form.columns])
    lines += [[row[column.name] or "-" for column in form.columns] for row in rows]
    if not is_ibm:
        return "".join(" ".join(cells) + "\n" for cells in lines)
    if form.delimiter:
        return "".join(form.delimiter.join(cells) + "\n" for cells in lines)
    return "".join(
        " ".join(_padded(text, column) for text, column in zip(cells, form.columns, strict=True))
        + "\n"
        for cells in lines
    )


def _padded(text: str, column: Column) -> str:
    if len(text) > column.width:
        text = "*" + text[len(text) - column.width + 1 :]
    return text.rjust(column.width) if column.is_right else text.ljust(column.width)


def as_json(
    command: str, count_name: str, records: Sequence[Mapping[str, str]], *, is_ibm: bool
) -> str:
    """Return records in the layout of the dialect; all values are strings."""
    if is_ibm:
        head = {"COMMAND": command, count_name: len(records), "RECORDS": list(records)}
        text = json.dumps(head, indent=2, separators=(",", ":"), ensure_ascii=False)
        return text.replace('"RECORDS":[]', '"RECORDS":[\n\n  ]') + "\n"
    body = ", ".join(_tabbed(record) for record in records)
    return (
        f'{{\n\t"COMMAND":\t{_json(command)},\n\t"{count_name}":\t{len(records)},'
        f'\n\t"RECORDS":\t[{body}]\n}}\n'
    )


def _tabbed(record: Mapping[str, str]) -> str:
    lines = (f"\t\t\t{_json(name)}:\t{_json(value)}" for name, value in record.items())
    return "{\n" + ",\n".join(lines) + "\n\t\t}"


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
