"""Checkpoints that a start cannot use: what becomes of them, and what is told."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bftrainer.elastic.checkpoints.passed_over import MOST_ASIDE, TellingSearch
from bftrainer.elastic.process.control import Control
from bftrainer.fleet.generations import stimuli
from bftrainer.ground import fence, files, protocol
from bftrainer.ground.files import ForeignError
from bftrainer.ground.protocol import PassedOver, WorkerConfig
from tests.support.generations import Driver


@pytest.fixture
def ends() -> Iterator[tuple[Control, socket.socket]]:
    """A worker's control, and the agent's end of its socket."""
    ours, theirs = socket.socketpair()
    config = WorkerConfig(trainer_id="t1", worker_id="t1-1-1", node="n1", script="/s.py")
    control = Control(config, None)  # nobody listens: the process would end with the socket
    control.channel = theirs
    ours.settimeout(60.0)
    yield control, ours
    ours.close()
    theirs.close()


def said(agent: socket.socket) -> str:
    """Return what was told last, "" if nothing was."""
    agent.setblocking(False)  # noqa: FBT003 - the name of the standard library
    try:
        line = agent.recv(1 << 16)
    except BlockingIOError:
        return ""
    message = protocol.decode(line.splitlines()[-1])
    assert isinstance(message, PassedOver)
    return message.cause


def write(directory: Path, step: int, *, layout: int = 7) -> Path:
    path = fence.path_for(directory, step, 1)
    header = {"layout": layout, "step": step}
    path.write_bytes(b"".join(map(bytes, files.parts_of(header, [memoryview(b"x" * 900)]))))
    return path


def read(path: Path) -> int:
    with files.opened(path) as file:
        header = files.read_from(file, lambda _header: [memoryview(bytearray(900))])
    if header["layout"] != 7:
        raise ForeignError("it was written by a different model")
    return int(header["step"])


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def cut_body(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-300])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)


def clear(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("harm", [cut, cut_body, flip, clear])
def test_a_damaged_one_is_told_and_outlives_the_next(
    tmp_path: Path, ends: tuple[Control, socket.socket], harm: Callable[[Path], None]
) -> None:
    control, agent = ends
    write(tmp_path, 40)
    newest = write(tmp_path, 60)
    harm(newest)
    damaged = newest.read_bytes()
    assert TellingSearch(control)(tmp_path, read) == 40
    cause = said(agent)
    assert cause.startswith(f"BFT-1413: Not used of {tmp_path}: {newest.name} (it")
    assert f"kept as {newest.name}.damaged" in cause
    assert "goes on from step 40" in cause
    for step in (70, 80, 90):
        files.prune(tmp_path, write(tmp_path, step), 7)
    assert files.step_of(files.newest_first(tmp_path)[0]) == 90
    assert (tmp_path / f"{newest.name}.damaged").read_bytes() == damaged
    assert TellingSearch(control)(tmp_path, read) == 90
    assert said(agent) == ""


def test_where_it_was_the_only_one_the_training_began_anew(
    tmp_path: Path, ends: tuple[Control, socket.socket]
) -> None:
    control, agent = ends
    cut(write(tmp_path, 60))
    assert TellingSearch(control)(tmp_path, read) is None
    assert said(agent).endswith("The training began anew.")


def test_parts_of_a_damaged_one_are_kept_with_it(
    tmp_path: Path, ends: tuple[Control, socket.socket]
) -> None:
    control, _ = ends
    path = write(tmp_path, 60)
    part = files.part_of(path, 1)
    part.write_bytes(b"its other half")
    cut(path)
    assert TellingSearch(control)(tmp_path, read) is None
    files.prune(tmp_path, write(tmp_path, 70), 7)
    kept = tmp_path / f"{path.name}.damaged"
    assert files.parts_beside(kept) == [files.part_of(kept, 1)]
    assert files.part_of(kept, 1).read_bytes() == b"its other half"


def test_few_are_kept(tmp_path: Path, ends: tuple[Control, socket.socket]) -> None:
    control, agent = ends
    for step in range(10, 60, 10):
        files.part_of(path := write(tmp_path, step), 1).write_bytes(b"part")
        cut(path)
        assert TellingSearch(control)(tmp_path, read) is None
    kept = [n for n in names(tmp_path) if n.endswith(".damaged")]
    assert kept == [f"{fence.path_for(tmp_path, s, 1).name}.damaged" for s in (30, 40, 50)]
    assert len(names(tmp_path)) == 2 * MOST_ASIDE
    assert said(agent)


def test_several_are_told_in_one_message_of_bounded_length(
    tmp_path: Path, ends: tuple[Control, socket.socket]
) -> None:
    control, agent = ends
    write(tmp_path, 1)
    for step in range(10, 60, 10):
        cut(write(tmp_path, step))
    assert TellingSearch(control)(tmp_path, read) == 1
    cause = said(agent)
    assert "and 2 more. The training goes on from step 1 " in cause
    assert cause.count("kept as") == 3


def test_unfinished_files_alone_are_told(
    tmp_path: Path, ends: tuple[Control, socket.socket]
) -> None:
    control, agent = ends
    assert TellingSearch(control)(tmp_path, read) is None
    assert said(agent) == "", "nothing is there"
    name = fence.path_for(tmp_path, 5, 1).name
    (tmp_path / f".{name}.host-7.tmp").write_bytes(b"half")
    assert TellingSearch(control)(tmp_path, read) is None
    assert "1 file is unfinished. The training began anew." in said(agent)
    write(tmp_path, 4)
    assert TellingSearch(control)(tmp_path, read) == 4
    assert said(agent) == "", "a writer was killed, and the one before is there"


def test_sound_files_stay_where_they_are(
    tmp_path: Path, ends: tuple[Control, socket.socket]
) -> None:
    control, agent = ends
    write(tmp_path, 1)
    write(tmp_path, 2, layout=8)
    later = fence.path_for(tmp_path, 3, 1)
    later.write_bytes(b"bftrainer checkpoint 2\nand its own form")
    fence.path_for(tmp_path, 4, 1).symlink_to(later)
    before = names(tmp_path)
    assert TellingSearch(control)(tmp_path, read) == 1
    assert names(tmp_path) == before
    assert "different model" in said(agent)


def test_where_all_are_of_another_model_the_start_is_refused_and_nothing_else_is_said(
    tmp_path: Path, ends: tuple[Control, socket.socket]
) -> None:
    control, agent = ends
    write(tmp_path, 2, layout=8)
    assert TellingSearch(control)(tmp_path, read) is None
    assert said(agent) == ""


def test_of_a_node_s_workers_one_tells(tmp_path: Path, ends: tuple[Control, socket.socket]) -> None:
    control, agent = ends
    cut(write(tmp_path, 60))
    before = names(tmp_path)
    assert TellingSearch(control, is_first=False)(tmp_path, read) is None
    assert (names(tmp_path), said(agent)) == (before, "")


def test_what_is_told_stands_until_the_trainer_stops() -> None:
    d = Driver()
    d.form("n1", "n2")
    d.say(d.on("n1"), PassedOver(cause="BFT-1413: Not used."))
    saved = protocol.Saved(generation=1, step=3, samples=30, path="/c", wall_s=0.1)
    d.machine.handle(stimuli.WorkerMessage(worker_id=d.on("n1"), message=saved), d.now_s)
    assert d.machine.checkpoints.passed_over == "BFT-1413: Not used."
    for node in ("n1", "n2"):
        d.exit(d.on(node), 1)
    assert d.machine.checkpoints.passed_over == ""
