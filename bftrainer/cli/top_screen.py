"""The screens of ``bftrainer top``: one follows a daemon, one goes through a journal.

Threads wait for the daemon, the screen for nothing. A daemon that is away is named until it is
back.
"""

from __future__ import annotations

import asyncio
import signal
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, Final, TypeVar

from rich.text import Text
from textual import on, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.widgets import DataTable, Footer, Input, Static

from bftrainer.api.client import Client
from bftrainer.api.documents import view_of
from bftrainer.api.page.source import PageSource
from bftrainer.api.page.stream import AGAIN_S, LEAST_S
from bftrainer.cli.logs import ASK_INTERVAL_S, tail
from bftrainer.cli.output import clock
from bftrainer.cli.sparkline import curve_lines
from bftrainer.cli.status import explained, recent, row_of
from bftrainer.cli.top_panes import Dialog, NodeMap, TrainerTable, cells_of, legend
from bftrainer.cli.top_summary import NAMES, sorted_views, summary
from bftrainer.fleet.background import in_thread
from bftrainer.model.columns import shown
from bftrainer.model.errors import BftError
from bftrainer.model.progress import ProgressCurve, joined
from bftrainer.model.study import Seen
from bftrainer.model.timeline import TimelineView, pieced
from bftrainer.model.trainer import TrainerChange
from bftrainer.model.views import Explanation, StatusView, TrainerView

T = TypeVar("T")
EXPLAIN, LOG = "explain", "log"
_TITLES: Final = {
    EXPLAIN: f"[reverse] {EXPLAIN} [/] {LOG} ",
    LOG: f" {EXPLAIN} [reverse] {LOG} [/]",
}
TICK_S: Final = 0.2
PLAY_S: Final = 60.0  # that a journal takes
_LOG_LINES: Final = 100
_TROUBLES: Final = 3  # lines of failures and the like
_BAD: Final = "bold #ff5f6d"
_KEYS: Final = """\
h hold, r release, c cancel the chosen trainer, after a question
e why it has its size, l the end of its log; tab goes there, to scroll
/ show trainers with a text only, escape shows all
left, right (with shift: 20 at a time), space: through a journal
? this text, q ends

T training   S starting   H held   L leaving   U not heard
. idle   r reserve of the queue   # ordinary job   x unavailable
Nodes of the chosen trainer are reversed; T and S have its colour, as on the page.

LIMITS nodes it may have   EPOCH passes over its samples   METRIC run.report's last
DONE part of its training   LEFT time that the rest takes at its planned size"""
# What is asked, and what is done then.
_CHANGES: Final[dict[str, tuple[str, Callable[[Client, str], TrainerView]]]] = {
    "hold": (
        "Hold {}? It leaves its nodes after a checkpoint.",
        lambda client, trainer_id: client.change(trainer_id, TrainerChange(is_held=True)),
    ),
    "release": (
        "Release {}? It may have nodes again.",
        lambda client, trainer_id: client.change(trainer_id, TrainerChange(is_held=False)),
    ),
    "cancel": ("Cancel {}? It ends after a last checkpoint.", Client.cancel),
}


