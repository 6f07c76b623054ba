"""What a script sees of its DataLoader's processes when SIGTERM ends them before the script."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import pytest
from torch.utils.data import DataLoader

from bftrainer.elastic.worker import _is_of_ended_loader


@pytest.mark.parametrize("is_ended", [True, False])
def test_a_connection_that_breaks_before_the_end_is_known(
    is_ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers: Any = iter(DataLoader(range(1000), num_workers=1))  # type: ignore[arg-type]
    next(numbers)

    def fetch() -> None:
        if is_ended:
            # From elsewhere, as a batch system does: by its parent's it ends in order.
            end = f"import os; os.kill({numbers._workers[0].pid}, {signal.SIGTERM:d})"
            subprocess.run([sys.executable, "-c", end], check=True)
        raise ConnectionResetError

    monkeypatch.setattr(numbers, "_try_get_data", fetch)
    with pytest.raises((ConnectionResetError, RuntimeError)) as raised:
        next(numbers)
    assert _is_of_ended_loader(raised.value) == is_ended
    numbers._shutdown_workers()  # torch would tell of its end again


def test_a_connection_of_the_script_is_its_own() -> None:
    with pytest.raises(ConnectionResetError) as raised:
        raise ConnectionResetError
    assert not _is_of_ended_loader(raised.value)
