"""Tables of findings about a site's settings, for ``BatchSystem.findings``. Pure.

A table is text: a row has code, weight and name, then the setting, its cost and, after an arrow,
the remedy. Rows are divided by empty lines; a cost may take several lines. An adapter says by name
which rows hold, and with which values for the names in braces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from bftrainer.model.site import Finding, Weight

Values = Mapping[str, object]
Holds = Mapping[str, bool | Iterable[Values]]  # by row: whether, or with each of these values
_NONE: Mapping[str, str] = MappingProxyType({})
WEIGHT = "weight"  # among the values: instead of the row's


@dataclass(frozen=True, slots=True)
class _Row:
    code: str
    weight: str
    name: str
    setting: str
    cost: str
    remedy: str


class FindingTable:
    """The rows of one batch system."""

    def __init__(
        self, text: str, *, command: str = "", commands: Mapping[str, str] = _NONE
    ) -> None:
        """Read the rows.

        Args:
            text: the table.
            command: what is typed next, with names in braces; "": that which explains the code.
            commands: the same by code, where it is another.
        """
        self._rows = list(map(_row, text.strip().split("\n\n")))
        self._command, self._commands = command, commands

    def findings(self, holds: Holds, values: Values) -> tuple[Finding, ...]:
        """Return the findings, worst first.

        Args:
            holds: the rows that hold; rows that it does not name do not.
            values: for names in braces, in all rows.
        """
        findings: list[Finding] = []
        for row in self._rows:
            cases = _cases(holds.get(row.name, False))
            findings += [self._finding(row, values, case) for case in cases]
        order = list(Weight)
        return tuple(sorted(findings, key=lambda f: (order.index(f.weight), f.code)))

    def _finding(self, row: _Row, values: Values, case: Values) -> Finding:
        command = self._commands.get(row.code, self._command)
        return Finding(
            code=row.code,
            weight=Weight(str(case.get(WEIGHT, row.weight))),
            setting=row.setting.format(**values, **case),
            cost=row.cost.format(**values, **case),
            remedy=row.remedy.format(**values, **case),
            command=command.format(**values, **case),
        )


def _row(block: str) -> _Row:
    (head, setting, *cost), (remedy,) = (
        part.split("\n") for part in block.replace("\n-> ", "\0").split("\0")
    )
    code, weight, name = head.split()
    return _Row(code, weight, name, setting, " ".join(cost), remedy)


def _cases(holds: bool | Iterable[Values]) -> Iterable[Values]:
    """Return the own values of each time that a row holds."""
    if isinstance(holds, bool):
        return ({},) * holds
    return holds
