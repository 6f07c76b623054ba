"""The pure parts of MPI programs, and programs that were started without an agent."""

from __future__ import annotations

import atexit
import itertools
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainers.examples
from bftrainer.batch import process
from bftrainer.elastic.mpi import BlockRows, library
from bftrainer.elastic.mpi.comm import GroupBroken
from bftrainer.elastic.mpi.library import OneProcess
from bftrainer.elastic.mpi.membership import Launched
from bftrainer.elastic.mpi.state import MpiState, RowSpan, choose, pieces, share_of
from bftrainer.ground import files
from bftrainer.ground.errors import ElasticError
from tests.support.waiting import wait_for

SGD = Path(trainers.examples.__file__).parent / "mpi_sgd.py"
SAVED = 85
BATCH = 24


@given(
    total=st.integers(0, 40),
    old=st.integers(1, 6),
    new=st.integers(1, 6),
    lost=st.sets(st.integers(0, 5), max_size=2),
)
def test_every_row_finds_its_new_owner_or_the_loss_is_known(
    total: int, old: int, new: int, lost: set[int]
) -> None:
    # Each rank holds its rows and those of the rank before it, as copies in memory do.
    holders = [
        [] if rank in lost else [share_of(total, old, rank), share_of(total, old, (rank - 1) % old)]
        for rank in range(old)
    ]
    targets = [share_of(total, new, rank) for rank in range(new)]
    moves = pieces(holders, targets)
    held = {row for spans in holders for s in spans for row in range(s.first, s.end)}
    if held != set(range(total)):
        assert moves is None
        return
    assert moves is not None
    got: list[list[int]] = [[] for _ in range(new)]
    for move in moves:
        span = holders[move.source][move.span_index]
        assert span.first <= move.span.first < move.span.end <= span.end
        got[move.target] += range(move.span.first, move.span.end)
    assert got == [list(range(t.first, t.end)) for t in targets]


def test_rows_that_stay_do_not_travel() -> None:
    moves = pieces([[RowSpan(0, 10)], [RowSpan(10, 10)]], [RowSpan(0, 12), RowSpan(12, 8)])
    assert moves is not None
    assert [(m.source, m.target, m.span) for m in moves] == [
        (0, 0, RowSpan(0, 10)), (1, 0, RowSpan(10, 2)), (1, 1, RowSpan(12, 8)),
    ]  # fmt: skip


def test_the_newest_copy_counts_that_is_whole_without_the_dead() -> None:
    one, two = [(40, 3, (0, 2)), (50, 3, (0, 2))], [(40, 3, (1, 0))]
    assert choose([one, two]) == (40, 3)
    assert choose([one, [(50, 3, (1, 0))]]) == (50, 3)
    assert choose([one, []]) is None


def test_the_process_manager_answers_what_mpich_asks() -> None:
    manager = OneProcess("world-7")
    assert "rc=0" in manager.answer("cmd=init pmi_version=1 pmi_subversion=1")
    assert manager.answer("cmd=get_my_kvsname") == "cmd=my_kvsname kvsname=world-7 rc=0"
    assert "rc=-1" in manager.answer("cmd=get kvsname=world-7 key=k")
    manager.answer("cmd=put kvsname=world-7 key=k value=v#1$x")
    assert manager.answer("cmd=get kvsname=world-7 key=k").endswith(" value=v#1$x")
    assert "not_supported" in manager.answer("cmd=spawn")


def test_an_interpreter_without_mpi4py_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(ElasticError, match="pip install mpi4py mpich") as caught:
        library.load()
    assert caught.value.code == "BFT-1441"


@pytest.mark.parametrize(
    ("vendor", "is_good"),
    [
        (("MPICH", (5, 0, 2)), True),
        (("MPICH", (4, 0, 2)), False),
        (("Open MPI", (5, 0, 11)), False),
    ],
)
def test_an_mpi_that_cannot_connect_is_refused(vendor: object, *, is_good: bool) -> None:
    class Library:
        """As ``mpi4py.MPI`` of another installation."""

        @staticmethod
        def get_vendor() -> object:
            return vendor

    if is_good:
        library.require_connecting(Library)
        return
    with pytest.raises(ElasticError, match="--runtime command") as caught:
        library.require_connecting(Library)
    assert caught.value.code == "BFT-1442"


def test_blocks_of_another_length_than_asked_for_are_refused() -> None:
    rows = BlockRows(10, lambda _first, _count: np.zeros((1, 4)))
    with pytest.raises(ElasticError, match="count rows of equal size"):
        rows.renew(RowSpan(0, 5))
    layout = MpiState(
        {"a": np.zeros(2)}, {"r": BlockRows(10, lambda _f, n: np.zeros((n, 4)))}
    ).layout()
    other = MpiState(
        {"a": np.zeros(3)}, {"r": BlockRows(10, lambda _f, n: np.zeros((n, 4)))}
    ).layout()
    assert layout != other


