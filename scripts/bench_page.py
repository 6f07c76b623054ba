#!/usr/bin/env python3
"""How fast is the page in a browser?

A site of 1,000 nodes with 10,000 changes in six hours and 200 trainers, in a headless Chromium with
software rendering: until something is painted, until the picture is there, from a click until the
picture is painted anew, and the size of all files; alone, and with ``--busy`` processes that spin
beside it; with nodes that are lent as a whole, and with nodes that lend eight GPUs each one by one.
``--shots DIR`` keeps screenshots. Exits 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import multiprocessing
import random
import sys
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

from _bench.benchmark import Benchmark, Measured
from _bench.waiting import BenchError

from bftrainer.api.page.server import ASSETS, page_of
from bftrainer.api.page.source import Slow, log_document
from bftrainer.api.page.stream import user
from bftrainer.model.gpu_shares import shares_text
from bftrainer.model.progress import MOST_POINTS, ProgressCurve
from bftrainer.model.study import Report, Seen
from bftrainer.model.timeline import USES, PlannedUse, TimelineView
from bftrainer.model.trainer import (
    GpuLoad,
    TrainerProgress,
    TrainerRecord,
    TrainerSpec,
    TrainerState,
)
from bftrainer.model.views import StatusView, TrainerView

NODES, CHANGES, TRAINERS, SPAN_S = 1000, 10_000, 200, 6 * 3600.0
GPUS = 8  # of each node, where they are lent one by one
WEIGHTS = (30, 6, 1, 2, 0.2, 3, 10, 60, 2)  # of uses, as in ``USES`` without "shared"
LIMIT_S = 60.0
_REDRAWN = """
const done = arguments[0], found = [];
const buttons = document.querySelectorAll('#spans button');
function next(i) {
  if (i === %d) return done(found);
  const began = performance.now();
  buttons[i %% buttons.length].click();
  requestAnimationFrame(() => requestAnimationFrame(() => {  // the second comes after painting
    found.push(performance.now() - began);
    next(i + 1);
  }));
}
next(0);
"""


class DrawnSite:
    """A site that nobody runs, drawn at random."""

    title, is_live = "a site of 1,000 nodes", True

    def __init__(self, seed: int, gpus: int = 0) -> None:
        """``gpus``: that each node lends one by one; 0: nodes are lent as a whole."""
        self._gpus = gpus
        chance, now_s = random.Random(seed), time.time()  # noqa: S311 - no secret
        times = sorted(chance.uniform(now_s - SPAN_S, now_s) for _ in range(CHANGES))
        self._changes = []
        for at_s in times:
            use, trainer_id = _drawn_state(chance)
            if gpus:
                use, trainer_id = _drawn_shares(chance, gpus)
            self._changes.append((at_s, chance.randrange(NODES), use, trainer_id))
        self._now_s, self._number = now_s, 1

    def timeline(self, seen: Seen | None) -> TimelineView:
        """Return all, then a change each second."""
        changes = self._changes
        if seen is not None:
            time.sleep(1.0)
            self._number += 1
            self._now_s = time.time()
            use, trainer_id = 0, "t1"
            if self._gpus:
                use, trainer_id = _drawn_shares(random.Random(self._number), self._gpus)  # noqa: S311
            changes = [(self._now_s, self._number % NODES, use, trainer_id)]
        names = tuple(f"node{number:04}" for number in range(NODES))
        base = USES.index("ordinary"), ""
        if self._gpus:
            base = USES.index("shared"), f"ordinary::{self._gpus}"
        return TimelineView(
            incarnation=1,
            change=self._number,
            since_s=self._now_s - SPAN_S,
            now_s=self._now_s,
            nodes=names,
            base=() if seen else (base,) * NODES,
            changes=tuple(changes),
            planned=tuple(
                PlannedUse(
                    node=n,
                    trainer_id="",
                    from_s=self._now_s + n,
                    until_s=None,
                    gpus=self._gpus // 2,
                )
                for n in range(0, NODES, 3)
            ),
            is_whole=seen is None,
            curves=tuple(map(self._curve, range(TRAINERS if seen is None else 20))),
        )

    def _curve(self, number: int) -> ProgressCurve:
        """Return a full curve, of a trainer that grows and shrinks."""
        step_s = SPAN_S / MOST_POINTS
        points = [
            (self._now_s - SPAN_S + k * step_s, 900.0 + (k * number) % 200, 1 + k * number % 8)
            for k in range(MOST_POINTS)
        ]
        return ProgressCurve(
            trainer_id=f"t{number}",
            points=tuple(points),
            losses=tuple(2.3456 / (1 + k) for k in range(MOST_POINTS)),
            gpu_uses=tuple(80.0 + (k * number) % 20 for k in range(MOST_POINTS)),
        )

    def status(self) -> StatusView:
        """Return 200 trainers, of which each makes progress."""
        return StatusView(
            incarnation=1,
            pid=1,
            started_s=self._now_s - SPAN_S,
            batch_system="drawn",
            observed="present",
            failures=(),
            policy_hash="",
            nodes_total=NODES,
            nodes_idle=90,
            nodes_held=300,
            nodes_requested=10,
            decisions=self._number,
            last_decision_ms=2.0,
            last_decision_s=self._now_s,
            rescales=1000,
            give_backs=500,
            preemptions=3,
            trainers=tuple(self._trainer(number) for number in range(TRAINERS)),
        )

    def _trainer(self, number: int) -> TrainerView:
        who = user() if number % 10 == 0 else "ada"
        spec = TrainerSpec(name=f"net-{number}", user=who, script="/s.py", n_max=8, samples=10**6)
        samples = self._number * 1000 + number
        reports = tuple(
            Report(value=1.0 / (k + 1), step=k, reported_s=self._now_s - SPAN_S + 300.0 * k)
            for k in range(60)
        )
        if number % 50 == 20:
            return _failed(spec, number)
        record = TrainerRecord(
            trainer_id=f"t{number}",
            spec=spec,
            state=TrainerState.RUNNING,
            submitted_s=0.0,
            progress=TrainerProgress(
                samples=samples,
                samples_per_s=1000.0,
                loss=0.019712,
                gpu_use=GpuLoad(
                    gpus=8, use_percent=91.0, memory_used_mib=400_000.0, memory_total_mib=652_000.0
                ),
            ),
            reports=reports,
        )
        return TrainerView(
            record=record, planned_nodes=("a", "b"), requested_nodes=(), observed_nodes=("a", "b")
        )

    def slow(self) -> dict[str, Slow]:
        """Return nothing."""
        return {}

    def explain(self, trainer_id: str) -> Any:
        """Return nothing."""
        del trainer_id

    def log(self, trainer_id: str) -> Any:
        """Return the end of a log."""
        return log_document((f"{trainer_id}.1 on node0001", "epoch 1", "CUDA out of memory."))

    study = explain


def _drawn_state(chance: random.Random) -> tuple[int, str]:
    """Return a use and the trainer that has it, if one does."""
    use = chance.choices(range(len(WEIGHTS)), WEIGHTS)[0]
    return use, f"t{chance.randrange(TRAINERS)}" if use in (0, 1) else ""


def _drawn_shares(chance: random.Random, gpus: int) -> tuple[int, str]:
    """Return the use of a node of which every GPU is drawn by itself."""
    shares: dict[tuple[str, str], int] = {}
    for _ in range(gpus):
        use, trainer_id = _drawn_state(chance)
        shares[USES[use], trainer_id] = shares.get((USES[use], trainer_id), 0) + 1
    return USES.index("shared"), shares_text(shares)


def _failed(spec: TrainerSpec, number: int) -> TrainerView:
    reason = "Failed 3 times without getting further: its worker ended with 1 (RuntimeError)."
    record = TrainerRecord(
        trainer_id=f"t{number}",
        spec=spec,
        state=TrainerState.FAILED,
        submitted_s=0.0,
        reason=reason,
        failures=3,
    )
    return TrainerView(record=record, planned_nodes=(), requested_nodes=(), observed_nodes=())


def _spin() -> None:
    while True:
        pass


@contextlib.contextmanager
def _busy(count: int) -> Iterator[None]:
    spinning = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(count)]
    for one in spinning:
        one.start()
    try:
        yield
    finally:
        for one in spinning:
            one.kill()


@contextlib.contextmanager
def _chromium() -> Iterator[Any]:
    try:
        from selenium import webdriver  # noqa: PLC0415 - only this needs it
    except ImportError as problem:
        raise BenchError("Selenium is not installed") from problem
    options = webdriver.ChromeOptions()
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "window-size=1280,900"):
        options.add_argument(f"--{argument}")
    options.binary_location = "/usr/bin/chromium"
    driver = webdriver.Chrome(
        options=options, service=webdriver.ChromeService("/usr/bin/chromedriver")
    )
    try:
        yield driver
    finally:
        driver.quit()


def measure(arguments: argparse.Namespace, measured: Measured) -> None:
    """Open the page and redraw it, on a quiet machine and on a busy one."""
    links = list[str]()
    redrawn = _REDRAWN % (20 if arguments.quick else 100)
    for gpus, busy in itertools.product((0, GPUS), sorted({0, arguments.busy})):
        site, note = DrawnSite(arguments.seed, gpus), f"{busy} spinning processes beside it"
        if gpus:
            note += f"; {gpus} GPUs of each node lent one by one"
        with _chromium() as driver, page_of(site, links.append), _busy(busy):
            driver.set_script_timeout(LIMIT_S)
            driver.get("about:blank")
            driver.get(links[-1])
            _judge(measured, note, *_timed(driver, redrawn))
            if arguments.shots:
                arguments.shots.mkdir(parents=True, exist_ok=True)
                driver.save_screenshot(str(arguments.shots / f"page-{gpus}-{busy}.png"))
    size = sum(
        files("bftrainer.api.page").joinpath("assets", name).stat().st_size  # type: ignore[attr-defined]
        for name, _ in ASSETS.values()
    )
    measured.at_most("all files", size / 1000.0, 150.0, "kB")


def _timed(driver: Any, redrawn: str) -> tuple[float, float, list[float]]:
    """Return milliseconds until the first paint, until all is there, and of each redraw."""
    deadline = time.monotonic() + LIMIT_S
    while not driver.execute_script(
        "return document.getElementById('picture').dataset.drawMs"
        " && document.querySelectorAll('#trainers tr').length > 20"
    ):
        if time.monotonic() > deadline:
            raise BenchError("the page did not come")
        time.sleep(0.02)
    whole_ms = driver.execute_script("return performance.now()")
    paint_ms = driver.execute_script(
        "return performance.getEntriesByName('first-contentful-paint')[0].startTime"
    )
    return paint_ms, whole_ms, sorted(driver.execute_async_script(redrawn))


def _judge(
    measured: Measured, note: str, paint_ms: float, whole_ms: float, drawn: list[float]
) -> None:
    p95 = drawn[int(0.95 * (len(drawn) - 1))]
    measured.at_most(
        "from a click until painted, p95", p95, 100.0, "ms", f"{len(drawn)}, all spans; {note}"
    )
    measured.at_most("first paint", paint_ms / 1000.0, 1.0, note=note)
    measured.at_most("until all is there", whole_ms / 1000.0, 2.0, note=note)


BENCHMARK = Benchmark(
    name="page",
    title="The page",
    about=__doc__,
    quick="20 redraws",
    options={
        "--busy": {"type": int, "default": 4, "help": "processes that spin beside it"},
        "--shots": {"type": Path, "help": "keep screenshots here"},
        "--seed": {"type": int, "default": 1, "help": "of the site"},
    },
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
