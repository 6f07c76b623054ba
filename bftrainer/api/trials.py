"""The body of a request that submits trials: what they share once, then what each has of its own.

A study's trials differ in number, parameters, arguments and directory only, so that a thousand of
them fit into one request (``documents.trials_document``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from bftrainer.api.admission import check_spec
from bftrainer.api.codec import CodecError, decode, parse
from bftrainer.api.documents import check_schema
from bftrainer.model.study import Seen
from bftrainer.model.trainer import TrainerSpec

MOST_AT_ONCE = 1000
MOST_BYTES = 8 * 1024 * 1024  # of all specs, written out


def read_trials(body: bytes, study: str) -> tuple[TrainerSpec, ...]:
    """Return the specs in a body; all are trials of this study and of one user.

    Raises:
        CodecError: there are none.
        UsageError: of ``check_spec``.
    """
    given = check_schema("trials", parse(body))
    if unknown := sorted(set(given) - {"schema", "spec", "trials"}):
        raise CodecError(unknown[0][:80], "is not a known field")
    common, own = given.get("spec"), given.get("trials")
    if not isinstance(common, dict):
        raise CodecError("spec", "must be an object")
    if not isinstance(own, list) or not 1 <= len(own) <= MOST_AT_ONCE:
        raise CodecError("trials", f"must be a list of 1 to {MOST_AT_ONCE} objects")
    if len(json.dumps(common)) * len(own) > MOST_BYTES:
        raise CodecError("trials", f"must not come to more than {MOST_BYTES} bytes together")
    specs: list[TrainerSpec] = []
    for index, one in enumerate(own):
        where = f"trials[{index}]"
        if not isinstance(one, dict):
            raise CodecError(where, "must be an object")
        spec = decode(TrainerSpec, common | one, where=where)
        check_spec(spec)
        if spec.trial is None or spec.trial.study != study:
            raise CodecError(f"{where}.trial", f"must be a trial of {study}")
        if spec.user != (specs[0] if specs else spec).user or not spec.checkpoint_dir:
            raise CodecError(where, "must have a checkpoint directory, and the user of the others")
        specs.append(spec)
    return tuple(specs)


def read_seen(query: Mapping[str, str]) -> Seen | None:
    """Return what the client has seen; None: nothing."""
    change, incarnation = (_count(query.get(name, "")) for name in ("seen", "incarnation"))
    if change is None or incarnation is None:
        return None
    return Seen(change=change, incarnation=incarnation)


def read_wait(query: Mapping[str, str], limit_s: float) -> float:
    """Return how long to wait for something that the client has not seen."""
    wait_s = _count(query.get("wait_s", ""))
    return limit_s if wait_s is None else min(limit_s, wait_s)


def _count(text: str) -> int | None:
    return int(text[:18]) if text.isascii() and text.isdigit() else None
