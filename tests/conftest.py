"""Settings shared by all tests: helpers that assert report like tests do; which examples.

Property tests take the same examples at every run, so that a red run is the doing of a
change. Fresh ones: ``--hypothesis-profile=fresh``, which ``make test-long`` does ten times.
``--shard K/N`` runs the Kth of N parts of what was asked for, whole files at a time.
"""

import os
import signal
import zlib
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

# A shell has its background jobs ignore it, and what tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # two cores are busy with other tests

# How long an example takes says something about the machine's other work, not about the code.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", patient, derandomize=True)
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


def _file(item: pytest.Item) -> str:
    return item.nodeid.split("::")[0]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (shard := config.getoption("--shard")) is not None:
        part, of = (int(number) for number in shard.split("/"))
        parts: dict[int, list[pytest.Item]] = {}
        for item in items:  # by file: the tests of one share clusters and templates
            parts.setdefault(zlib.crc32(_file(item).encode()) % of, []).append(item)
        items[:] = parts.pop(part % of, [])
        config.hook.pytest_deselected(items=[item for other in parts.values() for item in other])
    # Files of few tests have slow ones. First, so that no worker is left with one of them; as
    # would be those of a batch system with all that may happen to it, though of many tests.
    sizes = Counter(map(_file, items))
    items.sort(key=lambda item: (not _file(item).endswith(LONG_FILES), sizes[_file(item)]))