class TopScreen(App[None]):
    """Nodes, trainers and one of these in detail."""

    CSS = """
    #head, #away, #legend, #nodes { padding: 0 1; }
    #head { max-height: 8; }
    #away { display: none; background: $error; color: $text; }
    #nodes { height: auto; max-height: 60%; }
    NodeMap { height: auto; }
    #below { height: 1fr; }
    TrainerTable { height: 1fr; min-height: 3; }
    #detail { height: 1fr; border-top: solid $primary; padding: 0 1; }
    #filter { display: none; height: 1; border: none; }
    .-wide #below { layout: horizontal; }
    .-wide TrainerTable { width: 3fr; }
    .-wide #detail { width: 2fr; height: 100%; }
    .-short #head { max-height: 3; }
    .-short #legend { display: none; }
    .-short #nodes { max-height: 2; }
    Dialog { align: center middle; }
    #box { width: auto; max-width: 90%; height: auto; border: round $accent; padding: 1 2; }
    """
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (160, "-wide")]  # noqa: RUF012 - Textual's
    VERTICAL_BREAKPOINTS = [(0, "-short"), (18, "-tall")]  # noqa: RUF012
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        ("e", f"tell('{EXPLAIN}')", "Explain"),
        ("l", f"tell('{LOG}')", "Log"),
        ("slash", "filter", "Filter"),
        Binding("escape", "unfilter", show=False),
        ("question_mark", "keys", "Help"),
        ("q,ctrl+c", "quit", "Quit"),
    ]

    def __init__(self, source: PageSource) -> None:
        super().__init__()
        self.animation_level = "none"
        self._source = source
        self._uses: list[tuple[int, str]] = []
        self._views: dict[str, TrainerView] = {}
        self._curves: dict[str, ProgressCurve] = {}
        self._needle, self._tab = "", EXPLAIN
        self._is_wanted = asyncio.Event()  # a detail of another trainer, or a newer one

    def compose(self) -> ComposeResult:
        """Make the panes."""
        yield Static(id="head")
        yield Static(id="away")
        yield Static(id="legend")
        with VerticalScroll(id="nodes", can_focus=False):
            yield NodeMap()
        with Container(id="below"):
            yield TrainerTable()
            with VerticalScroll(id="detail"):
                yield Static(id="text")
        yield Input(placeholder="text in the rows to show; escape shows all", id="filter")
        yield Footer()

    def on_mount(self) -> None:
        """Begin."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.exit)
        self.query_one(TrainerTable).focus()
        self.action_tell(EXPLAIN)
        self._tell()
        self.set_interval(ASK_INTERVAL_S, self._look_at_log)  # which grows without news

    def _look_at_log(self) -> None:
        if self._tab == LOG:
            self._is_wanted.set()

    def show(
        self, head: Text, trainers: Iterable[TrainerView], uses: list[tuple[int, str]]
    ) -> None:
        """Draw what is not there already."""
        views = sorted_views(recent(tuple(trainers), show_all=False))
        self._views = {view.record.trainer_id: view for view in views}
        self._uses = uses
        self._set("#head", head)
        self._set("#legend", legend(uses))
        self._draw_rows()

    def _set(self, selector: str, text: Text) -> None:
        pane = self.query_one(selector, Static)
        if pane.content != text:
            pane.update(text)

    def _draw_rows(self) -> None:
        now_s = time.time()
        rows = dict[str, Sequence[str]]()
        for trainer_id, view in self._views.items():
            row = row_of(view, now_s, NAMES)
            if self._needle in "\n".join(row).lower():
                rows[trainer_id] = row
        self.query_one(TrainerTable).show(rows)
        self._on_chosen()

    @on(DataTable.RowHighlighted)
    def _on_chosen(self) -> None:
        trainer_id = self.query_one(TrainerTable).chosen
        self.query_one(NodeMap).show(cells_of(self._uses, trainer_id))
        self._is_wanted.set()

    @work
    async def _tell(self) -> None:
        """Show the detail of the chosen trainer whenever it is wanted."""
        while await self._is_wanted.wait() and self.is_running:
            self._is_wanted.clear()
            choice = trainer_id, tab = self.query_one(TrainerTable).chosen, self._tab
            text = Text("no trainer is chosen")
            if trainer_id is not None:
                text = await self._beside(partial(self._detail, trainer_id, tab))
            if choice == (self.query_one(TrainerTable).chosen, self._tab):
                self._set("#text", text)

    async def _beside(self, work: Callable[[], T]) -> T:
        """Return the result of blocking work, if the panes are still there then."""
        try:
            return await in_thread(work, "top")
        finally:
            if not self.is_running:
                raise asyncio.CancelledError

    def _detail(self, trainer_id: str, tab: str) -> Text:
        try:
            if tab == LOG:
                lines: Sequence[str] = self.log_of(trainer_id)
            else:
                explanation = view_of(Explanation, EXPLAIN, self._source.explain(trainer_id))
                lines = (*self._curve_lines(trainer_id), *explained(explanation))
        except BftError as error:
            lines = (f"error {error.code}: {error.cause}", f"next: {error.next_step}")
        return Text("\n".join(map(shown, lines)))

    def _take(self, timeline: TimelineView) -> None:
        """Add what is new of curves to those that are there."""
        for news in timeline.curves:
            self._curves[news.trainer_id] = joined(self._curves.get(news.trainer_id), news)

    def _curve_lines(self, trainer_id: str) -> tuple[str, ...]:
        view = self._views.get(trainer_id)
        if view is None:
            return curve_lines(self._curves.get(trainer_id), ())
        return curve_lines(self._curves.get(trainer_id), view.record.reports)

    def log_of(self, trainer_id: str) -> Sequence[str]:
        """Return the end of a trainer's log; blocks."""
        return (f"'bftrainer logs {trainer_id}' shows it, if there is a daemon.",)

    def action_tell(self, tab: str) -> None:
        """Show the explanation or the log."""
        self._tab, pane = tab, self.query_one("#detail")
        pane.border_title = _TITLES[tab]
        pane.anchor(tab == LOG)  # new lines of a log are at its end
        if tab == EXPLAIN:
            pane.scroll_home(animate=False)
        self._is_wanted.set()

    def action_filter(self) -> None:
        """Ask for a text."""
        self.query_one("#filter").display = True
        self.query_one("#filter").focus()

    def action_unfilter(self) -> None:
        """Show all trainers."""
        self.query_one("#filter", Input).value = ""
        self._on_submitted()

    @on(Input.Changed)
    def _on_text(self, event: Input.Changed) -> None:
        self._needle = event.value.lower()
        self._draw_rows()

    @on(Input.Submitted)
    def _on_submitted(self) -> None:
        box = self.query_one("#filter", Input)
        box.display = bool(box.value)
        self.query_one(TrainerTable).focus()

    def action_keys(self) -> None:
        """Name the keys."""
        self.push_screen(Dialog(_KEYS))


