"""Settings shared by all tests: helpers that assert report like tests do; which examples.

Property tests take the same examples at every run, so that a red run is the doing of a
change. Fresh ones: ``--hypothesis-profile=fresh``, which ``make test-long`` does ten times.
``--shard K/N`` runs the Kth of N parts of what was asked for, and the cache keeps what became of
long proofs: see tests/support/proofs.py. ``--kernel`` collects the files of the kernel alone: see
tests/support/kernel.py.
"""

import gc
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from tests.support import costs, kernel, proofs

# A shell has its background jobs ignore it, and what tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Where a shell forbids compiled modules, each of a thousand processes would compile all again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["PATH"] += ":/usr/sbin:/sbin"  # of Slurm's daemons; users of Debian lack it
os.umask(0o022)  # ordinary users read what the stand-ins of sites make
# The path of a socket has 107 bytes, and jobs of other users must reach what is there.
temporary = Path(tempfile.gettempdir()).resolve()
if len(str(temporary)) > 40 or not all(
    place.stat().st_mode & stat.S_IXOTH for place in (temporary, *temporary.parents)
):
    os.environ["TMPDIR"], tempfile.tempdir = "/tmp", None
gc.disable()  # until all tests are collected: what they are made of stays
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # two cores are busy with other tests
os.environ["BFT_STRICT_PHASES"] = "1"  # a phase of a run that its table forbids raises

# Processes that run tests for one command have to choose the same ones, also at midnight.
os.environ.setdefault("BFT_DAY_OF_TESTS", str(datetime.now(tz=UTC).toordinal()))

SAME = 25  # examples of a test that names no number; of fresh ones it takes 100
# How long an example takes says something about the machine's other work, not about the code.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", patient, derandomize=True, max_examples=SAME)
settings.register_profile("fresh", patient, derandomize=False)
settings.load_profile("same")
# Hypothesis also tries constants of the modules that happen to be loaded: which, depends on the
# other tests of the process. Then the examples would not be the same. Checked with 6.170.
providers._get_local_constants = lambda: providers._local_constants

pytest.register_assert_rewrite(
    "tests.conformance.batch_system", "tests.conformance.runtime", "tests.conformance.words"
)

LONG_FILES = ("_conformance.py", "test_lsf_accidents.py", "test_third_system.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shard", metavar="K/N", help="run part K (from 0) of N, by file")
    parser.addoption("--kernel", action="store_true", help="collect the kernel's files alone")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if not config.getoption("--kernel") or not collection_path.is_file():
        return None
    return not kernel.is_of_kernel(collection_path.relative_to(kernel.ROOT).as_posix()) or None


def _name(config: pytest.Config, test: str) -> str:
    """Return what a test is recorded as: fresh examples of a file are one proof."""
    is_fresh = config.getoption("--hypothesis-profile") == "fresh"
    return proofs.file_of(test) + proofs.FRESH if is_fresh else test


@pytest.hookimpl(trylast=True)  # after marks have chosen
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (shard := config.getoption("--shard")) is not None:
        part, n_parts = (int(number) for number in shard.split("/"))
        names = {_name(config, item.nodeid) for item in items}
        day = int(os.environ["BFT_DAY_OF_TESTS"])
        drawn = proofs.shards(names, n_parts, proofs.known())[part]
        chosen = {name for name in drawn if proofs.is_due(name, day)}
        others = [item for item in items if _name(config, item.nodeid) not in chosen]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if _name(config, item.nodeid) in chosen]
    # Files of few tests have slow ones. First, so that no worker is left with one of them; as
    # would be those of a batch system with all that may happen to it, though of many tests.
    sizes = Counter(proofs.file_of(item.nodeid) for item in items)

    def order(item: pytest.Item) -> tuple[bool, int]:
        file = proofs.file_of(item.nodeid)
        return not file.endswith(LONG_FILES), sizes[file]

    items.sort(key=order)
    gc.freeze()
    gc.enable()


class Recorder:
    """Keeps in pytest's cache what became of long proofs and fresh examples."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._seen: dict[str, tuple[str, float]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = _name(self._config, report.nodeid)
        if "long" in report.keywords or name != report.nodeid:
            result, seconds = self._seen.get(name, ("passed", 0.0))
            result = report.outcome if report.outcome != "passed" else result
            self._seen[name] = (result, seconds + report.duration)

    def pytest_sessionfinish(self) -> None:
        cache = getattr(self._config, "cache", None)  # not there with -p no:cacheprovider
        if cache is None or not self._seen:
            return
        ask = ["git", "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip()
        day = datetime.now(tz=UTC).date().isoformat()
        kept = cache.get(proofs.CACHE_KEY, {})
        for name, (result, seconds) in self._seen.items():
            kept[name] = asdict(proofs.Proof(result, round(seconds, 1), day, commit))
        cache.set(proofs.CACHE_KEY, kept)


def pytest_configure(config: pytest.Config) -> None:
    costs.register(config)
    if not hasattr(config, "workerinput"):  # of xdist: its controller hears everything
        config.pluginmanager.register(Recorder(config))
