"""The published values (``expected.json``), read once."""

from __future__ import annotations

from bftrainer.lab.papers.expected_values import read_expected

EXPECTED = read_expected(__package__)
