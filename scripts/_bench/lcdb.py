"""Real learning curves: LCDB (Mohr et al. 2022; MIT, PyPI lcdb 0.1.0).

It has the validation accuracy of scikit-learn's classifiers on data sets of OpenML by the size of
the training set. A configuration is a learner with its seeds; the resource is the size of the
training set, 16 samples being one unit. The archive is that of ``--lcdb``, of the variable
BFTRAINER_LCDB, or downloaded once with pip.
"""

from __future__ import annotations

import csv
import io
import os
import sys
import tarfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from _bench.benchmark import note
from _bench.rule_replay import Curve
from _bench.waiting import BenchError
from bftrainer.batch.process import run

VERSION: Final = "0.1.0"
VARIABLE: Final = "BFTRAINER_LCDB"
ETA: Final = 2  # between two anchors
_FILE: Final = f"lcdb-{VERSION}.tar.gz"
_ANCHORS: Final = ((16, 32, 64, 128, 256), (16, 32, 64, 128))  # the second where too few have 256
_ENOUGH: Final = 50  # configurations
Errors = dict[tuple[str, str, str], dict[int, float]]  # learner and seeds -> samples -> error


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """Learning curves on one data set."""

    name: str  # its number at OpenML
    anchors: tuple[int, ...]
    errors: tuple[tuple[float, ...], ...]  # by configuration and anchor

    @property
    def most(self) -> int:
        """Units of the last anchor."""
        return self.anchors[-1] // self.anchors[0]

    def curve(self, configuration: int) -> Curve:
        """Return the curve of a configuration."""
        errors = self.errors[configuration]
        units = [anchor // self.anchors[0] for anchor in self.anchors]
        return Curve(points=tuple(zip(units, errors, strict=True)))

    def order(self, seed: int, most: int) -> list[int]:
        """Draw configurations without repetition."""
        return [int(i) for i in np.random.default_rng(seed).permutation(len(self.errors))[:most]]


def archive(given: Path | None) -> Path:
    """Return the archive.

    Raises:
        BenchError: it is not there, or cannot be downloaded.
    """
    named = given or (Path(os.environ[VARIABLE]) if VARIABLE in os.environ else None)
    if named is not None:
        if not named.is_file():
            raise BenchError(f"{named} is not a file; it should be {_FILE} of PyPI")
        return named
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bftrainer"
    if not (cache / _FILE).is_file():
        note(f"downloading lcdb {VERSION} (68 MB) with pip into {cache}")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        told = run(
            [*pip, "--no-binary", ":all:", "--dest", str(cache), f"lcdb=={VERSION}"],
            timeout_s=600.0,
        )
        if not told.is_ok:
            raise BenchError(
                f"lcdb {VERSION} cannot be downloaded; name its archive with --lcdb or"
                f" {VARIABLE}. pip said: {told.stderr.strip()[-300:]}"
            )
    return cache / _FILE


def data_sets(path: Path, most: int = 6) -> list[DataSet]:
    """Return those of the first data sets of the archive that have enough configurations."""
    found = (
        _data_set(name, list(errors.items())) for name, errors in errors_of(path, most).items()
    )
    return [one for one in found if one is not None]


def errors_of(path: Path, most: int | None = None) -> dict[str, Errors]:
    """Return the first data sets of the archive, all unless said: errors by configuration."""
    errors: dict[str, Errors] = defaultdict(dict)
    with tarfile.open(path) as tar:
        member = tar.extractfile(f"lcdb-{VERSION}/lcdb/database-accuracy.csv")
        if member is None:
            raise BenchError(f"{path} has no accuracies")
        for row in csv.DictReader(io.TextIOWrapper(member)):
            name = row["openmlid"]
            if name not in errors and len(errors) == most:
                break
            if row["score_valid"]:
                key = row["learner"], row["outer_seed"], row["inner_seed"]
                error = 1 - float(row["score_valid"])
                errors[name].setdefault(key, {})[int(row["size_train"])] = error
    return errors


def _data_set(
    name: str, curves: Sequence[tuple[tuple[str, str, str], dict[int, float]]]
) -> DataSet | None:
    for anchors in _ANCHORS:
        whole = [
            tuple(curve[anchor] for anchor in anchors)
            for _, curve in sorted(curves, key=lambda one: one[0])
            if all(anchor in curve for anchor in anchors)
        ]
        if len(whole) >= _ENOUGH:
            return DataSet(name=name, anchors=anchors, errors=tuple(whole))
    return None
