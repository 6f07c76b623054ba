"""``bftrainer top`` as a screen: headless over the real socket, and on a terminal of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import re
import select
import signal
import sys
import termios
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.app import App
from textual.geometry import Region
from textual.pilot import Pilot
from textual.worker import Worker, WorkerCancelled

from bftrainer.api.service import user_name
from bftrainer.batch import process
from bftrainer.cli import top_screen
from bftrainer.cli.common import FollowingClient
from bftrainer.cli.main import main
from bftrainer.cli.page_source import page_source
from bftrainer.cli.top_panes import Dialog, NodeMap, TrainerTable, fitting
from bftrainer.cli.top_screen import LiveScreen, ReplayScreen, TopScreen
from bftrainer.cli.top_summary import NAMES
from bftrainer.model.cluster import NodeState
from bftrainer.model.trainer import TrainerRecord, TrainerSpec, TrainerState
from tests.integration.cli_fixtures import Output, home, output, service
from tests.support.memory_service import MemoryService, error_code, serving, socket_of
from tests.support.parted_nodes import lending_node, part_pilot, plan_of, seen_with
from tests.support.snapshots import T0
from tests.support.timelines import PLAN, input_of, nodes, pilot
from tests.support.waiting import wait_for
from tests.unit.journal.test_yesterday import write_journal

__all__ = ["home", "output", "service"]

Act = Callable[[Any, Pilot[None]], Awaitable[None]]
IDLE, ALLOCATED = NodeState.IDLE, NodeState.ALLOCATED
HOSTILE = "[red]x[/red]\x1b[2J\x1b]0;title\x07\r\n " + "y" * 500


def add(service: MemoryService, name: str = "digits", **more: object) -> str:
    """Have one more trainer run."""
    trainer_id = f"t{len(service.records) + 1}"
    place = str(service.log_dir / "checkpoints")
    spec = TrainerSpec(name=name, user=user_name(os.getuid()), script="/s.py", checkpoint_dir=place)
    service.records[trainer_id] = replace(
        TrainerRecord(trainer_id=trainer_id, spec=spec, state=TrainerState.RUNNING, submitted_s=T0),
        **more,  # type: ignore[arg-type]  # its fields
    )
    return trainer_id


def see(service: MemoryService, at_s: float = T0, /, **states: NodeState) -> None:
    """Have the daemon decide; allocated nodes are ours, and t1 trains there."""
    ours = [name for name, state in states.items() if state is ALLOCATED]
    training = dict.fromkeys(ours, "t1")
    given = input_of(nodes(**states), *map(pilot, ours), at_s=at_s, training=training)
    service.saw(given, PLAN)


def live(service: MemoryService, act: Act, size: tuple[int, int] = (100, 30)) -> None:
    try:
        play(LiveScreen(page_source(None, None), FollowingClient(None)), act, size)
    finally:
        service.wake()  # a thread that waits for the daemon ends, and does not keep it


def play(app: TopScreen, act: Act, size: tuple[int, int] = (100, 30)) -> None:
    async def run() -> None:
        async with app.run_test(size=size, notifications=True) as keys:
            await act(app, keys)

    asyncio.run(run())


async def until(keys: Pilot[None], condition: Callable[[], object]) -> None:
    """Let the screen work until a condition holds."""
    deadline_s = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline_s, text(keys.app)
        await keys.pause(0.05)


def drawn(app: App[None]) -> list[str]:
    """What a terminal shows, line by line."""
    return [strip.text.rstrip() for strip in app.screen._compositor.render_strips()]


def text(app: App[None]) -> str:
    return "\n".join(drawn(app))


def table(app: TopScreen) -> TrainerTable:
    return app.query_one(TrainerTable)


def cell(app: TopScreen, trainer_id: str, column: str) -> str:
    return table(app).get_cell(trainer_id, column).plain


def worker_of(app: TopScreen, name: str) -> Worker[Any]:
    return next(one for one in app.workers if one.name == name)


async def answer(app: TopScreen, keys: Pilot[None], asked: str, answered: str) -> None:
    """Press a key that asks, and answer."""
    await keys.press(asked)
    await until(keys, lambda: isinstance(app.screen, Dialog))
    await keys.press(answered)
    await until(keys, lambda: not isinstance(app.screen, Dialog))


def test_nodes_trainers_and_one_of_them_are_shown(service: MemoryService) -> None:
    add(service)
    service.back_off = "It backs off."
    said = "epoch 1\n\x1b[31mepoch 2\x1b[0m\tloss 0.5\n"
    log = service.add_log("t1", "t1-1.log", said, rank=0)

    async def act(app: LiveScreen, keys: Pilot[None]) -> None:
        see(service, n1=ALLOCATED, n2=IDLE, n3=NodeState.DOWN)
        await until(keys, lambda: drawn(app)[6] == " T.x")
        assert re.match(r" bftrainer \d\d:\d\d:\d\d, local, promise kept$", drawn(app)[0])
        assert drawn(app)[1:6] == [
            " nodes     1 train, 2 held, 1 requested, 1 idle, 4 in all",
            " trainers  1 train, 0 wait, 0 ended, 0 samples/s together",
            " back-off  It backs off.",
            " failure   squeue did not answer.",
            " T 1 training  . 1 idle  x 1 unavailable",
        ]
        assert cell(app, "t1", "name") == "digits"
        await until(keys, lambda: "- A third would gain less than it costs." in text(app))
        await keys.press("l")
        await until(keys, lambda: "epoch 2    loss 0.5" in text(app))
        assert "t1-1.log on n1" in text(app)
        worker_of(app, "_follow").cancel()  # the log grows without news, too
        await asyncio.to_thread(log.write_text, f"{said}epoch 3\n")
        await until(keys, lambda: "epoch 3" in text(app))
        await keys.press("question_mark")
        await until(keys, lambda: "reserve of the queue" in text(app))
        await keys.press("n", "q")
        await until(keys, lambda: not app.is_running)

    live(service, act)


def test_gpus_that_are_lent_one_by_one_have_a_letter_each(service: MemoryService) -> None:
    add(service)
    add(service)
    trains, starts = part_pilot("n1/0"), part_pilot("n1/1", is_held=False)
    seen = seen_with([lending_node("n1", 2), lending_node("n2", 0)], trains)
    given = input_of(seen, trains, starts, training={"n1/0": "t1"})

    async def act(app: LiveScreen, keys: Pilot[None]) -> None:
        service.saw(given, plan_of({"n1/0": "t1", "n1/1": "t2"}))
        await until(keys, lambda: "|TS.#|####|" in text(app))
        await until(keys, lambda: "| 2 nodes with a letter for each GPU" in text(app))
        ended = replace(given, pilots=(), training={}, now_s=T0 + 1)
        service.saw(ended, PLAN)
        await until(keys, lambda: "|..##|####|" in text(app))

    live(service, act)


def test_a_change_is_made_when_it_is_confirmed(service: MemoryService) -> None:
    add(service)
    add(service, "other")

    async def act(app: LiveScreen, keys: Pilot[None]) -> None:
        await until(keys, lambda: table(app).row_count)
        before = dict(service.records)
        for key in ("h", "r", "c"):
            await answer(app, keys, key, "n")
            await answer(app, keys, key, "escape")
        assert service.records == before
        await keys.press("down")
        await answer(app, keys, "h", "y")
        await until(keys, lambda: cell(app, "t2", "state") == "held")
        assert [one.held_s is None for one in service.records.values()] == [True, False]
        await answer(app, keys, "r", "y")
        await until(keys, lambda: cell(app, "t2", "state") == "running")
        assert service.records["t2"].held_s is None
        await answer(app, keys, "c", "y")
        await until(keys, lambda: cell(app, "t2", "state") == "cancelled")
        assert service.killed == []  # after a last checkpoint
        assert service.records["t1"].state is TrainerState.RUNNING
        assert table(app).chosen == "t2"  # it moved to the end, and the cursor with it

    live(service, act)


def test_a_refusal_is_shown_with_its_code(service: MemoryService) -> None:
    add(service)
    record = service.records["t1"]
    service.records["t1"] = replace(record, spec=replace(record.spec, user="somebody"))
    service.add_log("t1", "t1-1.log", "", rank=0).unlink()
    (service.log_dir / "t1-1.log").symlink_to("/etc/passwd")

    async def act(app: LiveScreen, keys: Pilot[None]) -> None:
        await until(keys, lambda: table(app).row_count)
        await answer(app, keys, "c", "y")
        await until(keys, lambda: "BFT-1005: Trainer t1 belongs to somebody." in text(app))
        assert service.records["t1"].state is TrainerState.RUNNING
        await keys.press("l")
        await until(keys, lambda: "error BFT-1012" in text(app))
        assert "symbolic link" in text(app)

    live(service, act, (100, 40))


def test_texts_of_users_are_no_markup_and_no_commands(service: MemoryService) -> None:
    add(service, HOSTILE, reason=HOSTILE, held_s=T0)
    service.add_log("t1", "t1-1.log", HOSTILE, rank=0)
    service.failures = (HOSTILE,)

    async def act(app: LiveScreen, keys: Pilot[None]) -> None:
        async def sees(words: str) -> None:
            await until(keys, lambda: words in text(app))
            assert text(app).replace("\n", "").isprintable()

        await sees("failure   [red]x[/red]")
        await sees("t1  [red]x[/red]")
        assert cell(app, "t1", "name").isprintable()
        await keys.press("l")
        await sees("t1-1.log on n1\n [red]x[/red]")
        await keys.press("h")
        await sees("Hold t1 ([red]x[/red]")

    live(service, act)


def test_a_daemon_that_is_away_is_named_and_found_again(home: Path) -> None:
    memory = MemoryService(home)
    add(memory)
    server = serving(memory, socket_of())
    server.__enter__()
    app = LiveScreen(page_source(None, None), FollowingClient(None))

    async def act(_: LiveScreen, keys: Pilot[None]) -> None:
        see(memory, n1=ALLOCATED)
        await until(keys, lambda: "T 1 training" in text(app))
        memory.wake()
        await asyncio.to_thread(server.__exit__, None, None, None)
        await until(keys, lambda: drawn(app)[4].startswith(" BFT-1101: No daemon can be reached"))
        assert cell(app, "t1", "state") == "running"  # what is known stays
        await answer(app, keys, "h", "y")
        await until(keys, lambda: app._notifications)
        successor = MemoryService(home)
        successor.incarnation += 1
        add(successor, "newer")
        with serving(successor, socket_of()):
            see(successor, n1=IDLE, n2=IDLE)
            await until(keys, lambda: drawn(app)[4] == " . 2 idle")
            assert cell(app, "t1", "name") == "newer"
            app.exit()
            successor.wake()

    play(app, act)


def test_it_fits_every_terminal(service: MemoryService) -> None:
    for _ in range(30):
        add(service)

    async def act(app: LiveScreen, keys: Pilot[None]) -> None:
        see(service, **{f"n{i}": ALLOCATED for i in range(100)})
        await until(keys, lambda: "T 100 training" in text(app))
        for size in ((40, 12), (1, 1), (200, 60)):
            await keys.resize_terminal(*size)
            await until(keys, lambda size=size: app.size == size)  # type: ignore[misc]
            await answer(app, keys, "h", "n")
            for shown in () if size == (1, 1) else ("T" * 30, "digits", "t1 is running"):
                await until(keys, lambda shown=shown: shown in text(app))  # type: ignore[misc]
                assert drawn(app)[0].startswith(" bftrainer ")

    live(service, act)


def test_what_has_not_changed_is_not_drawn_again(
    service: MemoryService, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(200):
        add(service)
    names = [f"n{i}" for i in range(1000)]
    done: list[object] = []

    def noting(cls: type, method: str) -> None:
        own = getattr(cls, method)

        def noted(self: object, *given: object, **more: object) -> object:
            done.append((method, *given[:2]))
            return own(self, *given, **more)

        monkeypatch.setattr(cls, method, noted)

    async def act(app: LiveScreen, keys: Pilot[None]) -> None:
        see(service, **dict.fromkeys(names, IDLE))
        await until(keys, lambda: ". 1000 idle" in text(app) and table(app).row_count == 200)
        await until(keys, lambda: text(app).count(".") >= 1000)  # all fit
        for method in ("add_row", "remove_row", "update_cell", "sort"):
            noting(TrainerTable, method)
        noting(NodeMap, "refresh")
        service.records["t7"] = replace(service.records["t7"], failures=3, held_s=T0)
        see(service, T0 + 1, **{**dict.fromkeys(names, IDLE), "n205": ALLOCATED})
        await until(keys, lambda: "T 1 training" in text(app))
        row = app.query_one(NodeMap).size.width
        spot = Region(205 % row, 205 // row, 1, 1)
        assert [one for one in done if one != ("refresh",)] == [
            ("update_cell", "t7", "state"),
            ("update_cell", "t7", "reason"),
            ("refresh", spot),
        ]

    live(service, act, (100, 40))


def test_who_ends_it_waits_for_no_answer(
    service: MemoryService, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(service)
    asked, may_answer = threading.Event(), threading.Event()

    async def act(app: LiveScreen, keys: Pilot[None]) -> None:
        def explain(_: str) -> None:
            asked.set()
            may_answer.wait(60)

        close_all, tells = app._close_all, worker_of(app, "_tell")

        async def closing() -> None:
            await close_all()
            may_answer.set()  # when there are no panes any more
            with contextlib.suppress(WorkerCancelled):
                await tells.wait()

        monkeypatch.setattr(app._source, "explain", explain)
        monkeypatch.setattr(app, "_close_all", closing)
        await until(keys, asked.is_set)

    live(service, act)


def test_a_filter_shows_some_trainers(service: MemoryService) -> None:
    for name in ("resnet", "gpt", "gpt-large"):
        add(service, name)

    async def act(app: LiveScreen, keys: Pilot[None]) -> None:
        await until(keys, lambda: table(app).row_count == 3)
        await keys.press("down", "slash", *"GPT", "enter")
        await until(keys, lambda: table(app).row_count == 2)
        assert table(app).chosen == "t2"
        assert app.focused is table(app)
        await keys.press("escape")
        await until(keys, lambda: table(app).row_count == 3)
        assert [table(app).get_row_at(i)[0].plain for i in range(3)] == ["t1", "t2", "t3"]
        assert table(app).chosen == "t2"

    live(service, act)


def test_a_journal_is_gone_through(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_journal(home / "journal.db")

    async def act(app: ReplayScreen, keys: Pilot[None]) -> None:
        def shown() -> str:
            return next((one[1:] for one in drawn(app) if re.fullmatch(r" [.rH#]{3}", one)), "")

        await until(keys, lambda: shown() == "..r")
        assert "trainers at its end, " in drawn(app)[1]
        await keys.press("right")
        await until(keys, lambda: shown() in ("r.#", ".r#"))
        await keys.press("right")
        await until(keys, lambda: shown() == "Hr#")
        assert "(3 of 4)" in text(app)
        await keys.press("left", "left", "left")
        await until(keys, lambda: shown() == "..r")
        await keys.press("h")
        assert not isinstance(app.screen, Dialog)
        await keys.press("slash", "right", "space")
        assert "(1 of 4)" in text(app)  # keys of the text are its own
        await keys.press("escape")
        monkeypatch.setattr(top_screen, "PLAY_S", 1.0)
        await keys.press("space")
        await until(keys, lambda: "(4 of 4)" in text(app) and not app._is_playing)
        await keys.press("l")
        await until(keys, lambda: "'bftrainer logs t1'" in text(app))

    play(ReplayScreen(page_source(None, home / "journal.db")), act)


def test_without_a_terminal_a_journal_is_told_once(home: Path, output: Output) -> None:
    write_journal(home / "journal.db")
    assert main(["top", "--replay", str(home / "journal.db")]) == 0
    lines = output.readouterr().out.splitlines()
    assert lines[2].startswith("trainers  0 train, 2 wait, 0 ended")
    assert [line.split()[1] for line in lines if line.startswith("t")][1:] == ["a", "b"]
    assert main(["top", "-n", "1"]) == 6  # there is no daemon
    assert error_code(output) == "BFT-1101"


def test_help_and_lines_do_not_load_textual(service: MemoryService) -> None:
    code = (
        "import sys\nfrom bftrainer.cli.main import main\n"
        "main(['top', '-n', '1'])\nmain(['top', '-h'])\nprint('textual' in sys.modules)"
    )
    done = process.run([sys.executable, "-P", "-c", code], timeout_s=120.0)
    lines = done.stdout.splitlines()
    assert lines[2].startswith("trainers  ")
    assert "--replay" in done.stdout
    assert lines[-1] == "False"


@pytest.mark.parametrize("end", ["q", "SIGTERM"])
def test_a_terminal_is_as_before_when_it_ends(service: MemoryService, end: str) -> None:
    add(service)
    outer, inner = pty.openpty()
    before = termios.tcgetattr(inner)
    child = process.spawn(
        ["sh", "-c", f"exec {sys.executable} -m bftrainer.cli.main top <&1 2>&1"],
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"},
        stdout=inner,
    )
    try:
        seen = read_until(outer, b"digits")
        assert termios.tcgetattr(inner) != before
        if end == "q":
            os.write(outer, b"q")
        else:
            child.send_signal(signal.SIGTERM)
        seen += read_until(outer, b"\x1b[?1004l")  # the last that it resets
        assert child.wait(timeout=60) == 0
        assert termios.tcgetattr(inner) == before
    finally:
        child.kill()
        child.wait()
        os.close(inner)
        os.close(outer)
    service.wake()
    assert b"\x1b[?1049h" in seen  # the other screen, where nothing is scrolled away
    assert seen.index(b"\x1b[?1049l") < seen.index(b"\x1b[?25h")  # and back, with its cursor
    assert b"\x1b[?1000h" not in seen  # the mouse stays the terminal's


def read_until(terminal: int, end: bytes) -> bytes:
    """Read what is drawn until it is drawn."""
    seen = bytearray()

    def is_drawn() -> bool:
        if select.select([terminal], [], [], 0)[0]:
            seen.extend(os.read(terminal, 65536))
        return end in seen

    wait_for(is_drawn, what=repr(end))
    return bytes(seen)


@pytest.mark.parametrize(
    ("width", "names"),
    [
        (0, NAMES),  # it is not known yet
        (102, NAMES),
        (101, tuple(name for name in NAMES if name != "limits")),
        # without LIMITS 94, USER 88, DONE 80
        (80, ("id", "name", "state", "nodes", "epoch", "rate", "metric", "left", "reason")),
        (40, ("id", "name", "state", "nodes", "reason")),
    ],
)
def test_columns_go_by_the_width_of_the_pane(width: int, names: tuple[str, ...]) -> None:
    """Of twelve columns, with two cells around each: 24 and 78."""
    widths = dict.fromkeys(NAMES, 6) | {"id": 2, "user": 4, "rate": 9, "metric": 9, "reason": 160}
    assert fitting(widths, width) == names
