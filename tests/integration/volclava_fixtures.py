"""A real volclava for a module of tests, where one is installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.volclava import PREFIX_VARIABLE, RealVolclava, VolclavaConfig, why_not

# Long: a cluster takes half a minute to come up, and its delays are those of real clusters.
needs_volclava = [pytest.mark.long, pytest.mark.skipif(bool(why_not()), reason=why_not())]


def volclava_config(directory: Path, **settings: Any) -> VolclavaConfig:
    """The cluster of the tests in a directory, from the installation that the variable names."""
    return VolclavaConfig(
        directory=directory, prefix=Path(os.environ[PREFIX_VARIABLE]).resolve(), **settings
    )


@pytest.fixture(scope="module")
def volclava(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealVolclava]:
    with RealVolclava(volclava_config(tmp_path_factory.mktemp("volclava"))) as cluster:
        yield cluster