class ShrinkingGroup:
    """A communicator with ULFM, of which so many members are alive."""

    def __init__(self, *sizes: int) -> None:
        self._size, *self._next_sizes = sizes

    def Get_rank(self) -> int:  # noqa: N802 - as mpi4py names it
        return 0

    def Get_size(self) -> int:  # noqa: N802 - as mpi4py names it
        return self._size

    def Revoke(self) -> None:  # noqa: N802 - as mpi4py names it
        """Nobody else is there to be told."""

    def Shrink(self) -> ShrinkingGroup:  # noqa: N802 - as mpi4py names it
        return ShrinkingGroup(*self._next_sizes)


class LossyTransfer:
    """It agrees on a state, unless members are lost meanwhile: at these attempts."""

    def __init__(self, *lost_at: int) -> None:
        self.step, self.samples, self.reports = 7, 70, ()
        self.state = SimpleNamespace(rows=())
        self._lost_at, self._attempts = lost_at, itertools.count()

    def agree(self, comm: object) -> None:
        del comm
        if next(self._attempts) in self._lost_at:
            raise GroupBroken("another one was lost")


@pytest.mark.parametrize(
    ("sizes", "lost_at", "told"),
    [
        ((4,), (), [(0, 4)]),
        ((4, 3), (0,), [(0, 3)]),  # the four have never trained
        ((4, 3, 1), (0, 1), [(0, 1)]),
    ],
)
def test_a_start_with_losses_tells_of_no_group_that_never_was(
    sizes: tuple[int, ...], lost_at: tuple[int, ...], told: list[tuple[int, int]]
) -> None:
    assert _changes(sizes, lost_at, n_recoveries=0) == told


def test_a_second_loss_during_recovery_is_told_as_one_from_the_group_that_trained() -> None:
    assert _changes((4, 3, 2), lost_at=(1,), n_recoveries=1) == [(0, 4), (4, 2)]


def _changes(
    sizes: tuple[int, ...], lost_at: tuple[int, ...], *, n_recoveries: int
) -> list[tuple[int, int]]:
    """Return old and new size of each change that the program hears of."""
    control = SimpleNamespace(config=SimpleNamespace(worker_id="w"))
    mpi = SimpleNamespace(COMM_WORLD=ShrinkingGroup(*sizes), Exception=OSError)
    launched = Launched(cast("Any", control), mpi, cast("Any", LossyTransfer(*lost_at)))
    changes: list[tuple[int, int]] = []
    launched.on_change = lambda change: changes.append((change.old_size, change.new_size))
    launched.enter_next()
    for _ in range(n_recoveries):
        launched.recover("a member was lost")
    atexit.unregister(launched._finalize)
    return changes


@pytest.mark.long
def test_under_mpiexec_it_keeps_the_contract_of_commands(tmp_path: Path) -> None:
    mpiexec = shutil.which("mpiexec", path=str(Path(sys.executable).parent))
    assert mpiexec, "the package mpich is installed with the development extras"
    control, out = tmp_path / "control", tmp_path / "done.json"
    control.touch()
    checkpoints = tmp_path / "checkpoints"
    env = {
        **os.environ, "BFT_CONTROL_FILE": str(control), "BFT_CHECKPOINT_DIR": str(checkpoints),
        "BFT_TRAINER": "t1", "BFT_GENERATION": "1",
    }  # fmt: skip
    program = [sys.executable, str(SGD), "--pause", "0.03"]
    endless = [mpiexec, "-n", "2", *program, "--steps", "1000000"]
    with (tmp_path / "log").open("wb") as log:
        child = process.spawn(endless, env=env, stdout=log, stderr=log)
    try:
        wait_for(lambda: b"BFT step=" in (tmp_path / "log").read_bytes(), what="its first line")
        control.write_text("stop\n")
        assert child.wait(300) == SAVED
    finally:
        process.kill_group(child.pid, signal.SIGKILL)
    control.write_text("")
    n_steps = files.step_of(files.newest_first(checkpoints)[0]) + 20
    again = [mpiexec, "-n", "3", *program, "--steps", str(n_steps), "--out", str(out)]
    done = process.run(again, timeout_s=300, env=env)
    assert done.is_ok, done.stderr
    n_samples = n_steps * BATCH
    found = json.loads(out.read_text())
    assert (found["samples"], found["index_sum"]) == (n_samples, n_samples * (n_samples - 1) // 2)
