"""Settings shared by all tests: helpers that assert report like tests do."""

import pytest

pytest.register_assert_rewrite("tests.conformance.batch_system", "tests.conformance.words")
