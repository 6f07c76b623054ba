"""The page as it was: of a daemon that has ended, and as one file that opens without a server."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import time
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from bftrainer.api.page.source import PageSource, Slow, log_document
from bftrainer.api.page.stream import Looks, user
from bftrainer.ground.fence import write_whole
from bftrainer.model.errors import BftError, ExitCode, UsageError, exit_code_of
from bftrainer.model.study import Seen
from bftrainer.model.timeline import TimelineView
from bftrainer.model.views import StatusView

NOTHING_NEW_S: Final = 10.0  # between two looks of a browser at what does not change
MOST_EXPLAINED: Final = 200  # trainers: as many as the page shows
SCRIPTS: Final = (
    "picture.js",
    "curves.js",
    "page.js",
)  # in the order in which they need each other
_IMPORT, _EXPORT = (
    re.compile(r"^import .*?;\n", re.MULTILINE | re.DOTALL),
    re.compile(r"^export ", re.MULTILINE),
)
_LINKS: Final = re.compile(r'<link rel="stylesheet".*?>\n<script type="module" src.*?</script>\n')


class SavedSource:
    """What another source told last."""

    is_live = False

    def __init__(self, source: PageSource) -> None:
        """Ask for everything.

        Raises:
            BftError: the source does not answer.
        """
        self.title = source.title
        self._timeline, self._status = source.timeline(None), source.status()
        self._slow = {name: part.ask() for name, part in source.slow().items()}
        trainer_ids = [view.record.trainer_id for view in self._status.trainers]
        self._explained = {i: source.explain(i) for i in trainer_ids[-MOST_EXPLAINED:]}
        studies = self._slow.get("studies", {}).get("studies", ())
        self._studies = {study["study"]: source.study(study["study"]) for study in studies}
        self._logs = {i: _log_of(source, i) for i in self._explained}

    def timeline(self, seen: Seen | None) -> TimelineView:
        """Return the uses of all nodes; nothing is ever new."""
        if seen is None:
            return self._timeline
        time.sleep(NOTHING_NEW_S)
        return replace(self._timeline, base=(), changes=(), is_whole=False)

    def status(self) -> StatusView:
        """Return the state as it was."""
        return self._status

    def slow(self) -> dict[str, Slow]:
        """Return the further parts as they were."""
        return {name: _never_again(part) for name, part in self._slow.items()}

    def explain(self, trainer_id: str) -> Any:
        """Return why a trainer had its size, as a document."""
        return _of(self._explained, trainer_id)

    def study(self, name: str) -> Any:
        """Return a study's trials as they were, as a document."""
        return _of(self._studies, name)

    def log(self, trainer_id: str) -> Any:
        """Return the end of a trainer's log as it was, as a document."""
        return _of(self._logs, trainer_id)

    @property
    def answers(self) -> dict[str, Any]:
        """What a browser can ask for, by path."""
        explained = {f"explain/{name}": text for name, text in self._explained.items()}
        logs = {f"log/{name}": text for name, text in self._logs.items()}
        studies = {f"study/{name}": text for name, text in self._studies.items()}
        return explained | logs | studies


def _log_of(source: PageSource, trainer_id: str) -> Any:
    try:
        return source.log(trainer_id)
    except BftError as problem:  # another user's, or on another host's disk
        return log_document([problem.cause])


def _never_again(part: Any) -> Slow:
    return Slow(every_s=float("inf"), ask=lambda: part)


def _of(documents: dict[str, Any], name: str) -> Any:
    if name not in documents:
        cause = f"There is no {name} on this page."
        raise UsageError("BFT-1004", cause, "Choose another.", exit_code=ExitCode.NOT_FOUND)
    return documents[name]


def as_html(saved: SavedSource) -> str:
    """Return the page with its code and data as one file.

    Only what is in the file runs in it: its own hashes are all that its policy admits.
    """
    data = {
        "hello": {"title": saved.title, "is_live": False, "user": user()},
        "news": Looks(saved).next(),
        "answers": saved.answers,
    }
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    style = _asset("page.css")
    script = "\n".join(_EXPORT.sub("", _IMPORT.sub("", _asset(name))) for name in SCRIPTS)
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<style>{style}</style>\n"
        f'<script type="application/json" id="saved">{text}</script>\n'
        f'<script type="module">{script}</script>\n'
    )
    page = _LINKS.sub(lambda _: head, _asset("page.html"))
    title = f"<title>{html.escape(saved.title)}</title>"
    return page.replace("<title>bftrainer</title>", title)


def _asset(name: str) -> str:
    return files("bftrainer.api.page").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def write_page(saved: SavedSource, file: Path) -> None:
    """Write the page as one file.

    Raises:
        BftError: BFT-1460, it cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, (as_html(saved).encode(),))
    except OSError as problem:
        raise BftError(
            "BFT-1460",
            f"The page cannot be written to {file} ({problem.strerror}).",
            "Name a file in a directory that is yours.",
            exit_code=exit_code_of(problem),
        ) from problem
