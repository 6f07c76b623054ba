"""What LSF prints of its settings, for ``doctor`` and ``site_files``.

``SettingsReader`` runs the commands, ``facts`` parses their output and is pure. Sources:
bqueues(1), bparams(1), badmin(8), lsf.conf(5) of LSF 10.1 and volclava 2.2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bftrainer.batch.commands import why_failed
from bftrainer.model.hostlist import ParseError
from lsf_adapters import commands
from lsf_adapters.commands import LsfCommands
from lsf_adapters.dialect import Dialect, cluster_of
from lsf_adapters.queues import Queue, parameters, queues

BPARAMS_ALL = ("bparams", "-a")  # all parameters; of LSF 10.1 alone
SHOWCONF = ("badmin", "showconf", "mbd")
_NUMBER = re.compile(r"\d{1,9}(?!\d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LsfSettings:
    """The printed settings, and who asks."""

    lsid: str
    queues: str  # bqueues -l
    parameters: str  # bparams -l; of LSF 10.1: -a
    conf: str | None  # lsf.conf, or badmin showconf; None: not readable
    pilot_queue: str
    user: str  # owner of the pilots
    why_not_told: str = ""  # why lsb.events is not followed; "": it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The settings as data."""

    dialect: Dialect
    cluster: str
    queues: Mapping[str, Queue]
    pilot_queue: str
    parameters: Mapping[str, str]
    conf: Mapping[str, str] | None
    user: str
    why_not_told: str = ""

    @property
    def pilots(self) -> Queue | None:
        """The pilots' queue; None: there is none."""
        return self.queues.get(self.pilot_queue)

    @property
    def others(self) -> tuple[Queue, ...]:
        """All other queues."""
        return tuple(one for name, one in self.queues.items() if name != self.pilot_queue)

    def number(self, parameter: str) -> float | None:
        """Return a parameter of lsb.params; None: it has no number (``unlimited``, ``N``)."""
        return number_of(self.parameters.get(parameter, ""))

    def is_on(self, name: str) -> bool:
        """Whether a switch of lsf.conf is on."""
        return (self.conf or {}).get(name, "").strip('"').upper() in {"Y", "YES", "1"}


def number_of(text: str) -> float | None:
    """Return the number with which a value begins; None: there is none, or it means no limit."""
    found = _NUMBER.match(text)
    return float(found[0]) if found else None


def facts(settings: LsfSettings) -> Facts:
    """Parse the settings.

    Raises:
        ParseError: lsid or bqueues printed something unexpected.
    """
    return Facts(
        dialect=Dialect.of(settings.lsid),
        cluster=cluster_of(settings.lsid),
        queues=queues(settings.queues),
        pilot_queue=settings.pilot_queue,
        parameters=parameters(settings.parameters),
        conf=None if settings.conf is None else parameters(settings.conf),
        user=settings.user,
        why_not_told=settings.why_not_told,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsReader:
    """Where the settings are read, and for whom."""

    commands: LsfCommands
    pilot_queue: str
    user: str
    envdir: Path  # of lsf.conf

    def read(self, why_not_told: str = "") -> LsfSettings:
        """Run the commands.

        Raises:
            ParseError: one failed; the text is a sentence.
        """
        lsid = self._answer(commands.LSID)
        is_ibm = Dialect.of(lsid) is Dialect.IBM
        return LsfSettings(
            lsid=lsid,
            queues=self._answer(commands.BQUEUES),
            parameters=self._answer(BPARAMS_ALL if is_ibm else commands.BPARAMS),
            conf=self._conf(is_ibm=is_ibm),
            pilot_queue=self.pilot_queue,
            user=self.user,
            why_not_told=why_not_told,
        )

    def _answer(self, argv: tuple[str, ...]) -> str:
        done = self.commands.query(argv)
        if not done.is_ok:
            raise ParseError(why_failed(done))
        return done.stdout

    def _conf(self, *, is_ibm: bool) -> str | None:
        """Return lsf.conf, which all users of LSF can read as a rule; else what badmin tells."""
        try:
            return (self.envdir / "lsf.conf").read_text(errors="replace")
        except OSError:
            shown = self.commands.query(SHOWCONF) if is_ibm else None
        return shown.stdout if shown is not None and shown.is_ok else None
