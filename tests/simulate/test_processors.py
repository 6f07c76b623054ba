"""On other processors a journal gives the same plans, and a seed the same simulation."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.batch import process
from bftrainer.batch.traces.generator import GeneratorParameters, generate
from bftrainer.batch.traces.read import write_trace
from tests.support.processors import (
    FAMILIES,
    OLD_C_LIBRARY,
    Outcome,
    dispatched,
    has,
    outcome,
    write_journal,
)

pytestmark = pytest.mark.skipif(
    not has("fma"), reason="no processor of x86-64 with several kernels to choose from"
)

WIDE = [name for name in dispatched() if "512" in name or name == "X86_V4"]
OLDEST = {
    "NPY_DISABLE_CPU_FEATURES": " ".join(dispatched()),
    "GLIBC_TUNABLES": OLD_C_LIBRARY,
}
NARROW = {"NPY_DISABLE_CPU_FEATURES": " ".join(WIDE)}
MACHINES = {  # by name: family, and what else the process does without
    "new": ("SkylakeX", {}),
    "usual": ("Haswell", NARROW),
    "zen": ("Zen", {}),
    "old": ("Prescott", OLDEST),
}
SIMULATE = (
    *("simulate", "--workload", "diverse", "--hours", "6"),
    *("--policy", "milp,tetris,ibm-dp,dl2", "--costs", "physical", "--slow", "0.1:0.6"),
    *("--seed", "5", "--json"),
)
WHAT_IF = ("whatif", "--processes", "1", "--t-fwd", "120", "--seed", "3", "--json")


def _environment(family: str, others: dict[str, str]) -> dict[str, str]:
    if not has(FAMILIES[family]):
        pytest.skip(f"this processor has no {FAMILIES[family]}, which {family} needs")
    return {"OPENBLAS_CORETYPE": family, **others}


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """39 decisions, as this process takes them."""
    path = tmp_path_factory.mktemp("processors") / "journal.db"
    assert write_journal(path) == 39
    return path


@pytest.fixture(scope="module")
def elsewhere(journal: Path) -> Iterator[dict[str, Outcome]]:
    """What each machine made of the journal; at the end, whether they were several."""
    seen: dict[str, Outcome] = {}
    yield seen
    _assert_different(seen)


def _assert_different(seen: dict[str, Outcome]) -> None:
    """Where all machines multiply alike, equal plans would say nothing."""
    if "old" not in seen or len(seen) == 1 or not seen["old"].family:
        return
    others = [one for name, one in seen.items() if name != "old"]
    old = seen["old"]
    assert old.features == ()
    assert all(one.family != old.family and one.blas != old.blas for one in others)
    if platform.libc_ver()[0] == "glibc":
        assert all(one.library != old.library for one in others)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_journal_gives_the_same_plans(
    machine: str, journal: Path, elsewhere: dict[str, Outcome]
) -> None:
    elsewhere[machine] = again = outcome(journal, _environment(*MACHINES[machine]))
    assert len(set(again.plans)) == 39
    assert again.differing == ()


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_hundreds_of_plans_are_the_same(family: str, tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    count = write_journal(path, rounds=10)
    for others in ({}, NARROW, OLDEST):
        again = outcome(path, _environment(family, others))
        assert len(again.plans) == count
        assert again.differing == ()


@pytest.mark.long
@pytest.mark.parametrize("verb", [SIMULATE, WHAT_IF], ids=["simulate", "whatif"])
def test_a_seed_gives_the_same_result(verb: tuple[str, ...], tmp_path: Path) -> None:
    trace = tmp_path / "idle.npz"
    write_trace(trace, generate(GeneratorParameters(n_nodes=96, hours=12.0, seed=2)))
    results = {}
    for machine in ("usual", "old"):
        environment = {**os.environ, **_environment(*MACHINES[machine])}
        argv = [sys.executable, "-m", "bftrainer", *verb, "--trace", str(trace)]
        done = process.run(argv, timeout_s=600.0, env=environment)
        assert done.is_ok, done.stderr[-2000:]
        results[machine] = json.loads(done.stdout, object_hook=_timeless)
    assert results["old"] == results["usual"]


def _timeless(values: dict[str, object]) -> dict[str, object]:
    """Leave out how long decisions took."""
    return {name: one for name, one in values.items() if not name.startswith("decision_ms")}
