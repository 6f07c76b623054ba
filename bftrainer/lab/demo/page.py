"""The page of a demonstration or a try: live while its daemon is, then as it was at its end."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from bftrainer.api.client import Client
from bftrainer.api.page.door import tunnel
from bftrainer.api.page.saved import SavedSource, write_page
from bftrainer.api.page.server import page_of
from bftrainer.api.page.source import LiveSource, PageSource, Slow
from bftrainer.model.errors import BftError
from bftrainer.model.study import Seen
from bftrainer.model.timeline import TimelineView
from bftrainer.model.views import StatusView

TITLE: Final = "bftrainer on this machine"
FILE_NAME: Final = "page.html"
Say = Callable[[str], object]


class EndingSource:
    """A source that is followed by what it told last."""

    title = TITLE

    def __init__(self, live: PageSource) -> None:
        self._source, self.is_live = live, live.is_live

    def end(self) -> SavedSource:
        """Ask for everything once more, and tell that from now on."""
        saved = SavedSource(self._source)
        self._source, self.is_live = saved, False
        return saved

    def timeline(self, seen: Seen | None) -> TimelineView:
        """Return the uses of all nodes; with ``seen`` what is new, when something is."""
        return self._source.timeline(seen)

    def status(self) -> StatusView:
        """Return the state and the trainers."""
        return self._source.status()

    def slow(self) -> dict[str, Slow]:
        """Return the further parts by name."""
        return self._source.slow()

    def explain(self, trainer_id: str) -> Any:
        """Return why a trainer has its size, as a document."""
        return self._source.explain(trainer_id)

    def study(self, name: str) -> Any:
        """Return a study's trials, as a document."""
        return self._source.study(name)

    def log(self, trainer_id: str) -> Any:
        """Return the end of a trainer's log, as a document."""
        return self._source.log(trainer_id)


class RunPage(contextlib.AbstractContextManager["RunPage"]):
    """The page of one run, served until the context ends."""

    def __init__(
        self,
        say: Say,
        file: Path | None = None,
        *,
        is_served: bool = False,
        tail: Callable[[Client, str], Sequence[str]] = lambda _client, _trainer_id: (),
    ) -> None:
        """Prepare it.

        Args:
            say: prints a line.
            file: the page at the end; None: not kept.
            is_served: to browsers, too.
            tail: returns the name of a trainer's log and its last lines.
        """
        self._say, self._file, self._is_served, self._tail = say, file, is_served, tail
        self._served = contextlib.ExitStack()
        self._link = ""

    def __exit__(self, *_: object) -> None:
        """Serve it no more."""
        self._served.close()

    @contextlib.contextmanager
    def of(self, client: Client) -> Iterator[None]:
        """Show a daemon while the context lasts, then what it told at its end."""
        source = EndingSource(LiveSource(client, TITLE, partial(self._tail, client)))
        if self._is_served:
            self._served.enter_context(page_of(source, self._offered))
        try:
            yield
        except Exception:  # somebody will want to see how it failed
            self._keep(source)
            raise
        except BaseException:  # interrupted: nobody will look
            self._link = ""
            raise
        self._keep(source)

    def _keep(self, source: EndingSource) -> None:
        try:
            saved = source.end()
            if self._file is not None:
                write_page(saved, self._file)
                self._say(f"The page is kept: {self._file}")
        except BftError as problem:  # nothing that the run depends on
            self._say(f"The page is not kept: {problem.code}: {problem.cause}")

    def wait(self) -> None:
        """Go on serving it until Enter, if it is served to somebody at a terminal."""
        if not self._link or not sys.stdin.isatty():
            return
        self._say(f"The page stays until you press Enter. For another browser: {self._link}")
        with contextlib.suppress(KeyboardInterrupt):
            sys.stdin.readline()
        self._served.close()

    def _offered(self, link: str) -> None:
        """Say the first link; later ones would come into what is being drawn."""
        if not self._link:
            port = int(link.partition("#")[0].rstrip("/").rpartition(":")[2])
            if os.environ.get("SSH_CONNECTION"):
                for line in tunnel(port):
                    self._say(line)
            self._say(f"Open {link}")
        self._link = link
