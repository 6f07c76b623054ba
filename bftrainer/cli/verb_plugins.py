"""Verbs that other rooms and packages add: their tables are entry points ``bftrainer.verbs``.

A table imports nothing, so that the help stays fast. The verbs of ``main`` need no table, and where
they alone are used none is read: that takes as long as half of all else that a verb needs.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from functools import cache
from typing import NamedTuple

import click

GROUP = "bftrainer.verbs"
OTHERS = "Verbs of other packages"  # title of verbs that name none


class AddedVerb(NamedTuple):
    """A row of a table; the table's key is what is typed after ``bftrainer``: "policy test"."""

    place: str  # module:command
    text: str  # for --help
    title: str = OTHERS  # the part of the help that lists it
    precedes: str = ""  # the verb before which it is listed; "": after all


def command_at(place: str) -> click.Command:
    """Import a command from its module:attribute."""
    module_name, _, attribute = place.partition(":")
    command = getattr(importlib.import_module(module_name), attribute)
    if not isinstance(command, click.Command):
        raise TypeError(f"{place} is not a command")
    return command


def added_verbs(path: str) -> Mapping[str, AddedVerb]:
    """Return the verbs that are added to a group by its path; "": to ``bftrainer`` itself.

    Raises:
        UsageError: BFT-1059, a table cannot be loaded.
    """
    verbs: dict[str, AddedVerb] = {}
    for words, row in _rows().items():
        group, _, verb = words.rpartition(" ")
        if group == path:
            verbs[verb] = row
    return verbs


def is_out_of_date() -> bool:
    """Return whether the installation declares no table: it is older than this code."""
    from bftrainer.model.plugins import plugin_names  # noqa: PLC0415 - 50 ms

    return not plugin_names(GROUP)


@cache
def _rows() -> Mapping[str, AddedVerb]:
    from bftrainer.model.plugins import load_plugin, plugin_names  # noqa: PLC0415 - 50 ms

    rows: dict[str, AddedVerb] = {}
    for name in plugin_names(GROUP):
        table = load_plugin(GROUP, name, what="table of verbs", code="BFT-1059")
        for words, row in table.items():
            rows.setdefault(words, AddedVerb(*row))
    return rows


def in_order(verbs: Iterable[str], added: Mapping[str, AddedVerb]) -> list[str]:
    """Return the verbs of a list with those that are added, each before the one that it names."""
    names = list(verbs)
    for name, row in added.items():
        if row.precedes in names:
            names.insert(names.index(row.precedes), name)
        else:
            names.append(name)
    return names