class LiveScreen(TopScreen, inherit_bindings=False):
    """Follows a daemon, and changes its trainers."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *((verb[0], f"change('{verb}')", verb.capitalize()) for verb in _CHANGES),
        *TopScreen.BINDINGS,  # further right at the foot of the screen
    ]

    def __init__(self, source: PageSource, client: Client) -> None:
        super().__init__(source)
        self._daemon = client
        self._harm: dict[str, Any] = {}
        self._harm_s = 0.0  # monotonic, when it was asked for

    def on_mount(self) -> None:
        """Begin to follow."""
        self._follow()

    @work
    async def _follow(self) -> None:
        last_seen: Seen | None = None
        while True:
            began_s = time.monotonic()
            try:
                timeline, status = await self._beside(partial(self._look, last_seen))
            except BftError as error:
                self._say(f"{error.code}: {shown(error.cause)} It is asked again and again.")
                await asyncio.sleep(AGAIN_S)
                continue
            self._say("")
            if timeline.is_whole:
                self._curves.clear()
            self._take(timeline)
            last_seen = timeline.seen
            self.show(self._head(status), status.trainers, pieced(self._uses, timeline))
            await asyncio.sleep(max(0.0, began_s + LEAST_S - time.monotonic()))

    def _look(self, last_seen: Seen | None) -> tuple[TimelineView, StatusView]:
        """Wait until something is new; blocks."""
        timeline, status = self._source.timeline(last_seen), self._source.status()
        harm = self._source.slow()["harm"]
        if not self._harm or time.monotonic() - self._harm_s >= harm.every_s:
            self._harm, self._harm_s = harm.ask(), time.monotonic()
        return timeline, status

    def _say(self, trouble: str) -> None:
        self.query_one("#away").display = bool(trouble)
        self._set("#away", Text(trouble))

    def _head(self, status: StatusView) -> Text:
        first, *lines = summary(status, time.time())
        text = Text(f"{first}, promise ")
        if self._harm["is_kept"]:
            text.append("kept")
        else:
            text.append("broken", _BAD)
        troubles = [("failure", failure) for failure in status.failures]
        if status.back_off:
            troubles.insert(0, ("back-off", status.back_off))
        if status.draining:
            troubles.insert(0, ("drained", status.draining))
        for line in lines:
            text.append(f"\n{line}")
        for kind, trouble in troubles[:_TROUBLES]:
            text.append(f"\n{kind:<9} {shown(trouble)}", _BAD)
        n_hidden = len(troubles) - _TROUBLES
        if n_hidden > 0:
            text.append(f"\n{n_hidden} more; see 'bftrainer status'")
        return text

    def log_of(self, trainer_id: str) -> Sequence[str]:
        """Return the end of a trainer's log; blocks."""
        return tail(self._daemon, trainer_id, _LOG_LINES)

    @work
    async def action_change(self, verb: str) -> None:
        """Ask, and hold, release or cancel the chosen trainer."""
        trainer_id = self.query_one(TrainerTable).chosen
        if trainer_id is None:
            return
        question, change = _CHANGES[verb]
        name = shown(self._views[trainer_id].record.spec.name)[:40]
        sentence = question.format(f"{trainer_id} ({name})")
        if not await self.push_screen_wait(Dialog(f"{sentence}\n\ny yes    n no")):
            return
        try:
            view = await self._beside(partial(change, self._daemon, trainer_id))
        except BftError as error:
            message = f"{error.code}: {shown(error.cause)} {error.next_step}"
            self.notify(message, severity="error", markup=False, timeout=10.0)
            return
        self._views[trainer_id] = view
        self._draw_rows()


