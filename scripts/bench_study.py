#!/usr/bin/env python3
"""A study of 1,000 trials in one daemon: how fast are its verbs, its turns, and the decisions?

A real daemon has four nodes of the local batch system; a study's loop submits trials that only
sleep. Then: the API's answers, ``study status`` as a process, a turn of the loop after one trial
has changed (until the rule's verdict is carried out), and decisions with all trials waiting or
running. Beside it Optuna alone: ask and tell of as many trials in the same kind of storage.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from _bench.benchmark import Benchmark, Measured, note

from bftrainer.api.client import Client
from bftrainer.api.service import user_name
from bftrainer.batch import process
from bftrainer.cli.study.lookup import open_loop
from bftrainer.lab.demo.local_site import LocalSite
from bftrainer.model.trainer import CheckpointContract, TrainerChange, TrainerSpec
from bftrainer.study.directory import StudyDirectory, new_directory, write_directory
from bftrainer.study.document import parse_study
from bftrainer.study.loop import StudyLoop

POLICY = """\
poll_interval_s: 1
max_trainers_per_user: 5000
submissions_per_minute_per_user: 100000
written_mb_per_day_per_user: 100000
"""
DOCUMENT = """\
parameters:
  lr: {{type: float, low: 0.0001, high: 1.0, log: true}}
  momentum: {{type: float, low: 0.0, high: 0.99}}
  width: {{type: int, low: 8, high: 512, step: 8}}
  activation: [relu, tanh, gelu]
sampler: {sampler}
parallel: {trials}
rule: {{name: asha, trials: {trials}, least: 1, most: 81, eta: 3}}
"""
ROUNDS = 15


def measure(arguments: argparse.Namespace, measured: Measured) -> None:
    """Measure all parts."""
    trials = 200 if arguments.quick else 1000
    with tempfile.TemporaryDirectory(prefix="bft-study-") as directory:
        base = Path(directory)
        with LocalSite.open(base, n_nodes=4, policy=POLICY) as site:
            _study(site.client, _begun(base, trials), trials, measured)
        _optuna_alone(base, min(trials, 200), measured)


def _begun(base: Path, trials: int) -> StudyDirectory:
    document = parse_study(DOCUMENT.format(trials=trials, sampler="random"), base / "many.yaml")
    spec = TrainerSpec(
        name="many",
        user=user_name(os.geteuid()),
        script="/bin/sleep",
        args=("3600",),
        cwd=str(base),
        runtime="command",
        contract=CheckpointContract(),
    )
    study = new_directory(base / "many.study", document, spec)
    write_directory(study)
    return study


def _study(client: Client, study: StudyDirectory, trials: int, measured: Measured) -> None:
    note(f"{trials} trials begin")
    with open_loop(study, client, lambda _: None) as loop:
        began_s = time.perf_counter()
        while len(client.study(study.study_id).trials) < trials:
            loop.turn()
        each_ms = (time.perf_counter() - began_s) / trials * 1000
        loop.turn()
        note("turns")
        changed = client.study(study.study_id).trials[0].trainer_id
        turns = [_turn_s(client, loop, changed, is_held=n % 2 == 0) for n in range(ROUNDS)]
        loop.summarize()
    whole = _timed(lambda: client.study(study.study_id))
    all_status = _timed(client.status)
    environment = {**os.environ, "BFTRAINER_SOCKET": str(client.socket_path)}
    argv = (sys.executable, "-m", "bftrainer", "study", "status", str(study.path))
    verb = _timed(lambda: process.run(argv, timeout_s=60, env=environment), rounds=5)
    note("decisions")
    decisions = []
    for number in range(ROUNDS):
        before = client.status().decisions
        client.change(changed, TrainerChange(is_held=number % 2 == 0))
        deadline = time.monotonic() + 10.0
        while (status := client.status()).decisions == before and time.monotonic() < deadline:
            time.sleep(0.1)
        decisions.append(status.last_decision_ms / 1000)
    rows = [
        ("begin a trial: draw, store, submit", f"{each_ms:.1f} ms"),
        ("API: the whole study", _ms(whole)),
        ("API: status of the daemon", _ms(all_status)),
        ("bftrainer study status, a process", _ms(verb)),
        ("a turn after one trial has changed", _ms(turns)),
        ("a decision", _ms(decisions)),
    ]
    measured.table(f"{trials} trials in one daemon", ("", "median"), rows)
    measured.at_most("API: the whole study, median", statistics.median(whole), 0.2)
    measured.at_most("study status, median", statistics.median(verb), 0.2)
    measured.at_most("turn after a change, median", statistics.median(turns), 0.05)
    measured.at_most("decision, median", statistics.median(decisions), 0.05)
    measured.results |= {
        "trials": trials, "begin_ms": each_ms, "study_s": whole, "status_s": all_status,
        "verb_s": verb, "turn_s": turns, "decision_s": decisions,
    }  # fmt: skip


def _turn_s(client: Client, loop: StudyLoop, trainer_id: str, *, is_held: bool) -> float:
    """Return how long the loop takes from a change of one trial to the end of its turn."""
    client.change(trainer_id, TrainerChange(is_held=is_held))
    began_s = time.perf_counter()
    loop.turn()
    return time.perf_counter() - began_s


def _optuna_alone(base: Path, trials: int, measured: Measured) -> None:
    """Measure ask and tell without a study's loop."""
    import optuna  # noqa: PLC0415

    note("Optuna alone")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    rows = []
    for name, sampler in (
        ("random", optuna.samplers.RandomSampler(seed=0)),
        ("tpe", optuna.samplers.TPESampler(seed=0)),
    ):
        backend = optuna.storages.journal.JournalFileBackend(str(base / f"{name}.log"))
        study = optuna.create_study(
            storage=optuna.storages.JournalStorage(backend), sampler=sampler
        )
        began_s = time.perf_counter()
        for number in range(trials):
            trial = study.ask()
            trial.suggest_float("lr", 1e-4, 1.0, log=True)
            trial.suggest_float("momentum", 0.0, 0.99)
            trial.suggest_int("width", 8, 512, step=8)
            trial.suggest_categorical("activation", ["relu", "tanh", "gelu"])
            study.tell(trial, 1.0 / (number + 1))
        each_ms = (time.perf_counter() - began_s) / trials * 1000
        rows.append((name, f"{each_ms:.1f} ms"))
        measured.results[f"optuna_{name}_ms"] = each_ms
    measured.table(f"Optuna alone: ask, 4 parameters and tell, {trials} trials", ("", "each"), rows)


def _timed(call: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    found = []
    for _ in range(rounds):
        began_s = time.perf_counter()
        call()
        found.append(time.perf_counter() - began_s)
    return found


def _ms(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) * 1000:.0f} ms, at most {max(seconds) * 1000:.0f}"


BENCHMARK = Benchmark(
    name="study",
    title="Studies",
    about=__doc__,
    quick="200 trials",
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
