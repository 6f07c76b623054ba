"""Settings shared by all tests: helpers that assert report like tests do; which examples.

Property tests take the same examples at every run, so that a red run is the doing of a
change. Fresh ones: ``--hypothesis-profile=fresh``, which ``make test-long`` does ten times.
"""

import pytest
from hypothesis import settings

settings.register_profile("same", derandomize=True)
settings.register_profile("fresh", derandomize=False)
settings.load_profile("same")

pytest.register_assert_rewrite(
    "tests.conformance.batch_system", "tests.conformance.runtime", "tests.conformance.words"
)
