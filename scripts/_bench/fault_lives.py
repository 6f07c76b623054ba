"""Lives of a cluster with random faults, side by side; called by ``bench_faults``."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from _bench.benchmark import note
from _bench.faults import Outcome, live
from _bench.network import Network, why_not

PER_LIFE: Final = 25


class Lives:
    """Lives beside each other until there are enough schedules or the time is up."""

    def __init__(
        self,
        options: argparse.Namespace,
        scratch: Path,
        wanted: int,
        write: Callable[[list[Outcome]], None],
    ) -> None:
        self._options = options
        self._scratch, self._write = scratch, write
        self._until_s = time.monotonic() + options.minutes * 60.0
        self.outcomes = earlier(options)
        self._left = wanted - sum(len(o.schedules) for o in self.outcomes)
        why = why_not()
        self._has_network = not why
        if why:
            note(f"no node is cut off: {why}")
        self._seed = max([options.seed, *(o.seed + 1 for o in self.outcomes)])

    async def run(self) -> None:
        """Run them; what there is is written down after each. A signal ends them in order."""
        lanes = asyncio.gather(*(self._lane() for _ in range(self._options.lanes)))
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, lanes.cancel)
        await lanes

    async def _lane(self) -> None:
        while self._left > 0 and time.monotonic() < self._until_s:
            count, seed = min(self._left, PER_LIFE), self._seed
            self._left -= count
            self._seed += 1
            directory = self._scratch / f"life-{seed}"
            shutil.rmtree(directory, ignore_errors=True)  # of a run that was ended
            directory.mkdir()
            with self._network() as network:
                outcome = await live(directory, seed, count, note, self._until_s, network)
            self.outcomes.append(outcome)
            self._tell(outcome)
            if outcome.is_good:
                await asyncio.to_thread(shutil.rmtree, directory)
            self._write(self.outcomes)

    def _network(self) -> contextlib.AbstractContextManager[Network | None]:
        return Network() if self._has_network else contextlib.nullcontext()

    def _tell(self, outcome: Outcome) -> None:
        done = sum(len(o.schedules) for o in self.outcomes)
        note(
            f"seed {outcome.seed}: {len(outcome.schedules)} schedules, {outcome.steps} steps,"
            f" {outcome.took_s:.0f} s; {done} done"
        )
        if not outcome.is_good:
            note(
                f"seed {outcome.seed}: {outcome.hangs + outcome.sample_errors + outcome.divergent}"
            )
            note(f"again: scripts/bench_faults.py --seed {outcome.seed} --schedules {PER_LIFE}")


def earlier(options: argparse.Namespace) -> list[Outcome]:
    """Return what the file already has, if it is to be added to."""
    if not (options.append and options.json and options.json.exists()):
        return []
    return [Outcome.of(found) for found in json.loads(options.json.read_text())["lives"]]
