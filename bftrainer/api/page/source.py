"""Where the page's data come from: a daemon's API, or its journal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bftrainer.api.client import Client
from bftrainer.api.documents import document, listing
from bftrainer.model.study import Seen
from bftrainer.model.timeline import TimelineView
from bftrainer.model.views import StatusView


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """A part that is asked for at most every so often."""

    every_s: float
    ask: Callable[[], Any]  # returns JSON


class PageSource(Protocol):
    """All calls block, raise ``BftError``, and are made in threads."""

    title: str
    is_live: bool

    def timeline(self, seen: Seen | None) -> TimelineView:
        """Return the uses of all nodes; with ``seen`` what is new, when something is."""

    def status(self) -> StatusView:
        """Return the daemon's state and its trainers."""

    def slow(self) -> dict[str, Slow]:
        """Return the further parts by name."""

    def explain(self, trainer_id: str) -> Any:
        """Return why a trainer has its size, as a document."""

    def study(self, name: str) -> Any:
        """Return a study's trials, as a document."""

    def log(self, trainer_id: str) -> Any:
        """Return the end of the log that its user wants to see first, as a document."""


def log_document(lines: Sequence[str]) -> Any:
    """Return the document of a log: which it is, and its last lines."""
    return document("log", {"name": lines[0] if lines else "", "lines": list(lines[1:])})


class LiveSource:
    """A daemon, with the rights of the user who asks."""

    is_live = True

    def __init__(
        self, client: Client, title: str, tail: Callable[[str], Sequence[str]] = lambda _: ()
    ) -> None:
        """``tail``: returns the name of a trainer's log, and its last lines."""
        self.title, self._client, self._tail = title, client, tail

    def timeline(self, seen: Seen | None) -> TimelineView:
        """Return the uses of all nodes; with ``seen`` what is new, when something is."""
        return self._client.timeline(seen)

    def status(self) -> StatusView:
        """Return the daemon's state and its trainers."""
        return self._client.status()

    def slow(self) -> dict[str, Slow]:
        """Return harm, harvest and studies."""
        client = self._client
        return {
            "harm": Slow(every_s=5.0, ask=lambda: document("harm", client.harm(None))),
            "studies": Slow(every_s=5.0, ask=lambda: listing("studies", client.studies())),
            **{
                f"harvest by {column}": Slow(every_s=30.0, ask=self._harvest(column))
                for column in ("day", "user", "account", "trainer")
            },
        }

    def _harvest(self, by: str) -> Callable[[], Any]:
        return lambda: document("account", self._client.account(by=(by,)))

    def explain(self, trainer_id: str) -> Any:
        """Return why a trainer has its size, as a document."""
        return document("explain", self._client.explain(trainer_id))

    def study(self, name: str) -> Any:
        """Return a study's trials, as a document."""
        return document("study", self._client.study(name))

    def log(self, trainer_id: str) -> Any:
        """Return the end of the log that its user wants to see first, as a document."""
        return log_document(self._tail(trainer_id))
