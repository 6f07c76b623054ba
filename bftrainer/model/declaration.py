"""Declarations of a trainer's fields: all that verbs, checks, studies and workers need of a field.

A field is declared where it stands (``model.trainer_spec``), by ``declared(…)``. Name, type and
default of its option are the field's. ``cli.declared_options`` makes options of submit of the
declarations, ``api.admission`` checks ranges and texts, ``api.privacy`` hides, ``study.verbs``
gives the best trial what it had, ``fleet.runtimes.base`` hands to workers, and
``scripts/write_json_fields.py`` writes what the field means. Pure.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

KEY: Final = "declaration"  # of the metadata of a field


class Disclosure(enum.Enum):
    """The part of a field that other users see."""

    ALL = enum.auto()
    NAMES = enum.auto()  # of variables, not their values
    PRESENCE = enum.auto()  # only whether there is something
    NOTHING = enum.auto()  # not even that
    UNUSED = enum.auto()  # its default, as if it had not been used


class InStudy(enum.Enum):
    """What studies do with the options of a field."""

    REPEATED = enum.auto()  # its trials have it; ``study best --script`` gives it as it is
    REWORDED = enum.auto()  # likewise, in words that ``study.verbs.results`` makes
    DECIDED = enum.auto()  # by the study, which refuses it among its options
    DROPPED = enum.auto()  # its trials have it, and the best is trained again without


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitOption:
    """An option of ``submit``, as its help shows it."""

    usage: str  # its names, then the metavar of its value: "-d, --delay SECONDS"
    help: str
    parameter: str = ""  # of the command; "": the name of the field
    # A converter of ``cli.option_values`` by its name; "": the field's type is taken.
    takes: str = ""
    choices: tuple[str, ...] = ()
    unset: Any = None  # what stands for an option that is not given, if the field is made of it
    repeats: bool = False  # it may be given several times
    # Its value is the field's. Else ``cli.spec`` makes the field of it.
    is_value: bool = True

    @property
    def flag(self) -> str:
        """Its longest name: "--delay"."""
        return self.usage.rpartition(", ")[2].partition(" ")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What is declared of a field beside its name, type and default."""

    options: tuple[SubmitOption, ...] = ()
    words: str = ""  # what errors call it; "": its first option
    # Of a number, both or none, in the field's unit; outside them is BFT-1016.
    minimum: float | None = None
    maximum: float | None = None
    longest_bytes: int | None = None  # of a text; longer, or with control characters: BFT-1007
    is_path: bool = False  # it must be absolute (BFT-1016)
    disclosure: Disclosure
    in_study: InStudy = InStudy.REPEATED
    is_tried: bool = False  # ``bftrainer try`` has its options, too
    worker: str = ""  # the field of ``WorkerConfig`` that has its value; "": none
    variable: str = ""  # of a worker's environment, with its value as text unless None; "": none
    is_decided_with: bool = True  # decisions may read it, and are stored with it
    # The release that added it, for people; "": any that may read a journal has it.
    since: str = ""

    @property
    def label(self) -> str:
        """What errors call the field."""
        return self.words or self.options[0].flag


def option(usage: str, text: str, **more: Any) -> SubmitOption:
    """Return an option as its help shows it; ``more`` as for SubmitOption."""
    return SubmitOption(usage=usage, help=text, **more)


def declared(*options: SubmitOption, default: Any, **parts: Any) -> Any:
    """Return a dataclass field with a default; ``parts`` as for Declaration."""
    return dataclasses.field(default=default, metadata=about(*options, **parts))


def about(*options: SubmitOption, **parts: Any) -> Mapping[str, Any]:
    """Return the metadata of a declared field; ``parts`` as for Declaration."""
    return {KEY: Declaration(options=options, **parts)}


@functools.cache
def declarations(cls: type) -> Mapping[str, Declaration]:
    """Return what is declared of the fields of a class, by name and in their order."""
    return {
        field.name: field.metadata[KEY]
        for field in dataclasses.fields(cls)
        if KEY in field.metadata
    }


@functools.cache
def defaults(cls: type) -> Mapping[str, Any]:
    """Return the defaults of a class by field; those that it makes anew are left out."""
    return {
        field.name: field.default
        for field in dataclasses.fields(cls)
        if field.default is not dataclasses.MISSING
    }


def added(body: Mapping[str, Any]) -> frozenset[str]:
    """Return the fields of a class that the release before may lack; ``body``: of the class."""
    names = set()
    for name, value in body.items():
        declaration = getattr(value, "metadata", {}).get(KEY)
        if declaration is not None and declaration.since:
            names.add(name)
    return frozenset(names)
