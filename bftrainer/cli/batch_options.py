"""The options with which a trainer admits several batches: ``--batch`` and what belongs to it.

``submit_options`` lists them, ``spec`` makes a ``BatchRange`` of their values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import click

from bftrainer.model.batch import ADASCALE, LR_RULES, BatchRange
from bftrainer.model.errors import UsageError

_RANGE = re.compile(r"(\d{1,9}):(\d{1,9})\Z", re.ASCII)
_NEXT = "Write --batch MIN:MAX --batch-per-worker N, as in --batch 128:1024 --batch-per-worker 64."


def parse_range(text: str) -> tuple[int, int]:
    """Return the least and the greatest batch of ``128:1024``; raise BFT-1067."""
    match = _RANGE.match(text)
    if match is None:
        raise UsageError("BFT-1067", f"{text[:60]!r} is not a range of batches.", _NEXT)
    return int(match[1]), int(match[2])


def batch_options() -> list[click.Option]:
    """Return the options."""
    return [
        click.Option(
            ["--batch"],
            type=parse_range,
            metavar="MIN:MAX",
            help="Let the global batch follow the size, within MIN and MAX samples.  "
            "[default: the script's]",
        ),
        click.Option(
            ["--batch-per-worker"],
            type=int,
            metavar="N",
            help="With --batch: samples that one worker can process at once.",
        ),
        click.Option(
            ["--lr-rule"],
            type=click.Choice(LR_RULES),
            help="With --batch: how the learning rate follows it.  "
            "[default: adascale with --runtime torch, else none]",
        ),
    ]


def batch_range(values: Mapping[str, Any]) -> BatchRange | None:
    """Return the range; None if it was not given.

    Raises:
        UsageError: BFT-1067, an option is missing.
    """
    given, most, rule = (values.get(k) for k in ("batch", "batch_per_worker", "lr_rule"))
    if given is None and most is None and rule is None:
        return None
    if given is None or most is None:
        missing = "--batch" if given is None else "--batch-per-worker"
        raise UsageError("BFT-1067", f"{missing} is missing.", _NEXT)
    if rule is None:
        rule = ADASCALE if values["runtime"] == "torch" else "none"
    return BatchRange(least=given[0], most=given[1], per_worker=most, lr_rule=rule)