class ReplayScreen(TopScreen):
    """Goes through a journal: nodes at any time in it, trainers at its end."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "step(-1)", "Back", priority=True),
        Binding("right", "step(1)", "On", priority=True),
        Binding("shift+left", "step(-20)", show=False, priority=True),
        Binding("shift+right", "step(20)", show=False, priority=True),
        Binding("space", "play", "Play", priority=True),
    ]

    def __init__(self, source: PageSource) -> None:
        super().__init__(source)
        self._timeline, self._status = source.timeline(None), source.status()
        self._take(self._timeline)
        changes_s = [at_s for at_s, *_ in self._timeline.changes]
        self._moments = sorted({self._timeline.since_s, *changes_s, self._timeline.now_s})
        self._at_s, self._is_playing = self._moments[0], False

    def on_mount(self) -> None:
        """Show the beginning."""
        self._player = self.set_interval(TICK_S, self._play_on, pause=True)
        self._go(self._at_s)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:  # noqa: ARG002 - Textual's
        """Leave keys to questions and texts."""
        is_busy = isinstance(self.screen, Dialog) or isinstance(self.focused, Input)
        return not is_busy or action not in ("step", "play")

    def _go(self, at_s: float) -> None:
        self._at_s = at_s
        place = f"{bisect_right(self._moments, at_s)} of {len(self._moments)}"
        head = Text(
            f"{shown(self._source.title)}: nodes at {clock(at_s)} ({place}),\n"
            f"trainers at its end, {clock(self._moments[-1])}"
        )
        self.show(head, self._status.trainers, pieced((), self._timeline, at_s))

    def action_step(self, n: int) -> None:
        """Go n changes on, or back."""
        if n < 0:
            place = bisect_left(self._moments, self._at_s) + n
        else:
            place = bisect_right(self._moments, self._at_s) - 1 + n
        self._go(self._moments[min(max(place, 0), len(self._moments) - 1)])

    def action_play(self) -> None:
        """Play, from the beginning if this is the end; or stop."""
        self._is_playing = not self._is_playing
        if self._is_playing:
            if self._at_s == self._moments[-1]:
                self._go(self._moments[0])
            self._player.resume()
        else:
            self._player.pause()

    def _play_on(self) -> None:
        first_s, last_s = self._moments[0], self._moments[-1]
        self._go(min(last_s, self._at_s + (last_s - first_s) * TICK_S / PLAY_S))
        if self._at_s == last_s:
            self.action_play()
