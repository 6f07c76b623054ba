"""The processor time of each file of tests, with all that its tests started.

``scripts/cpu_budget.py`` names a directory in ``BFTRAINER_COSTS``; each process of pytest that runs
tests leaves a file there. Daemons and jobs are no children of tests: root counts by a control group
of the kernel (version 1), others only see the processes that were waited for.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path

import pytest

VARIABLE = "BFTRAINER_COSTS"
COLLECTION = "(start and collection)"
GROUPS = Path("/sys/fs/cgroup/cpuacct")
NS_PER_S = 1e9


class Meter:
    """Seconds of processor time of this process and of all that it started."""

    def __init__(self) -> None:
        self._group = GROUPS / f"bftrainer-tests-{os.getpid()}"
        self.seconds: Callable[[], float] = self._of_children
        with suppress(OSError):
            self._group.mkdir()
            (self._group / "cgroup.procs").write_text(str(os.getpid()))
            self._before_s, self.seconds = self._of_children(), self._of_group

    def _of_children(self) -> float:
        return sum(os.times()[:4])

    def _of_group(self) -> float:
        return self._before_s + int((self._group / "cpuacct.usage").read_text()) / NS_PER_S

    def close(self) -> None:
        """Leave the group; it stays while something runs in it that a test has left behind."""
        with suppress(OSError):
            (GROUPS / "cgroup.procs").write_text(str(os.getpid()))
            self._group.rmdir()


class Costs:
    """Adds up, and writes at the end."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / f"{os.getpid()}.json"
        self._meter = Meter()
        self._counted_s = 0.0
        self._seconds: dict[str, float] = defaultdict(float)

    def _count(self, name: str) -> None:
        now_s = self._meter.seconds()
        self._seconds[name] += now_s - self._counted_s
        self._counted_s = now_s

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if COLLECTION not in self._seconds:
            self._count(COLLECTION)
        result = yield
        self._count(item.nodeid.partition("::")[0])
        return result

    def pytest_unconfigure(self) -> None:
        self._count(COLLECTION)
        self._meter.close()
        self._file.write_text(json.dumps(self._seconds))


def register(config: pytest.Config) -> None:
    """Count in processes that run tests, if that was asked for."""
    is_controller = bool(config.getoption("numprocesses", None))
    if VARIABLE in os.environ and not is_controller:
        config.pluginmanager.register(Costs(Path(os.environ[VARIABLE])))
